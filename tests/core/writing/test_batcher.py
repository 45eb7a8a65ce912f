"""The put batcher: nothing lost, order per key kept, no limit exceeded, whatever the service does."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.hash_key import FULL_RANGE, HashRange
from penstock.core.put_entry import EntryAnswer
from penstock.core.shard import Shard
from penstock.core.writing.batcher import Batcher
from penstock.core.writing.batcher_steps import (
    BatcherSettings,
    FetchShards,
    NoProgress,
    PutRequest,
    RequestFailure,
    WaitUntil,
)
from put_world import Driver, Troubles, World

ONE = (Shard("shardId-000000000000", FULL_RANGE),)
HALF = FULL_RANGE.end // 2
TWO = (
    Shard("shardId-000000000001", HashRange(0, HALF), ("shardId-000000000000",)),
    Shard("shardId-000000000002", HashRange(HALF + 1, FULL_RANGE.end), ("shardId-000000000000",)),
)
CLOSED = Shard("shardId-000000000000", FULL_RANGE, (), "0", "1")
LOW, HIGH = "0", str(FULL_RANGE.end)


def firsts(log, key):
    """Return the data of a key in the order in which each was first seen."""
    return list(dict.fromkeys(data for its_key, data in log if its_key == key))


probability = st.sampled_from([0.0, 0.05, 0.3])
troubles = st.builds(
    Troubles,
    throttle=probability,
    internal=probability,
    lost_answer=probability,
    unavailable=probability,
    call_throttled=probability,
    reshard=st.sampled_from([0.0, 0.05, 0.2]),
    listing_fails=probability,
    listing_lags=st.sampled_from([0.0, 0.5]),
)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    trouble=troubles,
    aggregates=st.booleans(),
    keeps_key_order=st.booleans(),
    keys=st.integers(1, 12),
    count=st.integers(1, 150),
    request_count_max=st.sampled_from([1, 3, 500]),
    aggregate_bytes_max=st.sampled_from([64, 400]),
)
def test_nothing_is_lost_and_each_key_first_arrives_in_order(
    seed, trouble, aggregates, keeps_key_order, keys, count, request_count_max, aggregate_bytes_max
):
    chance = random.Random(seed)
    world = World(chance, trouble, shard_count=chance.randint(1, 4))
    batcher = Batcher(
        BatcherSettings(
            aggregates=aggregates,
            keeps_key_order=keeps_key_order,
            request_record_count_max=request_count_max,
            request_bytes_max=1000,
            aggregate_bytes_max=aggregate_bytes_max,
            no_progress_deadline_s=1e9,
        )
    )
    driver = Driver(batcher, world)
    given_records = []
    for number in range(count):
        key, data = f"key-{chance.randrange(keys)}", b"%d" % number + b"." * chance.choice([0, 20, 90])
        given_records.append((key, data))
        batcher.add(data, key, None, driver.now_s)
        for _ in range(chance.randrange(3)):
            driver.step(flushes=False)
    driver.finish()
    assert sorted(driver.delivered) == sorted(given_records)
    assert driver.refused == []
    assert set(world.log) == set(given_records)
    assert (batcher.waiting_count, batcher.waiting_bytes, batcher._in_flight) == (0, 0, 0)
    surplus = len(world.log) - len(given_records)
    assert surplus <= driver.duplicates
    if keeps_key_order:
        for key in {key for key, _ in given_records}:
            assert firsts(world.log, key) == [data for its_key, data in given_records if its_key == key]


def make(shards=ONE, **changes):
    batcher = Batcher(BatcherSettings(**{"linger_s": 0.0, **changes}))
    batcher.add(b"first", "a", None, 0.0)
    assert batcher.plan_step(0.0) == FetchShards("no shard map yet", with_closed=False)
    batcher.on_shards(shards, 0.0)
    return batcher


def sent(request):
    return [[record.data for record in entry.records] for entry in request.entries]


def test_a_refused_record_holds_back_the_later_ones_of_its_key_only():
    batcher = make()
    for key, data in (("b", b"b1"), ("a", b"a2"), ("b", b"b2")):
        batcher.add(data, key, None, 0.0)
    request = batcher.plan_step(0.0)
    assert sent(request) == [[b"first"], [b"b1"]]
    assert isinstance(batcher.plan_step(0.0), WaitUntil)
    slow = EntryAnswer(error_code="ProvisionedThroughputExceededException", error_message="slow")
    result = batcher.on_answers(request, [slow, EntryAnswer("1", ONE[0].shard_id)], 1.0, 0.5)
    assert result.retry_counts == {"ProvisionedThroughputExceededException": 1}
    assert result.pauses == {ONE[0].shard_id: 0.05}
    assert batcher.plan_step(1.0) == WaitUntil(1.05, "every shard is in flight, paused or lingering")
    # The rate has fallen, so the request is small; what was refused goes first.
    assert sent(batcher.plan_step(1.05))[0] == [b"first"]


@pytest.mark.parametrize("aggregates", [False, True])
def test_what_a_request_leaves_behind_does_not_linger_anew(aggregates):
    batcher = make(linger_s=1.0, aggregates=aggregates, aggregate_count_max=2)
    batcher.add(b"one", "a", None, 0.0)
    batcher.add(b"two", "a", None, 0.1)
    for number in range(1 if aggregates else 2):
        request = batcher.plan_step(1.0)
        batcher.on_answers(request, [EntryAnswer(str(number), ONE[0].shard_id)], 1.0, 0.5)
    assert batcher.plan_step(1.05) == WaitUntil(1.1, "every shard is in flight, paused or lingering")
    assert sent(batcher.plan_step(1.1)) == [[b"two"]]


def test_no_key_waits_longer_because_another_one_has_younger_records():
    batcher = make(linger_s=0.1, aggregates=False)
    put_count, worst_s = {"a": 0, "b": 0}, 0.0
    for tick in range(2000):
        now_s = tick / 100
        for key, every in (("a", 8), ("b", 2)):
            if tick % every == 0:
                batcher.add(b"x", key, None, now_s)
                put_count[key] += 1
        request = batcher.plan_step(now_s)
        if isinstance(request, PutRequest):
            worst_s = max(
                worst_s, *(now_s - each.put_s for entry in request.entries for each in entry.records)
            )
            answers = [EntryAnswer(str(place), ONE[0].shard_id) for place in range(len(request.entries))]
            batcher.on_answers(request, answers, now_s, 0.5)
    assert put_count == {"a": 250, "b": 1000}
    assert worst_s <= 0.1 + 0.02  # the ticks, and a request a tick
    assert batcher.waiting_count <= 10


def test_with_aggregates_one_goes_into_each_shard_at_a_time():
    batcher = make(TWO, aggregates=True)
    batcher.add(b"low", "k", LOW, 0.0)
    batcher.add(b"low 2", "k", LOW, 0.0)
    batcher.add(b"high", "k", HIGH, 0.0)
    request = batcher.plan_step(0.0)
    assert (
        sorted(sent(request)) == sorted([[b"low", b"low 2"], [b"first", b"high"]])
        or len(request.entries) == 2
    )
    batcher.add(b"low 3", "k", LOW, 0.0)
    assert batcher.plan_step(0.0) == WaitUntil(None, "every shard is in flight, paused or lingering")


def test_aggregates_of_a_shard_share_a_request_as_far_as_they_share_no_key():
    batcher = make(aggregates=True, aggregate_bytes_max=150)
    for number, key in enumerate("bcdebf"):
        batcher.add(b"%d" % number + b"." * 60, key, None, 0.0)
    request = batcher.plan_step(0.0, flushes=True)
    assert [[each[:1] for each in entry] for entry in sent(request)] == [[b"f", b"0"], [b"1"], [b"2"], [b"3"]]
    answers = [
        EntryAnswer(error_code="ProvisionedThroughputExceededException"),
        *[EntryAnswer(sequence_number="1", shard_id=ONE[0].shard_id)] * 3,
    ]
    batcher.on_answers(request, answers, 0.0, 0.0)
    repeated = batcher.plan_step(60.0, flushes=True)
    # What was refused goes first. The later record of its key waits, and so does what is behind that.
    assert [[each[:1] for each in entry] for entry in sent(repeated)] == [[b"f", b"0"]]


def test_an_aggregate_that_lands_in_a_child_is_sent_again_whole_when_one_record_lies_outside():
    batcher = make(aggregates=True)
    batcher.add(b"low", "k", LOW, 0.0)
    batcher.add(b"high", "k", HIGH, 0.0)
    request = batcher.plan_step(0.0)
    assert sent(request) == [[b"first", b"low", b"high"]]
    result = batcher.on_answers(request, [EntryAnswer("1", TWO[0].shard_id)], 0.0, 0.5)
    assert result.delivered_entries == []
    wish = batcher.plan_step(0.0)
    assert wish == FetchShards(
        "shard shardId-000000000001 answered for shardId-000000000000", with_closed=True
    )
    result = batcher.on_shards((CLOSED, *TWO), 0.0)
    assert result.possible_duplicate_count == 3
    assert result.retry_counts == {"misplaced": 3}
    again = batcher.plan_step(0.0)
    assert {shard for entry in again.entries for shard in [entry.shard_id]} == {s.shard_id for s in TWO}
    assert batcher.waiting_count == 3


def test_an_aggregate_that_lands_in_a_child_whole_is_delivered():
    batcher = make(aggregates=True)
    batcher.drop_all()
    batcher.add(b"one", "k", LOW, 0.0)
    batcher.add(b"two", "k", LOW, 0.0)
    request = batcher.plan_step(0.0)
    batcher.on_answers(request, [EntryAnswer("7", TWO[0].shard_id)], 0.0, 0.5)
    assert isinstance(batcher.plan_step(0.0), FetchShards)
    result = batcher.on_shards((CLOSED, *TWO), 0.0)
    assert [(each.shard_id, each.sequence_number) for each in result.delivered_entries] == [
        (TWO[0].shard_id, "7")
    ]
    assert result.possible_duplicate_count == 0
    assert batcher.waiting_count == 0


def test_the_shards_are_listed_by_one_at_a_time():
    batcher = Batcher(BatcherSettings())
    batcher.add(b"first", "a", None, 0.0)
    assert isinstance(batcher.plan_step(0.0), FetchShards)
    assert batcher.plan_step(0.0) == WaitUntil(None, "the shards are being listed")
    batcher.on_listing_failed("no connection", 0.0, 0.5)
    assert batcher.plan_step(0.0) == WaitUntil(0.1, "the shards are listed again later")


def test_a_request_is_answered_once_and_each_entry_of_it():
    batcher = make()
    request = batcher.plan_step(0.0)
    with pytest.raises(AssertionError, match="each entry has an answer"):
        batcher.on_answers(request, [], 0.0, 0.5)
    batcher.on_answers(request, [EntryAnswer("1", ONE[0].shard_id)], 0.0, 0.5)
    with pytest.raises(AssertionError, match="answered once"):
        batcher.on_failed_call(request, RequestFailure.UNKNOWN, "no answer", 0.0, 0.5)


def test_a_map_that_is_behind_is_asked_for_ever_more_rarely():
    batcher = make()
    asked_s = []
    now_s = 0.0
    while now_s < 10:
        step = batcher.plan_step(now_s)
        if isinstance(step, FetchShards):
            asked_s.append(now_s)
            batcher.on_shards(ONE, now_s)
        elif isinstance(step, PutRequest):
            batcher.on_answers(
                step, [EntryAnswer("1", "shardId-000000000099")] * len(step.entries), now_s, 0.5
            )
            batcher.add(b"next", "a", None, now_s)
        now_s += 0.05
    assert 3 <= len(asked_s) <= 7


def test_a_plain_record_in_another_shard_that_the_map_knows_is_delivered_and_asks_for_no_new_map():
    # A listing may still show the parent open beside its children: no shard can be predicted, so records go alone.
    batcher = make((*ONE, *TWO), aggregates=True)
    batcher.add(b"low", "k", LOW, 0.0)
    request = batcher.plan_step(0.0)
    assert sent(request) == [[b"first"], [b"low"]]
    answers = [EntryAnswer("1", TWO[1].shard_id), EntryAnswer("2", TWO[0].shard_id)]
    result = batcher.on_answers(request, answers, 0.0, 0.5)
    assert [(each.shard_id, each.sequence_number) for each in result.delivered_entries] == [
        (TWO[1].shard_id, "1"),
        (TWO[0].shard_id, "2"),
    ]
    batcher.add(b"more", "k", LOW, 0.0)
    assert isinstance(batcher.plan_step(0.0), PutRequest)


def test_a_stream_that_places_records_itself_since_gets_them_plain_for_good():
    batcher = make(aggregates=True)
    batcher.add(b"other", "b", None, 0.0)
    batcher.on_shards(ONE, 0.0, aggregates=False)
    assert not batcher.aggregates
    request = batcher.plan_step(0.0)
    assert sent(request) == [[b"first"], [b"other"]]
    batcher.on_answers(
        request, [EntryAnswer("1", ONE[0].shard_id), EntryAnswer("2", ONE[0].shard_id)], 0.0, 0.5
    )
    batcher.on_shards(ONE, 1.0)
    for key in "ab":
        batcher.add(b"later", key, None, 1.0)
    assert sent(batcher.plan_step(1.0)) == [[b"later"], [b"later"]]


def test_a_shard_map_may_not_change_under_a_request():
    batcher = make()
    request = batcher.plan_step(0.0)
    with pytest.raises(AssertionError, match="changed under a request"):
        batcher.on_shards(TWO, 0.0)
    result = batcher.on_answers(request, [EntryAnswer("1", ONE[0].shard_id)], 0.0, 0.5)
    assert len(result.delivered_entries) == 1


def test_more_keys_than_are_remembered_still_go_each_to_its_shard_and_in_order():
    driver = Driver(
        Batcher(BatcherSettings(aggregates=True)), World(random.Random(1), Troubles(), shard_count=2)
    )
    # Some 16,000 keys are remembered, so the first hundred are looked up again.
    put = [(f"key {number % 17_000}", b"%d" % number) for number in range(17_100)]
    driver.batcher.add(b"before the map", "key", None, 0.0)
    driver.finish()
    for key, data in put:
        driver.batcher.add(data, key, None, driver.now_s)
    driver.finish()
    assert sorted(driver.delivered[1:]) == sorted(put)
    assert driver.duplicates == 0  # an aggregate that was packed for the wrong shard would count
    for number in range(100):
        assert firsts(driver.world.log, f"key {number}") == [b"%d" % number, b"%d" % (number + 17_000)]


def test_shards_that_cannot_be_listed_for_too_long_end_the_wait_with_the_services_word():
    batcher = Batcher(BatcherSettings(no_progress_deadline_s=10.0))
    batcher.add(b"first", "a", None, 0.0)
    for now_s in (0.0, 5.0, 10.0):
        assert isinstance(batcher.plan_step(now_s), FetchShards)
        batcher.on_listing_failed("no connection", now_s, 0.5)
    assert isinstance(batcher.plan_step(11.0), FetchShards)  # whoever stood still tries once more
    batcher.on_listing_failed("access denied", 11.0, 0.5)
    assert batcher.plan_step(11.0) == NoProgress(
        "the shards could not be listed for 11 s; last: access denied"
    )


def test_an_old_shard_map_is_fetched_anew_and_what_waits_goes_after_it():
    batcher = Batcher(BatcherSettings(linger_s=0.0, map_age_max_s=60.0))
    batcher.on_shards(ONE, 0.0)
    batcher.add(b"first", "a", None, 60.0)
    assert batcher.plan_step(60.5) == FetchShards("the shard map is old", with_closed=False)
    batcher.on_shards(TWO, 60.5)
    assert isinstance(batcher.plan_step(61.0), PutRequest)
    assert isinstance(batcher.plan_step(62.0), WaitUntil)


def test_a_shard_whose_record_has_no_room_in_a_request_comes_in_the_next():
    batcher = Batcher(BatcherSettings(linger_s=0.0, aggregates=False, request_bytes_max=1000))
    batcher.on_shards(TWO, 0.0)
    batcher.add(b"x" * 600, "a", LOW, 0.0)
    batcher.add(b"y" * 600, "a", HIGH, 0.0)
    requests = [batcher.plan_step(0.0), batcher.plan_step(0.0)]
    assert [[entry.shard_id for entry in request.entries] for request in requests] == [
        [TWO[0].shard_id],
        [TWO[1].shard_id],
    ]


def test_a_shard_that_accepts_nothing_for_too_long_ends_the_wait_by_name():
    batcher = make(no_progress_deadline_s=10.0)
    for now_s in (0.0, 5.0, 10.6):
        request = batcher.plan_step(now_s)
        batcher.on_failed_call(request, RequestFailure.UNAVAILABLE, "no connection", now_s, 0.5)
    assert batcher.plan_step(10.6) == NoProgress(
        "nothing was acknowledged by shard shardId-000000000000 for 11 s; last: no connection"
    )


def test_a_shard_whose_records_only_waited_for_others_has_not_failed():
    batcher = make(no_progress_deadline_s=10.0)
    assert isinstance(batcher.plan_step(60.0, flushes=True), PutRequest)


def test_whoever_stood_still_after_a_refusal_tries_once_more_before_giving_up():
    batcher = make(no_progress_deadline_s=10.0)
    for now_s in (0.0, 60.0):
        request = batcher.plan_step(now_s)
        assert isinstance(request, PutRequest)
        batcher.on_failed_call(request, RequestFailure.UNAVAILABLE, "no connection", now_s, 0.5)
    assert isinstance(batcher.plan_step(60.0), NoProgress)


def test_a_pause_in_the_middle_of_a_request_does_not_count_as_failing():
    batcher = make(no_progress_deadline_s=10.0)
    request = batcher.plan_step(0.0)
    assert isinstance(request, PutRequest)
    batcher.on_failed_call(request, RequestFailure.UNKNOWN, "the connection was reset", 60.0, 0.5)
    assert isinstance(batcher.plan_step(120.0), PutRequest)


def test_an_acknowledgement_begins_a_shards_deadline_anew():
    batcher = make(no_progress_deadline_s=10.0)
    batcher.on_failed_call(batcher.plan_step(0.0), RequestFailure.UNAVAILABLE, "no connection", 0.0, 0.5)
    request = batcher.plan_step(9.0)
    answers = [EntryAnswer(sequence_number="1", shard_id=ONE[0].shard_id) for _ in request.entries]
    batcher.on_answers(request, answers, 9.0, 0.5)
    batcher.add(b"later", "a", None, 9.0)
    for now_s in (15.0, 20.0):
        batcher.on_failed_call(
            batcher.plan_step(now_s), RequestFailure.UNAVAILABLE, "no connection", now_s, 0.5
        )
    assert isinstance(batcher.plan_step(25.0), PutRequest)


def test_new_records_do_not_prolong_a_dead_shards_deadline():
    batcher = make(no_progress_deadline_s=10.0)
    now_s = 0.0
    while now_s < 30:
        step = batcher.plan_step(now_s)
        if isinstance(step, NoProgress):
            break
        batcher.add(b"more", "a", None, now_s)
        if isinstance(step, PutRequest):
            batcher.on_failed_call(step, RequestFailure.UNAVAILABLE, "no connection", now_s, 0.5)
        now_s += 0.5
    assert isinstance(step, NoProgress)
    assert now_s < 16  # a pause later at most


def test_a_record_refused_for_good_is_given_back_and_the_others_go_on():
    batcher = make()
    batcher.add(b"other", "b", None, 0.0)
    request = batcher.plan_step(0.0)
    result = batcher.on_answers(
        request,
        [
            EntryAnswer(error_code="KMSDisabledException", error_message="no"),
            EntryAnswer("1", ONE[0].shard_id),
        ],
        0.0,
        0.5,
    )
    assert [(each.entry.records[0].data, each.why) for each in result.refused_entries] == [
        (b"first", "KMSDisabledException no")
    ]
    assert [each.entry.records[0].data for each in result.delivered_entries] == [b"other"]
    assert batcher.waiting_count == 0


@pytest.mark.parametrize(
    "code",
    [
        "ProvisionedThroughputExceededException",
        "KMSThrottlingException",
        "ThrottlingException",
        "InternalFailure",
        "ServiceUnavailable",
        "ServiceUnavailableException",
    ],
)
def test_an_entry_that_is_refused_for_now_is_sent_again_however_often(code):
    batcher = make()
    now_s = 0.0
    for _ in range(30):
        result = batcher.on_answers(batcher.plan_step(now_s), [EntryAnswer(error_code=code)], now_s, 0.5)
        assert (result.refused_entries, result.retry_counts) == ([], {code: 1})
        now_s += 6.0
    result = batcher.on_answers(batcher.plan_step(now_s), [EntryAnswer("1", ONE[0].shard_id)], now_s, 0.5)
    assert [each.entry.records[0].data for each in result.delivered_entries] == [b"first"]


def test_an_entry_that_is_refused_with_an_unknown_code_is_sent_a_few_times_and_then_given_back():
    batcher = make()
    now_s, attempts = 0.0, 0
    while batcher.waiting_count:
        result = batcher.on_answers(
            batcher.plan_step(now_s), [EntryAnswer(error_code="NewCode", error_message="?")], now_s, 0.5
        )
        attempts += 1
        now_s += 6.0
    assert attempts == 8
    assert [each.why for each in result.refused_entries] == ["NewCode ?"]


def test_a_known_final_code_ends_what_unknown_ones_began():
    batcher = make()
    batcher.on_answers(batcher.plan_step(0.0), [EntryAnswer(error_code="NewCode")], 0.0, 0.5)
    result = batcher.on_answers(
        batcher.plan_step(9.0), [EntryAnswer(error_code="KMSDisabledException")], 9.0, 0.5
    )
    assert len(result.refused_entries) == 1


def test_an_entry_without_any_answer_is_sent_again_and_may_be_there_twice():
    batcher = make()
    result = batcher.on_answers(batcher.plan_step(0.0), [EntryAnswer()], 0.0, 0.5)
    assert (result.retry_counts, result.possible_duplicate_count) == ({"NoAnswer": 1}, 1)


def test_a_request_without_an_answer_counts_as_possible_duplicates_and_is_sent_again():
    batcher = make()
    request = batcher.plan_step(0.0)
    result = batcher.on_failed_call(request, RequestFailure.UNKNOWN, "timeout", 0.0, 0.5)
    assert (result.possible_duplicate_count, result.retry_counts) == (1, {"unknown": 1})
    assert sent(batcher.plan_step(9.0)) == [[b"first"]]


def aggregate_that_lands_in_an_unknown_shard(batcher):
    for number in range(2):
        batcher.add(b"%d" % number, "b", None, 0.0)
    request = batcher.plan_step(1.0)
    assert request.entries[0].is_aggregate
    batcher.on_answers(request, [EntryAnswer("5", TWO[0].shard_id)], 1.0, 0.5)


def test_a_listing_that_lags_behind_a_reshard_is_asked_again_before_anything_is_sent_twice():
    batcher = make(aggregates=True)
    aggregate_that_lands_in_an_unknown_shard(batcher)
    now_s = 1.0
    for _ in range(3):
        assert isinstance(batcher.plan_step(now_s), FetchShards)
        result = batcher.on_shards(ONE, now_s)
        assert (result.delivered_entries, result.possible_duplicate_count) == ([], 0)
        waits = batcher.plan_step(now_s)
        assert isinstance(waits, WaitUntil)  # nothing overtakes what is not settled
        now_s = waits.until_s
    whole = Shard(TWO[0].shard_id, FULL_RANGE, (ONE[0].shard_id,))
    batcher.plan_step(now_s)
    result = batcher.on_shards([CLOSED, whole], now_s)
    assert [each.shard_id for each in result.delivered_entries] == [whole.shard_id]
    assert (batcher.waiting_count, result.possible_duplicate_count) == (0, 0)
    assert now_s < 5


def test_an_aggregate_in_a_shard_that_no_listing_ever_names_is_sent_again_as_plain_records():
    batcher = make(aggregates=True)
    aggregate_that_lands_in_an_unknown_shard(batcher)
    now_s, fetched_count, result = 1.0, 0, None
    while result is None or not result.possible_duplicate_count:
        step = batcher.plan_step(now_s)
        if isinstance(step, FetchShards):
            fetched_count += 1
            result = batcher.on_shards(ONE, now_s)
        else:
            now_s = step.until_s
    assert (fetched_count, result.possible_duplicate_count) == (5, 3)
    assert now_s < 5
    while not isinstance(step := batcher.plan_step(now_s, flushes=True), PutRequest):
        now_s = step.until_s if isinstance(step, WaitUntil) else now_s
        if isinstance(step, FetchShards):
            batcher.on_shards(ONE, now_s)
    assert sent(step) == [[b"first"]]  # alone, and the next one only when it is acknowledged


def test_without_permission_to_list_records_go_plain_through_one_queue():
    batcher = Batcher(BatcherSettings(aggregates=True, linger_s=0.0))
    batcher.add(b"one", "a", None, 0.0)
    batcher.add(b"two", "b", None, 0.0)
    assert isinstance(batcher.plan_step(0.0), FetchShards)
    batcher.on_listing_denied(0.0)
    request = batcher.plan_step(0.0)
    assert sent(request) == [[b"one"], [b"two"]]
    result = batcher.on_answers(request, [EntryAnswer("1", "x"), EntryAnswer("2", "y")], 0.0, 0.5)
    assert len(result.delivered_entries) == 2


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), trouble=troubles, aggregates=st.booleans(), keeps_key_order=st.booleans())
def test_what_expires_is_given_up_once_and_the_rest_keeps_its_order(
    seed, trouble, aggregates, keeps_key_order
):
    chance = random.Random(seed)
    world = World(chance, trouble, shard_count=chance.randint(1, 3))
    batcher = Batcher(
        BatcherSettings(
            aggregates=aggregates,
            keeps_key_order=keeps_key_order,
            request_record_count_max=3,
            no_progress_deadline_s=1e9,
        )
    )
    driver = Driver(batcher, world)
    put, expired = [], []
    for number in range(chance.randint(1, 80)):
        record = (f"key-{chance.randrange(5)}", b"%d" % number)
        put.append(record)
        batcher.add(record[1], record[0], None, driver.now_s)
        for _ in range(chance.randrange(3)):
            driver.step(flushes=False)
        if chance.random() < 0.1:
            moment_s = driver.now_s - chance.choice([0.0, 0.5, 5.0])
            dropped = batcher.drop_expired(moment_s)
            assert all(waiting.put_s < moment_s for waiting in dropped)
            assert [waiting.number for waiting in dropped] == sorted(waiting.number for waiting in dropped)
            expired += [(waiting.partition_key, waiting.data) for waiting in dropped]
    driver.finish()
    assert sorted(driver.delivered + expired) == sorted(put)
    assert (batcher.waiting_count, batcher.waiting_bytes) == (0, 0)
    if keeps_key_order:
        for key in {key for key, _ in put}:
            delivered = [data for its_key, data in put if its_key == key and (its_key, data) not in expired]
            assert [data for data in firsts(world.log, key) if (key, data) not in expired] == delivered


def test_a_dropped_request_is_its_owners_once():
    batcher = make()
    request = batcher.plan_step(0.0)
    assert [record.data for record in batcher.drop_request(request)] == [b"first"]
    assert batcher.drop_request(request) == []
    assert (batcher.waiting_count, batcher._in_flight) == (0, 0)


def test_a_record_waits_for_company_no_longer_than_it_may():
    batcher = make(linger_s=0.1)
    assert batcher.plan_step(0.0) == WaitUntil(0.1, "every shard is in flight, paused or lingering")
    assert isinstance(batcher.plan_step(0.0, flushes=True), PutRequest)
    batcher = make(linger_s=0.1)
    assert isinstance(batcher.plan_step(0.1), PutRequest)


@pytest.mark.parametrize(("count", "expected"), [(499, WaitUntil), (500, PutRequest), (501, PutRequest)])
def test_a_full_request_does_not_wait_for_company(count, expected):
    batcher = make(linger_s=60.0)
    for number in range(count - 1):
        batcher.add(b"x", f"key {number}", None, 0.0)
    step = batcher.plan_step(0.0)
    assert isinstance(step, expected)
    if isinstance(step, PutRequest):
        assert len(step.entries) == 500
