"""A subscription in the batches of a query, in virtual time: its use, its ends, and the rows of the batches."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise

import pytest

from penstock.core.limits import SHARD_READ_BYTES_PER_S_MAX
from penstock.core.position import SHARD_END, TRIM_HORIZON, at_record
from penstock.core.reading.resume import IteratorStart, IteratorType
from penstock.errors import AccessDenied, ClaimConflict, NotFound, ResourceBusy, Throttled, Unavailable
from penstock.ports.fan_out import FanOutEnded, FanOutFailed
from penstock.spark.tasks.kept_subscriptions import KEPT_MAX, UNUSED_S, KeptSubscriptions
from penstock.spark.tasks.pushed_reading import PATIENCE_S, PushedReading
from penstock.spark.tasks.task_subscription import TaskSubscription
from pushed_shard import CONSUMER, SHARD, Process, Query

KEY = ("service", CONSUMER, SHARD)
BEGINNING = IteratorStart(IteratorType.TRIM_HORIZON)


def subscribed_query(count=100, **options):
    """A query whose first batch has read everything, and has left a subscription."""
    query = Query(**options)
    query.service.put(count)
    assert query.process.read() == list(range(count))
    return query


def test_polling_begins_at_once_and_a_subscription_takes_over_when_it_is_accepted():
    query = Query()
    query.service.put(1000)
    query.service.event_record_count = 100
    assert query.process.read() == list(range(1000))
    first_s, _ = query.service.polled[0]
    assert first_s <= query.time.now_s
    assert 1 <= len(query.service.polled) <= 2
    assert query.note.pushed_count >= 980
    assert query.note.subscription_ends == {}


def test_the_next_batch_uses_the_subscription_at_exactly_its_start():
    query = subscribed_query()
    calls = len(query.service.polled)
    for batch in range(5):
        query.service.put(10)
        assert query.process.read() == list(range(100 + 10 * batch, 110 + 10 * batch))
        assert query.note.pushed_count == 10
    assert len(query.service.polled) == calls
    assert len(query.service.subscribed) == 1


def test_a_batch_without_permission_polls_alone_and_a_long_one_subscribes_later():
    query = subscribed_query()
    elsewhere = Process(query, "elsewhere")
    query.service.put(10)
    query.time.sleep(10.0)  # the service would accept it
    query.subscribe_after_s = 6.2
    assert elsewhere.read() == list(range(100, 110))
    assert len(query.service.subscribed) == 1
    query.service.put(1000)  # ten seconds of pages
    assert elsewhere.read() == list(range(110, 1110))
    assert len(query.service.subscribed) == 2
    assert query.note.subscription_ends == {}


def test_an_event_is_awaited_without_a_page_in_hand_and_dated_before_one_is_free():
    query = subscribed_query()
    time, stream = query.time, query.service.streams[0]
    held, asked = [], []

    @contextmanager
    def wait_for_a_page():
        time.sleep(30.0)  # the other shards of the task hold them all
        held.append(True)
        yield
        held.pop()

    request = stream.request
    stream.request = lambda: (asked.append(bool(held)), request())
    query.process.hold_page = wait_for_a_page
    query.service.put(10)
    put_ms = time.wall_ms()
    assert query.process.read() == list(range(100, 110))
    assert query.note.pushed_count == 10
    assert asked
    assert not any(asked)
    assert put_ms <= query.note.tip_ms < put_ms + 30_000


def test_at_another_position_a_subscription_is_closed_and_the_shard_is_polled():
    query = subscribed_query()
    elsewhere = Process(query, "elsewhere")
    query.service.put(10)
    assert elsewhere.read() == list(range(100, 110))
    query.service.put(10)
    assert query.process.read() == list(range(110, 120))
    assert query.note.pushed_count == 0
    assert len(query.process.kept) == 0 or query.service.open_count <= 1


def test_a_repeat_reads_to_its_claim_by_polling_alone():
    query = subscribed_query()
    query.service.put(10)
    assert query.process.read() == list(range(100, 110))
    query.service.put(10)
    end = query.claim.end
    events = query.service.streams[0].event_count
    again = query.process.read(query.batch, start=at_record(query.service.sequence_number(99)))
    assert again == list(range(100, 110))
    assert query.claim.end == end
    assert query.service.streams[0].event_count == events
    assert query.process.read() == list(range(110, 120))


def test_an_event_that_a_limit_cuts_keeps_its_rest_for_the_next_batch():
    query = subscribed_query()
    query.service.put(10)
    calls = len(query.service.polled)
    found = [query.process.read(record_count_max=4) for _ in range(3)]
    assert found == [[100, 101, 102, 103], [104, 105, 106, 107], [108, 109]]
    assert query.note.pushed_count == 2
    assert len(query.service.polled) == calls


def test_a_subscription_goes_on_only_where_everything_behind_will_come():
    query = Query()
    start = IteratorStart(IteratorType.AT_SEQUENCE_NUMBER, "1007")
    subscription = TaskSubscription(query.time.condition(), start, 0.0)
    assert not subscription.continue_from("1000", is_cut=False)
    assert not subscription.continue_from(None, is_cut=False)
    assert subscription.continue_from("1007", is_cut=False)


@pytest.mark.parametrize(
    "error",
    [ResourceBusy("another one is younger than five seconds"), NotFound("no consumer"), Unavailable("500")],
    ids=["five seconds", "no consumer", "failure"],
)
def test_a_refused_subscription_delays_nothing_and_is_counted(error):
    polling = subscribed_query(200, consumer_type="polling")
    query = Query()
    query.service.put(200)
    query.service.refusals = [error] * 9
    began_s = query.time.now_s
    assert query.process.read() == list(range(200))
    assert query.note.pushed_count == 0
    assert query.note.subscription_ends == {"refused": len(query.service.subscribed)}
    assert query.time.now_s - began_s == pytest.approx(polling.time.now_s - began_s)


def test_a_subscription_without_an_answer_is_given_up_and_begun_again():
    query = Query()
    query.service.is_unanswered = True
    ends = Counter()
    for number in range(20):
        query.service.put(1)
        assert query.process.read() == [number]
        ends += Counter(query.note.subscription_ends)
        query.time.sleep(2.0)
    assert 2 <= ends["silent"] <= 4
    query.service.is_unanswered = False
    query.time.sleep(30.0)
    query.service.put(100)
    query.process.read()
    assert query.service.open_count == 1


def test_a_policy_that_forbids_to_subscribe_is_warned_of_once(caplog):
    query = Query()
    query.service.refusals = [AccessDenied("kinesis:SubscribeToShard")] * 99
    for _ in range(50):
        query.service.put(1)
        query.process.read()
        query.time.sleep(1.0)
    assert len(query.service.subscribed) > 1
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert "kinesis:SubscribeToShard" in caplog.text


def test_a_refused_subscription_is_tried_again_ever_more_rarely():
    query = Query()
    query.service.refusals = [ResourceBusy("again")] * 10**6
    for _ in range(300):
        query.service.put(1)
        query.process.read()
        query.time.sleep(1.0)
    assert 5 <= len(query.service.subscribed) <= 40
    moments = [moment for moment, _ in query.service.subscribed]
    assert all(b - a >= 1.0 for a, b in pairwise(moments))


@pytest.mark.parametrize(
    ("news", "why"),
    [
        (FanOutFailed(ResourceBusy("taken over")), "takenOver"),
        (FanOutFailed(Unavailable("the service reset the stream")), "broken"),
        (FanOutFailed(Unavailable("a frame's checksum is wrong")), "broken"),
        (FanOutEnded(), "over"),
    ],
    ids=["take-over", "reset", "broken frame", "end"],
)
def test_what_ends_a_subscription_under_a_batch_loses_and_repeats_nothing(news, why):
    query = Query()
    query.service.put(500)
    query.service.break_after, query.service.break_with = 3, news
    assert query.process.read() == list(range(500))
    assert query.note.subscription_ends[why] >= 1
    assert 0 < query.note.pushed_count < 500


def test_a_silent_subscription_is_given_up_after_a_moment_and_the_shard_is_polled():
    query = subscribed_query()
    for stream in query.service.streams:
        stream.is_silent = True
    query.service.put(10)
    began_s = query.time.now_s
    assert query.process.read() == list(range(100, 110))
    assert query.time.now_s - began_s <= PATIENCE_S + 0.3
    assert query.note.subscription_ends == {"silent": 1}
    assert query.service.open_count == 0


def test_an_event_that_comes_twice_is_given_once():
    query = Query()
    query.service.sends_twice = True
    query.service.put(300)
    assert query.process.read() == list(range(300))
    query.service.put(30)
    assert query.process.read() == list(range(300, 330))


def test_a_subscription_that_was_taken_over_between_two_batches_is_not_missed():
    query = subscribed_query()
    query.time.sleep(10.0)
    query.service.take_over()
    query.service.put(10)
    began_s = query.time.now_s
    assert query.process.read() == list(range(100, 110))
    assert query.time.now_s - began_s < 0.5


def test_an_empty_event_that_waited_here_does_not_end_a_batch_that_has_news():
    query = subscribed_query()
    stream = query.service.streams[0]
    stream.event_count = 0  # the service sends an empty event first, as it did while the shard was idle
    send, empty = stream.send, [True]

    def send_empty_first():
        if empty and empty.pop():
            records, query.service.records = query.service.records, query.service.records[: stream.place]
            send()
            query.service.records = records
        else:
            send()

    stream.send = send_empty_first
    query.service.put(10)
    assert query.process.read() == list(range(100, 110))
    assert query.note.pushed_count == 10


def test_a_task_that_is_given_up_closes_its_subscription():
    query = subscribed_query()
    query.service.put(300)
    batches = query.process.begin()
    next(batches)
    batches.close()
    assert query.service.open_count == 0
    assert len(query.process.kept) == 0
    assert query.process.read(query.batch) == list(range(100, 400))


def test_a_claim_that_another_attempt_made_first_is_read_to_by_polling():
    query = subscribed_query()
    query.service.put(40)
    slow, quick = query.process.begin(record_count_max=20), Process(query, "quick")
    given = next(slow)
    assert quick.read(query.batch) == list(range(100, 140))
    given += [number for rows in slow for number in rows]
    assert given == list(range(100, 140))
    assert len(query.process.kept) == 0


def test_an_attempt_beyond_the_claimed_end_fails_and_keeps_no_subscription():
    query = subscribed_query()
    query.service.put(40)
    slow, quick = query.process.begin(), Process(query, "quick")
    next(slow)
    assert quick.read(query.batch, record_count_max=5) == list(range(100, 105))
    with pytest.raises(ClaimConflict):
        list(slow)
    assert query.service.open_count == 0
    assert query.process.read(query.batch, start=at_record(query.service.sequence_number(99))) == list(
        range(100, 105)
    )


def test_the_end_of_a_shard_comes_by_a_subscription_too():
    query = subscribed_query()
    query.service.put(10)
    query.service.end_shard()
    assert query.process.read() == list(range(100, 110))
    assert query.claim.end == SHARD_END
    assert [child.shard_id for child in query.note.children] == ["shardId-000000000001"]
    assert query.note.pushed_count == 10
    assert len(query.process.kept) == 0


def test_while_others_use_up_the_shards_reads_a_subscription_brings_everything():
    query = Query()
    query.service.put(500)
    query.service.is_throttled = True
    assert query.process.read() == list(range(500))
    assert query.note.pushed_count == 500


def test_auto_subscribes_only_to_a_shard_that_is_behind():
    query = Query("auto")
    query.service.put(5)
    assert query.process.read() == list(range(5))
    assert query.service.subscribed == []
    query.service.put(200)
    assert query.process.read() == list(range(5, 205))
    assert len(query.service.subscribed) == 1


@pytest.mark.parametrize(("count", "pause_s"), [(1, 4.0), (50, 30.0)])
def test_auto_lets_a_subscription_go_when_the_shard_has_kept_up_for_a_while(count, pause_s):
    query = Query("auto")
    query.service.put(200)
    query.process.read()
    for _ in range(30):
        assert query.service.open_count == 1 or query.time.now_s > 1060.0
        query.service.put(count)  # the first page is as far from the tip as the last batch is away
        query.process.read()
        query.time.sleep(pause_s)
    assert query.service.open_count == 0
    assert len(query.service.subscribed) == 1


def test_auto_subscribes_again_when_the_lag_exceeds_the_pause_between_batches():
    query = Query("auto")
    query.service.put(5)
    query.process.read()
    for _ in range(3):
        query.time.sleep(30.0)
        query.service.put(50)
        query.process.read()
    assert query.service.subscribed == []
    query.time.sleep(5.0)
    query.service.put(50)
    query.process.read()
    assert len(query.service.subscribed) == 1


QUOTA = "ProvisionedThroughputExceededException"


@pytest.mark.parametrize(
    ("error", "is_subscribed"),
    [
        (Throttled("others read it", code=QUOTA), True),
        (Throttled("the key is used too often", code="KMSThrottlingException"), False),
        (Unavailable("500"), False),
    ],
    ids=["quota", "another limit", "failure"],
)
def test_auto_subscribes_where_the_shards_reads_are_used_up_and_for_no_other_refusal(error, is_subscribed):
    query = Query("auto")
    query.service.put(5)
    query.service.poll_failures = [error] * 3
    assert query.process.read() == list(range(5))
    assert len(query.service.subscribed) == is_subscribed


def test_a_refusal_explained_by_own_reads_does_not_show_other_readers():
    query = Query("auto")
    kept = KeptSubscriptions(query.time, query.time.at)
    ports = {"subscribes_always": False, "clock": query.time, "chance": query.chance, "threads": query.time}
    before = PushedReading(kept, query.service, KEY, **ports)
    before.on_poll(query.time.now_s, 3 * SHARD_READ_BYTES_PER_S_MAX)
    counts = []
    for delay_s in (1.5, 1.0, 1.0):
        query.time.sleep(delay_s)
        reading = PushedReading(kept, query.service, KEY, **ports)
        reading.on_poll_failure(Throttled("slow down", code=QUOTA), query.time.now_s)
        reading.subscribe_if_needed(TRIM_HORIZON)
        reading.close()
        counts.append(len(query.service.subscribed))
    assert counts == [0, 0, 1]  # three seconds' worth was read


def test_the_rest_of_an_event_outlives_its_subscription():
    query = subscribed_query()
    query.service.put(10)
    assert query.process.read(record_count_max=4) == [100, 101, 102, 103]
    query.service.take_over()
    assert query.process.read() == list(range(104, 110))
    assert query.note.pushed_count == 6
    query.service.put(10)
    assert query.process.read() == list(range(110, 120))


# --- subscriptions that a process keeps --------------------------------------------------------------------------------------


def test_what_nobody_uses_is_closed_after_a_minute():
    query = subscribed_query()
    assert (len(query.process.kept), query.service.open_count) == (1, 1)
    query.time.sleep(UNUSED_S + 1)
    assert (len(query.process.kept), query.service.open_count) == (0, 0)
    query.service.put(10)
    assert query.process.read() == list(range(100, 110))


def test_the_last_one_is_closed_by_one_call_whatever_the_moment_is_rounded_to():
    chance = random.Random(1)
    for _ in range(200):
        query = Query()
        query.time.now_s = chance.uniform(0.0, 1e5)
        calls = []
        kept = KeptSubscriptions(query.time, lambda delay_s, function, calls=calls: calls.append(function))
        subscription = TaskSubscription(query.time.condition(), BEGINNING, 0.0)
        kept.keep(KEY, TRIM_HORIZON, subscription, query.time.now_s)
        (close_unused,) = calls
        close_unused()
        assert (len(kept), len(calls)) == (0, 1)


def test_a_process_keeps_a_bounded_number_of_subscriptions():
    query = Query()
    kept = KeptSubscriptions(query.time, query.time.at)
    streams = [
        query.service.subscribe("arn:orders/consumer/billing:1", SHARD, BEGINNING, print)
        for _ in range(KEPT_MAX + 5)
    ]
    for index, stream in enumerate(streams):
        subscription = TaskSubscription(query.time.condition(), BEGINNING, 0.0)
        subscription._stream = stream
        kept.keep(("service", "c", str(index)), TRIM_HORIZON, subscription, float(index))
    assert len(kept) == KEPT_MAX
    assert [stream.is_open for stream in streams] == [False] * 5 + [True] * KEPT_MAX
