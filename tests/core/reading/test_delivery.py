"""Delivery to user code: what is called next, what is repeated, and how far the checkpoint may go."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.hash_key import HashRange
from penstock.core.position import TRIM_HORIZON, at_record
from penstock.core.reading.delivery import ShardDelivery
from penstock.core.reading.delivery_calls import (
    CallKind,
    DeliveryOptions,
    Halve,
    Phase,
    Repeat,
    SendToDeadLetter,
    StopDelivery,
)
from penstock.core.reading.record import Record
from penstock.core.shard import ChildShard
from penstock.errors import OptionError, UsageError

CHILD = ChildShard("shardId-1", ("shardId-0",), HashRange(0, 9))


def Rec(sequence_number, partition_key="k", sub_sequence_number=0):  # noqa: N802 - a record with few fields
    arrival = datetime(2026, 1, 1, tzinfo=UTC)
    return Record(b"", partition_key, sequence_number, sub_sequence_number, None, arrival, "shardId-0")


RECORD_BYTES = Rec("1").memory_bytes


def delivery(**options) -> ShardDelivery:
    options.setdefault("checkpoint_interval_s", 0.0)
    return ShardDelivery("shardId-0", TRIM_HORIZON, DeliveryOptions(**options))


def recs(*sequence_numbers, keys=None) -> list[Record]:
    keys = keys or "k" * len(sequence_numbers)
    return [Rec(str(number), key) for number, key in zip(sequence_numbers, keys, strict=True)]


def taken(machine: ShardDelivery, now_s=0.0):
    call = machine.take_call(now_s)
    assert call is not None
    return call


def numbers(call) -> list[int]:
    return [int(record.sequence_number) for record in call.records]


# --- in order -------------------------------------------------------------------------------------------


def test_records_come_in_batches_in_order_one_at_a_time():
    machine = delivery(batch_records_max=2)
    machine.add(recs(1, 2, 3), 50)
    first = taken(machine)
    assert (numbers(first), first.attempt, first.millis_behind_latest) == ([1, 2], 1, 50)
    assert machine.take_call(0.0) is None
    machine.on_returned(first.id, 0.0)
    assert numbers(taken(machine)) == [3]


def test_a_returned_batch_is_acknowledged_and_its_end_is_the_checkpoint():
    machine = delivery()
    machine.add(recs(1, 2), 0)
    call = taken(machine)
    assert machine.plan_checkpoint(0.0) is None
    machine.on_returned(call.id, 0.0)
    assert machine.plan_checkpoint(0.0) == at_record("2")


def test_checkpoints_keep_the_interval_unless_forced():
    machine = delivery(checkpoint_interval_s=5.0)
    for sequence, now_s, planned in [(1, 0.0, 1), (2, 4.9, None), (3, 5.0, 3)]:
        machine.add(recs(sequence), 0)
        machine.on_returned(taken(machine).id, now_s)
        position = machine.plan_checkpoint(now_s)
        assert position == (None if planned is None else at_record(str(planned)))
        if position is not None:
            machine.on_checkpoint_sent(position, now_s)
    machine.add(recs(4), 0)
    machine.on_returned(taken(machine).id, 6.0)
    assert machine.plan_checkpoint(6.0) is None
    assert machine.next_wake_s() == 10.0
    assert machine.plan_checkpoint(10.0) == at_record("4")


def test_a_lost_shard_stores_no_checkpoint_and_wakes_nobody_for_one():
    machine = delivery(checkpoint_interval_s=5.0)
    machine.add(recs(1, 2), 0)
    machine.on_returned(taken(machine).id, 1.0)
    machine.add(recs(3), 0)
    taken(machine)
    assert machine.next_wake_s() is not None
    machine.on_lease_lost()
    assert machine.next_wake_s() is None
    assert machine.plan_checkpoint(99.0) is None


def test_waiting_bytes_count_what_is_fetched_and_not_done():
    machine = delivery(batch_records_max=1)
    machine.add(recs(1, 2, 3), 0)
    assert machine.waiting_bytes == 3 * RECORD_BYTES
    machine.on_returned(taken(machine).id, 0.0)
    assert machine.waiting_bytes == 2 * RECORD_BYTES
    machine.stop()
    assert machine.waiting_bytes == 0


# --- by key ---------------------------------------------------------------------------------------------


def test_different_keys_run_in_parallel_and_one_key_in_order():
    machine = delivery(concurrency=3)
    machine.add(recs(1, 2, 3, 4, keys="aabc"), 0)
    calls = [taken(machine) for _ in range(3)]
    assert [numbers(call) for call in calls] == [[1, 2], [3], [4]]
    machine.add(recs(5, 6, keys="ad"), 0)
    assert machine.take_call(0.0) is None  # three are under way
    machine.on_returned(calls[1].id, 0.0)
    assert numbers(taken(machine)) == [6]  # key a is busy, so d goes first
    machine.on_returned(calls[0].id, 0.0)
    assert numbers(taken(machine)) == [5]


def test_the_checkpoint_is_the_low_water_mark():
    machine = delivery(concurrency=3)
    machine.add(recs(1, 2, 3, keys="abc"), 0)
    a, b, c = (taken(machine) for _ in range(3))
    machine.on_returned(c.id, 0.0)
    assert machine.low_watermark == TRIM_HORIZON
    machine.on_returned(a.id, 0.0)
    assert machine.low_watermark == at_record("1")
    machine.on_returned(b.id, 0.0)
    assert machine.low_watermark == at_record("3")


def test_records_without_a_key_have_no_order_to_keep():
    machine = delivery(concurrency=2)
    machine.add([Rec("1", None), Rec("2", None)], 0)
    assert [numbers(taken(machine)), numbers(taken(machine))] == [[1], [2]]


def test_the_window_holds_new_calls_but_not_the_repetition_that_it_waits_for():
    machine = delivery(concurrency=2, window_records_max=2, backoff_min_s=1.0)
    machine.add(recs(1, 2, 3, keys="abc"), 0)
    a, b = taken(machine), taken(machine)
    machine.on_returned(b.id, 0.0)
    machine.on_raised(a.id, ValueError("x"), 0.0, 0.5)
    assert machine.take_call(0.0) is None
    again = taken(machine, 0.5)
    assert numbers(again) == [1]
    machine.on_returned(again.id, 0.5)
    assert numbers(taken(machine, 0.5)) == [3]


# --- acknowledging by hand ------------------------------------------------------------------------------


def test_in_manual_mode_only_user_code_acknowledges():
    machine = delivery(checkpointing="manual")
    machine.add(recs(1, 2, 3), 0)
    call = taken(machine)
    machine.acknowledge(call.records[1:2], call.ordinals[1:2], 0.0)
    machine.on_returned(call.id, 0.0)
    assert machine.low_watermark == TRIM_HORIZON
    assert machine.unacknowledged_count == 2
    machine.acknowledge(call.records[:1], call.ordinals[:1], 0.0)
    assert machine.low_watermark == at_record("2")


def test_acknowledging_through_a_position_covers_what_lies_before():
    machine = delivery(checkpointing="manual", batch_records_max=2)
    machine.add(recs(1, 2, 3, 4), 0)
    first = taken(machine)
    machine.on_returned(first.id, 0.0)
    second = taken(machine)
    machine.acknowledge_through(at_record("3"), 0.0)
    assert machine.low_watermark == at_record("3")
    assert machine.unacknowledged_count == 2  # 3 is done, which the count learns with the end of its batch
    machine.acknowledge_through(at_record("4"), 0.0)
    machine.on_returned(second.id, 0.0)
    assert machine.is_acknowledged


def test_acknowledging_through_a_known_record_and_then_single_ones():
    machine = delivery(checkpointing="manual")
    machine.add(recs(1, 2, 3, 4), 0)
    call = taken(machine)
    machine.acknowledge_through(at_record("2"), 0.0, ordinal=call.ordinals[1])
    machine.acknowledge(call.records[3:], call.ordinals[3:], 0.0)
    assert machine.low_watermark == at_record("2")
    machine.acknowledge(call.records[2:3], call.ordinals[2:3], 0.0)
    assert machine.low_watermark == at_record("4")
    assert machine.is_acknowledged


@pytest.mark.parametrize(("sequence", "word"), [("9", "delivered is only"), ("1", "is at 2.0 already")])
def test_a_checkpoint_outside_what_was_delivered_is_refused(sequence, word):
    machine = delivery(checkpointing="manual")
    machine.add(recs(1, 2, 3), 0)
    taken(machine)
    machine.acknowledge_through(at_record("2"), 0.0)
    with pytest.raises(UsageError, match=word):
        machine.acknowledge_through(at_record(sequence), 0.0)
    assert machine.low_watermark == at_record("2")


def test_a_position_says_nothing_when_keys_run_in_parallel():
    machine = delivery(concurrency=2)
    with pytest.raises(UsageError, match="concurrency"):
        machine.acknowledge_through(at_record("1"), 0.0)


# --- failures -------------------------------------------------------------------------------------------


def test_a_failing_call_comes_again_after_a_growing_jittered_pause():
    machine = delivery(retries_max=3, backoff_min_s=1.0, backoff_max_s=3.0)
    machine.add(recs(1, 2), 0)
    now_s, pauses = 0.0, []
    for attempt in range(1, 4):
        verdict = machine.on_raised(taken(machine, now_s).id, ValueError("x"), now_s, 0.5)
        assert verdict == Repeat(verdict.at_s, attempt + 1)
        assert machine.take_call(verdict.at_s - 0.01) is None
        assert machine.next_wake_s() == verdict.at_s
        pauses.append(verdict.at_s - now_s)
        now_s = verdict.at_s
    assert pauses == [0.5, 1.0, 1.5]
    assert numbers(taken(machine, now_s)) == [1, 2]


def test_what_was_acknowledged_before_the_failure_does_not_come_again():
    machine = delivery()
    machine.add(recs(1, 2, 3), 0)
    call = taken(machine)
    machine.acknowledge(call.records[1:2], call.ordinals[1:2], 0.0)
    machine.acknowledge_through(at_record("1"), 0.0)
    machine.on_raised(call.id, ValueError("x"), 0.0, 0.0)
    again = taken(machine)
    assert numbers(again) == [3]
    machine.on_returned(again.id, 0.0)
    assert (machine.low_watermark, machine.waiting_bytes) == (at_record("3"), 0)


@pytest.mark.parametrize("position", [None, at_record("2")])
def test_a_failure_after_everything_was_acknowledged_repeats_nothing_and_the_shard_goes_on(position):
    machine = delivery(batch_records_max=2, retries_max=0)
    machine.add(recs(1, 2, 3), 0)
    call = taken(machine)
    if position is None:
        machine.acknowledge(call.records, call.ordinals, 0.0)
    else:
        machine.acknowledge_through(position, 0.0)
    assert machine.on_raised(call.id, ValueError("x"), 0.0, 0.5) is None
    assert (machine.low_watermark, machine.waiting_bytes) == (at_record("2"), RECORD_BYTES)
    following = taken(machine)
    assert (numbers(following), following.attempt) == ([3], 1)


@pytest.mark.parametrize(("policy", "scope"), [("stop_shard", "shard"), ("stop_worker", "worker")])
def test_after_the_last_repetition_the_delivery_stops_and_says_where(policy, scope):
    machine = delivery(retries_max=1, on_failure=policy)
    machine.add(recs(1, 2), 0)
    machine.on_raised(taken(machine).id, ValueError("boom"), 0.0, 0.0)
    verdict = machine.on_raised(taken(machine).id, ValueError("boom"), 0.0, 0.0)
    assert isinstance(verdict, StopDelivery)
    assert verdict.scope == scope
    assert str(verdict.error) == (
        "shard shardId-0: user code failed 2 times on 2 records from 1.0 to 2.0: ValueError: boom; "
        "nothing after TRIM_HORIZON is acknowledged"
    )
    assert machine.phase is Phase.FAILED
    assert machine.is_stopped
    assert machine.take_call(99.0) is None


def test_a_call_that_was_never_begun_comes_first_and_counts_as_no_attempt():
    machine = delivery(batch_records_max=1)
    machine.add(recs(1, 2), 0)
    machine.on_not_begun(taken(machine).id)
    again = taken(machine)
    assert (numbers(again), again.attempt) == ([1], 1)
    machine.on_returned(again.id, 0.0)
    assert numbers(taken(machine)) == [2]


def test_a_call_that_was_never_begun_is_given_up_when_the_shard_is_stopped_meanwhile():
    machine = delivery()
    machine.add(recs(1, 2), 0)
    call = taken(machine)
    machine.stop()
    machine.on_not_begun(call.id)
    assert (machine.is_stopped, machine.low_watermark, machine.waiting_bytes) == (True, TRIM_HORIZON, 0)
    assert machine.take_call(0.0) is None


def test_a_stop_lets_the_calls_of_other_keys_finish():
    machine = delivery(concurrency=2, retries_max=0)
    machine.add(recs(1, 2, 3, keys="abc"), 0)
    a, b = taken(machine), taken(machine)
    machine.on_raised(b.id, ValueError("x"), 0.0, 0.0)
    assert not machine.is_stopped
    machine.on_returned(a.id, 0.0)
    assert machine.is_stopped
    assert machine.low_watermark == at_record("1")


def test_a_failing_batch_is_halved_until_the_bad_record_stands_alone_and_goes_to_the_dead_letters():
    machine = delivery(retries_max=1, on_failure="dead_letter", batch_records_max=4)
    machine.add(recs(1, 2, 3, 4, 5), 0)
    seen, verdicts = [], []
    while (call := machine.take_call(0.0)) is not None:
        seen.append((call.kind, numbers(call)))
        if call.kind is CallKind.BATCH and 3 in numbers(call):
            verdicts.append(machine.on_raised(call.id, ValueError("poison"), 0.0, 0.0))
        else:
            machine.on_returned(call.id, 0.0)
    batch, dead = CallKind.BATCH, CallKind.DEAD_LETTER
    assert seen == [
        (batch, [1, 2, 3, 4]),
        (batch, [1, 2, 3, 4]),
        (batch, [1, 2]),
        (batch, [3, 4]),
        (batch, [3]),
        (batch, [3]),
        (dead, [3]),
        (batch, [4]),
        (batch, [5]),
    ]
    assert [type(verdict) for verdict in verdicts] == [Repeat, Halve, Halve, Repeat, SendToDeadLetter]
    assert machine.low_watermark == at_record("5")
    assert machine.waiting_bytes == 0


def test_a_dead_letter_handler_that_fails_stops_the_shard_and_acknowledges_nothing():
    machine = delivery(retries_max=0, on_failure="dead_letter")
    machine.add(recs(1), 0)
    machine.on_raised(taken(machine).id, ValueError("poison"), 0.0, 0.0)
    dead = taken(machine)
    assert (dead.kind, str(dead.error)) == (CallKind.DEAD_LETTER, "poison")
    verdict = machine.on_raised(dead.id, OSError("queue is down"), 0.0, 0.0)
    assert isinstance(verdict, StopDelivery)
    assert "the dead letter of 1 records" in str(verdict.error)
    assert machine.low_watermark == TRIM_HORIZON


def test_a_dead_letter_is_acknowledged_in_manual_mode_too():
    machine = delivery(retries_max=0, on_failure="dead_letter", checkpointing="manual")
    machine.add(recs(1), 0)
    machine.on_raised(taken(machine).id, ValueError("poison"), 0.0, 0.0)
    machine.on_returned(taken(machine).id, 0.0)
    assert machine.low_watermark == at_record("1")


# --- the end, stopping and losing -----------------------------------------------------------------------


def test_a_shard_is_finished_when_its_end_is_read_and_everything_is_acknowledged():
    machine = delivery()
    machine.add(recs(1), 0)
    machine.on_shard_end((CHILD,))
    assert not machine.is_finished
    call = taken(machine)
    assert not machine.is_finished
    machine.on_returned(call.id, 0.0)
    assert machine.is_finished


def test_a_shard_without_records_is_finished_at_once():
    machine = delivery()
    machine.on_shard_end(())
    assert machine.is_finished


def test_stopping_finishes_what_is_under_way_and_gives_up_the_rest():
    machine = delivery(batch_records_max=1)
    machine.add(recs(1, 2), 0)
    call = taken(machine)
    machine.stop()
    assert not machine.is_stopped
    machine.on_returned(call.id, 0.0)
    assert machine.is_stopped
    assert machine.take_call(0.0) is None
    assert machine.low_watermark == at_record("1")


def test_a_failure_while_stopping_acknowledges_nothing_and_is_not_repeated():
    machine = delivery()
    machine.add(recs(1), 0)
    call = taken(machine)
    machine.stop()
    assert machine.on_raised(call.id, ValueError("x"), 0.0, 0.0) is None
    assert (machine.is_stopped, machine.low_watermark, machine.waiting_bytes) == (True, TRIM_HORIZON, 0)


def test_what_is_stopped_after_it_was_lost_stays_lost():
    machine = delivery(is_lifecycle_called=True)
    machine.on_returned(taken(machine).id, 0.0)
    machine.on_lease_lost()
    machine.stop()
    assert machine.phase is Phase.LOST
    assert kinds(machine) == ["LOST"]


def test_records_that_arrive_after_a_loss_are_not_delivered():
    machine = delivery()
    machine.on_lease_lost()
    machine.add(recs(1), 0)
    assert machine.take_call(0.0) is None


# --- lifecycle ------------------------------------------------------------------------------------------


def kinds(machine: ShardDelivery) -> list[str]:
    seen = []
    while (call := machine.take_call(0.0)) is not None:
        seen.append(call.kind.name)
        machine.on_returned(call.id, 0.0)
    return seen


def test_a_shard_read_to_its_end_is_told_start_records_and_end():
    machine = delivery(is_lifecycle_called=True)
    machine.add(recs(1), 0)
    machine.on_shard_end((CHILD,))
    assert kinds(machine) == ["START", "BATCH", "END"]
    assert machine.is_finished


def test_stopping_tells_stop_and_then_losing_tells_lost():
    machine = delivery(is_lifecycle_called=True)
    machine.add(recs(1), 0)
    assert kinds(machine) == ["START", "BATCH"]
    machine.stop()
    assert not machine.is_stopped
    assert kinds(machine) == ["STOP"]
    assert machine.is_stopped
    machine.on_lease_lost()
    assert kinds(machine) == ["LOST"]
    assert machine.is_stopped


def test_nothing_is_told_to_user_code_that_was_never_started():
    machine = delivery(is_lifecycle_called=True)
    machine.on_lease_lost()
    assert kinds(machine) == []
    assert machine.is_stopped


def test_lost_comes_after_the_call_under_way():
    machine = delivery(is_lifecycle_called=True)
    machine.add(recs(1), 0)
    machine.on_returned(taken(machine).id, 0.0)
    call = taken(machine)
    machine.on_lease_lost()
    assert machine.take_call(0.0) is None
    machine.on_returned(call.id, 0.0)
    assert kinds(machine) == ["LOST"]


def test_a_start_that_fails_comes_again_before_any_record():
    machine = delivery(is_lifecycle_called=True, backoff_min_s=2.0)
    machine.add(recs(1), 0)
    machine.on_raised(taken(machine).id, ValueError("x"), 0.0, 0.5)
    assert machine.take_call(0.9) is None
    assert machine.next_wake_s() == 1.0
    again = taken(machine, 1.0)
    assert (again.kind, again.attempt) == (CallKind.START, 2)


def test_no_record_comes_while_the_start_is_under_way_also_with_keys_in_parallel():
    machine = delivery(is_lifecycle_called=True, concurrency=3)
    machine.add(recs(1, 2, keys="ab"), 0)
    start = taken(machine)
    assert start.kind is CallKind.START
    assert machine.take_call(0.0) is None
    machine.on_returned(start.id, 0.0)
    assert [numbers(taken(machine)), numbers(taken(machine))] == [[1], [2]]


def test_a_start_that_was_never_begun_comes_again_at_once_and_counts_as_no_attempt():
    machine = delivery(is_lifecycle_called=True)
    machine.add(recs(1), 0)
    machine.on_not_begun(taken(machine).id)
    again = taken(machine)
    assert (again.kind, again.attempt) == (CallKind.START, 1)
    machine.on_returned(again.id, 0.0)
    assert kinds(machine) == ["BATCH"]


def test_nothing_is_told_when_the_shard_was_lost_before_its_start_was_begun():
    machine = delivery(is_lifecycle_called=True)
    start = taken(machine)
    machine.on_lease_lost()
    machine.on_not_begun(start.id)
    assert kinds(machine) == []
    assert machine.is_stopped


@pytest.mark.parametrize(
    ("failing", "told"),
    [
        ("START", []),  # not started, so there is nothing to lose
        ("STOP", ["LOST"]),
        ("END", ["LOST"]),
    ],
)
def test_what_fails_after_the_shard_was_lost_is_not_repeated_and_lost_is_told_to_what_was_started(
    failing, told
):
    machine = delivery(is_lifecycle_called=True)
    if failing != "START":
        machine.on_returned(taken(machine).id, 0.0)
    if failing == "STOP":
        machine.stop()
    if failing == "END":
        machine.on_shard_end((CHILD,))
    call = taken(machine)
    assert call.kind.name == failing
    machine.on_lease_lost()
    assert machine.on_raised(call.id, ValueError("x"), 0.0, 0.5) is None
    assert kinds(machine) == told
    assert machine.is_stopped


def test_a_lost_that_fails_is_not_told_again():
    machine = delivery(is_lifecycle_called=True)
    machine.on_returned(taken(machine).id, 0.0)
    machine.on_lease_lost()
    assert machine.on_raised(taken(machine).id, ValueError("x"), 0.0, 0.5) is None
    assert machine.is_stopped
    assert machine.next_wake_s() is None
    assert machine.take_call(99.0) is None


def test_a_start_that_fails_for_good_stops_the_shard_and_says_which_call_failed():
    machine = delivery(is_lifecycle_called=True, retries_max=1)
    machine.add(recs(1), 0)
    machine.on_raised(taken(machine).id, OSError("no database"), 0.0, 0.0)
    verdict = machine.on_raised(taken(machine).id, OSError("no database"), 0.0, 0.0)
    assert isinstance(verdict, StopDelivery)
    assert str(verdict.error) == (
        "shard shardId-0: user code failed 2 times on the notification that a shard begins: OSError: no database; "
        "nothing after TRIM_HORIZON is acknowledged"
    )
    assert machine.is_stopped
    assert kinds(machine) == []


def test_the_end_without_a_checkpoint_stops_the_shard_and_says_why():
    machine = delivery(is_lifecycle_called=True, checkpointing="manual")
    machine.add(recs(1), 0)
    machine.on_shard_end((CHILD,))
    for _ in range(2):
        machine.on_returned(taken(machine).id, 0.0)
    end = taken(machine)
    verdict = machine.on_returned(end.id, 0.0)
    assert isinstance(verdict, StopDelivery)
    assert "1 records are not checkpointed" in str(verdict.error)
    assert not machine.is_finished


# --- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"batch_records_max": 0},
        {"retries_max": -1},
        {"backoff_min_s": 0},
        {"on_failure": "skip"},
        {"checkpointing": "never"},
        {"checkpoint_interval_s": -1},
        {"window_records_max": 0},
    ],
)
def test_an_option_out_of_range_is_refused_by_name(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        DeliveryOptions(**wrong)


# --- whatever happens -----------------------------------------------------------------------------------


@given(st.data())
def test_every_record_is_done_in_order_per_key_and_the_low_water_never_passes_an_unfinished_one(data):
    concurrency = data.draw(st.integers(1, 4))
    keys = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=25))
    poison = data.draw(st.sets(st.integers(1, len(keys)), max_size=2))
    machine = delivery(
        concurrency=concurrency,
        batch_records_max=data.draw(st.integers(1, 5)),
        retries_max=1,
        on_failure="dead_letter",
        window_records_max=data.draw(st.sampled_from([2, 5, 100])),
    )
    records = [Rec(str(index + 1), key) for index, key in enumerate(keys)]
    now_s, done, dead, under_way, low = 0.0, [], [], {}, 0
    fed = 0
    for step in range(400):
        if fed < len(records) and (step > 60 or data.draw(st.booleans())):
            machine.add(records[fed : fed + 3], 0)
            fed = min(len(records), fed + 3)
            if fed == len(records):
                machine.on_shard_end((CHILD,))
        call = machine.take_call(now_s)
        if call is not None:
            busy = {record.partition_key for other in under_way.values() for record in other.records}
            assert concurrency == 1 or not busy & {record.partition_key for record in call.records}
            under_way[call.id] = call
            assert len(under_way) <= concurrency
        if under_way and (call is None or step > 60 or data.draw(st.booleans())):
            finished = under_way.pop(data.draw(st.sampled_from(sorted(under_way))))
            if finished.kind is CallKind.BATCH and poison & set(numbers(finished)):
                machine.on_raised(finished.id, ValueError("x"), now_s, 0.5)
            else:
                (dead if finished.kind is CallKind.DEAD_LETTER else done).extend(finished.records)
                machine.on_returned(finished.id, now_s)
        now_s += 0.5
        settled = {int(record.sequence_number) for record in done + dead}
        reached = int(machine.low_watermark.sequence_number) if machine.low_watermark.is_record else 0
        assert reached >= low
        assert set(range(1, reached + 1)) <= settled
        low = reached
        if machine.is_finished:
            break
    assert machine.is_finished
    assert low == len(records)
    assert {int(record.sequence_number) for record in dead} == poison
    assert sorted(int(r.sequence_number) for r in done + dead) == list(range(1, len(records) + 1))
    for key in "abcd":
        mine = [int(r.sequence_number) for r in done if r.partition_key == key]
        assert mine == sorted(mine)
    assert machine.waiting_bytes == 0


# --- what is not for user code --------------------------------------------------------------------------


def test_what_is_skipped_behind_everything_acknowledged_is_done():
    machine = delivery()
    machine.skip(at_record("5"), 0.0)
    assert (machine.low_watermark, machine.plan_checkpoint(0.0)) == (at_record("5"), at_record("5"))
    machine.on_checkpoint_sent(at_record("5"), 0.0)
    machine.add(recs(6), 0)
    machine.on_returned(taken(machine).id, 0.0)
    machine.skip(at_record("7"), 0.0)
    machine.skip(at_record("8", 3), 0.0)
    assert (machine.low_watermark, machine.last_delivered) == (at_record("8", 3), at_record("6"))


def test_what_is_skipped_behind_an_unacknowledged_record_waits_for_it():
    machine = delivery(checkpoint_interval_s=5.0)
    machine.add(recs(1, 2), 0)
    machine.skip(at_record("3"), 0.0)
    machine.skip(at_record("4"), 0.0)
    machine.add(recs(5), 0)
    machine.skip(at_record("6"), 0.0)
    assert (machine.low_watermark, machine.next_wake_s()) == (TRIM_HORIZON, None)
    call = taken(machine)
    machine.acknowledge_through(at_record("1"), 0.0, 0)
    assert machine.low_watermark == at_record("1")
    machine.acknowledge_through(at_record("2"), 0.0, 1)
    assert machine.low_watermark == at_record("4")
    machine.on_returned(call.id, 0.0)
    assert machine.low_watermark == at_record("6")


def test_keys_in_parallel_skip_when_the_last_of_them_is_acknowledged():
    machine = delivery(concurrency=2)
    machine.add(recs(1, 2, keys="ab"), 0)
    machine.skip(at_record("3"), 0.0)
    first, second = taken(machine), taken(machine)
    machine.on_returned(second.id, 0.0)
    assert machine.low_watermark == TRIM_HORIZON
    machine.on_returned(first.id, 0.0)
    assert machine.low_watermark == at_record("3")


def test_the_last_delivered_record_may_be_checkpointed_again_behind_what_is_skipped():
    machine = delivery(checkpointing="manual")
    machine.add(recs(1, 2), 0)
    machine.on_returned(taken(machine).id, 0.0)
    machine.acknowledge_through(at_record("2"), 0.0)
    machine.skip(at_record("3"), 0.0)
    machine.acknowledge_through(machine.last_delivered, 0.0)
    assert machine.low_watermark == at_record("3")
    with pytest.raises(UsageError, match=r"cannot checkpoint 1\.0: the checkpoint is at 3\.0"):
        machine.acknowledge_through(at_record("1"), 0.0)


def test_a_shard_that_is_given_up_skips_nothing_more():
    machine = delivery()
    machine.stop()
    machine.skip(at_record("5"), 0.0)
    assert machine.low_watermark == TRIM_HORIZON
