"""`penstock.testing`: handlers and processors are run over records by the consumer's own code, in virtual time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import testing
from penstock.consumer import ConsumerOptions
from penstock.errors import (
    HandlerFailed,
    LeaseLost,
    OptionError,
    Unavailable,
    UsageError,
)


def data_of(records):
    return [record.data for record in records]


def refuse(*refused):
    """A handler that cannot take some payloads."""

    def handle(batch):
        for record in batch:
            if record.data in refused:
                raise ValueError(f"cannot take {record.data!r}")

    return handle


def do_nothing(batch):
    """A handler."""


def test_a_handler_is_given_all_records_and_its_checkpoint_is_the_last():
    run = testing.run(do_nothing, testing.records("a", "b", "c"))
    assert [data_of(batch) for batch in run.batches] == [[b"a", b"b", b"c"]]
    assert run.checkpoint == run.records[-1]
    assert (run.left, run.dead_letters, run.retries, run.ended_by) == ([], [], [], "stop")


def test_the_options_are_those_of_the_consumer():
    run = testing.run(do_nothing, testing.records("a", "b", "c"), max_records=2)
    assert [data_of(batch) for batch in run.batches] == [[b"a", b"b"], [b"c"]]
    whole = ConsumerOptions(max_records=1, starting_position="LATEST", retrieval="auto", fan_out_after_s=5.0)
    assert len(testing.run(do_nothing, testing.records("a", "b"), options=whole).batches) == 2
    with pytest.raises(OptionError, match="did you mean max_records"):
        testing.run(do_nothing, testing.records("a"), max_record=2)


def test_a_run_without_records_stops_at_once():
    run = testing.run(do_nothing, testing.records())
    assert (run.calls, run.checkpoint, run.ended_by) == ([], None, "stop")


def test_a_failing_call_is_repeated_after_pauses_that_cost_no_time():
    failures = iter([ValueError("once"), ValueError("twice")])

    def handle(batch):
        error = next(failures, None)
        if error is not None:
            raise error

    began_s = time.monotonic()
    run = testing.run(handle, testing.records("a"), handler_backoff_min_s=60.0, handler_backoff_max_s=600.0)
    assert time.monotonic() - began_s < 30
    assert [call.wait_s for call in run.retries] == [60.0, 120.0]
    assert [(call.attempt, str(call.error)) for call in run.calls] == [(1, "once"), (2, "twice"), (3, "None")]
    assert run.checkpoint == run.records[0]


def test_the_record_that_fails_goes_to_the_dead_letters_and_no_other():
    run = testing.run(refuse(b"b"), testing.records("a", "b", "c"), on_failure="dead_letter")
    assert run.dead_letters == [run.records[1]]
    assert run.checkpoint == run.records[-1]
    letter = next(call for call in run.calls if call.kind == "dead_letter")
    assert str(letter.reason) == "cannot take b'b'"


def test_a_dead_letter_handler_is_called_and_may_fail_itself():
    taken = []
    run = testing.run(
        refuse(b"b"),
        testing.records("a", "b"),
        on_failure="dead_letter",
        dead_letter=lambda batch, error: taken.append((data_of(batch), str(error))),
    )
    assert taken == [([b"b"], "cannot take b'b'")]
    assert run.dead_letters == [run.records[1]]

    def cannot(batch, error):
        raise OSError("the disk is full")

    run = testing.run(
        refuse(b"b"),
        testing.records("a", "b"),
        on_failure="dead_letter",
        dead_letter=cannot,
        may_fail=True,
    )
    assert (run.dead_letters, run.checkpoint, run.left) == ([], run.records[0], [run.records[1]])
    assert isinstance(run.failure.__cause__, OSError)


@pytest.mark.parametrize("policy", ["stop_shard", "stop_worker"])
def test_a_handler_that_fails_for_good_fails_the_test(policy):
    with pytest.raises(HandlerFailed) as failed:
        testing.run(refuse(b"b"), testing.records("a", "b"), on_failure=policy, max_records=1)
    assert str(failed.value.__cause__) == "cannot take b'b'"


@pytest.mark.parametrize("policy", ["stop_shard", "stop_worker"])
def test_a_handler_that_may_fail_leaves_a_run_to_look_at(policy):
    run = testing.run(
        refuse(b"b"), testing.records("a", "b", "c"), on_failure=policy, max_records=1, may_fail=True
    )
    assert (run.ended_by, run.checkpoint, data_of(run.left)) == ("failure", run.records[0], [b"b", b"c"])
    assert len(run.batches) == 1 + 6


def test_a_failure_of_the_test_itself_is_no_failure_of_the_handler():
    def handle(batch):
        pytest.fail("the test says so")

    with pytest.raises(pytest.fail.Exception, match="the test says so"):
        testing.run(handle, testing.records("a"), may_fail=True)

    def interrupt(batch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        testing.run(interrupt, testing.records("a"))


def test_a_handler_of_another_kind_is_refused_as_by_the_consumer():
    async def handle(batch):
        """For AsyncConsumer."""

    with pytest.raises(UsageError, match="AsyncConsumer"):
        testing.run(handle, testing.records("a"))
    with pytest.raises(UsageError, match="generator"):
        testing.run(lambda batch: (record for record in batch), testing.records("a"), may_fail=True)
    with pytest.raises(UsageError, match="dead_letter"):
        testing.run(do_nothing, testing.records("a"), dead_letter=lambda batch, error: None)


def test_a_manual_checkpoint_is_stored_when_it_returns():
    def handle(batch):
        batch.checkpoint(batch[1])

    run = testing.run(handle, testing.records("a", "b", "c"), checkpointing="manual")
    assert (run.checkpoints, data_of(run.left)) == ([run.records[1]], [b"c"])


def test_acknowledgements_move_the_checkpoint_up_to_the_first_gap():
    def handle(batch):
        batch.acknowledge(batch[0], batch[2])

    run = testing.run(handle, testing.records("a", "b", "c"), checkpointing="manual")
    assert run.checkpoint == run.records[0]


def test_a_handler_that_checkpoints_and_then_fails_gets_the_rest_again():
    def handle(batch):
        if batch.attempt == 1:
            batch.checkpoint(batch[0])
            raise ValueError("later")
        batch.checkpoint()

    run = testing.run(handle, testing.records("a", "b"), checkpointing="manual")
    assert [data_of(batch) for batch in run.batches] == [[b"a", b"b"], [b"b"]]
    assert run.checkpoints == run.records


def test_the_next_worker_begins_behind_the_checkpoint_also_inside_an_aggregate():
    made = testing.records("a") + testing.aggregate("b", "c", "d") + testing.records("e")

    def handle(batch):
        batch.checkpoint(next(record for record in batch if record.data in {b"c", b"e"}))

    first = testing.run(handle, made, checkpointing="manual")
    assert (first.checkpoint, data_of(first.left)) == (made[2], [b"d", b"e"])
    second = testing.run(handle, first.left, checkpointing="manual")
    assert [data_of(batch) for batch in second.batches] == [[b"d", b"e"]]
    assert (second.checkpoints, second.left) == ([made[4]], [])


def test_keys_run_in_parallel_lanes_and_a_slow_one_holds_back_the_checkpoint_alone():
    made = testing.records("a1", partition_key="a") + testing.records("b1", "b2", partition_key="b")
    run = testing.run(refuse(b"a1"), made, concurrency=2, may_fail=True)
    assert data_of(record for batch in run.batches for record in batch)[:3] == [b"a1", b"b1", b"b2"]
    assert (run.checkpoint, run.left) == (None, list(made))


def test_a_call_that_returns_a_future_lasts_until_that_is_done():
    with ThreadPoolExecutor(2) as pool:

        def handle(batch):
            return pool.submit(batch.checkpoint)

        run = testing.run(handle, testing.records("a", "b"), checkpointing="manual", max_records=1)
    assert run.checkpoints == run.records


def test_a_lease_that_is_lost_between_two_batches_ends_the_delivery():
    run = testing.run(
        do_nothing,
        testing.records("a", "b"),
        max_records=1,
        faults=testing.Faults(lease_lost_after=1),
    )
    assert (run.ended_by, len(run.batches), run.checkpoint) == ("lease_lost", 1, run.records[0])


def test_a_lease_that_is_lost_during_a_call_cannot_be_checkpointed():
    seen = []

    def handle(batch):
        seen.append(batch.is_owned)
        with pytest.raises(LeaseLost):
            batch.checkpoint()

    run = testing.run(
        handle,
        testing.records("a"),
        checkpointing="manual",
        faults=testing.Faults(lease_lost_during=1),
    )
    assert (run.ended_by, seen) == ("lease_lost", [False])


def test_a_refused_checkpoint_is_unavailable_and_stored_later():
    errors = []

    def handle(batch):
        try:
            batch.checkpoint()
        except Unavailable as error:
            errors.append(error)

    run = testing.run(
        handle,
        testing.records("a", "b"),
        checkpointing="manual",
        max_records=1,
        faults=testing.Faults(refused_checkpoints=1),
    )
    assert len(errors) == 1
    assert run.checkpoint == run.records[1]


def test_a_stop_in_mid_batch_lets_the_call_finish_and_delivers_no_more():
    run = testing.run(
        do_nothing, testing.records("a", "b", "c"), max_records=1, faults=testing.Faults(stop_during=2)
    )
    assert (len(run.batches), run.checkpoint, data_of(run.left)) == (2, run.records[1], [b"c"])


def test_a_shard_ends_when_everything_before_its_end_is_done():
    run = testing.run(do_nothing, testing.records("a", "b"), shard_ends=True)
    assert (run.ended_by, run.checkpoint) == ("shard_end", run.records[-1])
    empty = testing.run(do_nothing, testing.records(), shard_ends=True)
    assert (empty.ended_by, empty.checkpoint, empty.calls) == ("shard_end", None, [])


def test_a_shard_does_not_end_before_its_records_are_acknowledged():
    run = testing.run(do_nothing, testing.records("a"), shard_ends=True, checkpointing="manual")
    assert (run.ended_by, run.checkpoint, data_of(run.left)) == ("stop", None, [b"a"])


@pytest.mark.parametrize("wrong", [{"lease_lost_after": 0}, {"stop_during": -1}, {"refused_checkpoints": -1}])
def test_faults_that_cannot_happen_are_refused(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        testing.Faults(**wrong)


@pytest.mark.parametrize("late", [{"lease_lost_after": 3}, {"lease_lost_during": 3}, {"stop_during": 3}])
def test_a_fault_at_a_call_that_is_never_made_is_a_mistake_of_the_test(late):
    with pytest.raises(UsageError, match=f"{next(iter(late))}=3: the handler was called 2 times"):
        testing.run(do_nothing, testing.records("a", "b"), max_records=1, faults=testing.Faults(**late))


def test_two_runs_are_the_same():
    made = testing.records(*map(str, range(50)))
    runs = [
        testing.run(refuse(b"7", b"31"), made, on_failure="dead_letter", concurrency=3, max_records=5)
        for _ in range(2)
    ]
    first, second = (
        [(call.kind, call.records, call.attempt, call.wait_s) for call in run.calls] for run in runs
    )
    assert first == second
    assert sorted(data_of(runs[0].dead_letters)) == [b"31", b"7"]
    assert runs[0].checkpoints == runs[1].checkpoints
