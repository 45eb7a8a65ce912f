"""The driver's probes: a failure postpones one shard, and is reported when it lasts too long."""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from moved_clock import MovedClock
from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for
from penstock.aws.kinesis import AwsKinesis
from penstock.core.batches.shard_state import ShardState
from penstock.core.hash_key import HashRange
from penstock.core.position import LATEST, TRIM_HORIZON, at_record
from penstock.core.reading.resume import IteratorType
from penstock.core.shard import ChildShard, Shard
from penstock.errors import AccessDenied, NotFound, Throttled, Unavailable
from penstock.ports.kinesis import RecordPage, ShardListing
from penstock.spark.driver.news_polling import NewsPoller
from penstock_local import LocalKinesis
from raw_record import Raw
from waiting import wait_until


def test_shards_that_wait_for_their_turn_are_not_said_to_give_no_answer():
    clock = MovedClock(0.0)

    class Slow:
        def without_retries(self):
            return self

        def fetch_iterator(self, *_):
            clock.now_s += 0.5  # each call is answered, and all of them take longer than the deadline
            return "iterator"

        def fetch_records(self, *_):
            return RecordPage((), "next", 0)

    poller = NewsPoller(Slow(), "s", 1.0, clock, deadline_s=20.0)
    states = {f"shardId-{number:012}": ShardState(TRIM_HORIZON) for number in range(200)}
    try:
        wait_until(
            lambda: (
                poller.probe_due_shards(states.items()) or all(state.is_probed for state in states.values())
            ),
            "every shard to answer",
        )
    finally:
        poller.close()


class StoodStill:
    """Threads that run the submitted calls of some shards, and a condition on which waiting only moves the clock."""

    def __init__(self, clock, answering):
        self.clock = clock
        self.answering = answering
        self.submitted = 0

    def pool(self, *_):
        return self

    def condition(self):
        return self

    def submit(self, job):
        self.submitted += 1
        if self.submitted <= self.answering:
            job()

    def wait_for(self, predicate, timeout_s):
        if not predicate():
            self.clock.now_s += timeout_s
        return predicate()

    def notify_all(self):
        """Do nothing: there is no waiting thread."""

    def close(self):
        """Nothing runs."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Nothing is held."""


@pytest.mark.parametrize(("news", "waited_s"), [((Raw("6"),), 0.2), ((), 1.0)], ids=["news", "none"])
def test_a_batch_does_not_wait_for_the_answers_of_all_shards_when_there_is_news(news, waited_s):
    clock = MovedClock(0.0)
    page = RecordPage(news, "next", 0, (), 0)
    kinesis = OneShard(0)
    kinesis.fetch_records = lambda *_: page
    poller = NewsPoller(kinesis, "s", 1.0, clock, threads=StoodStill(clock, answering=10))
    states = {
        f"shardId-{number:012}": ShardState(at_record("5"), is_whole_record=True, tip_seen_ms=0)
        for number in range(1000)
    }
    poller.probe_due_shards(states.items())
    assert clock.now_s == pytest.approx(waited_s)
    assert sum(state.has_news for state in states.values()) == (10 if news else 0)
    assert sum(state.is_probed for state in states.values()) == 10


def test_a_batch_of_a_shard_that_is_behind_does_not_wait_for_idle_shards():
    clock = MovedClock(0.0)
    kinesis = OneShard(0)
    kinesis.fetch_records = lambda *_: RecordPage((), "next", 0, (), 0)
    poller = NewsPoller(kinesis, "s", 1.0, clock, threads=StoodStill(clock, answering=10))
    states = {
        f"shardId-{number:012}": ShardState(at_record("5"), is_whole_record=True, tip_seen_ms=0)
        for number in range(100)
    }
    states["shardId-000000000099"].has_news = True
    poller.probe_due_shards(states.items())
    assert clock.now_s == pytest.approx(0.2)


class AtOnce(StoodStill):
    """A quiet shard whose probes are answered, or refused, at once."""

    def __init__(self, clock, error=None):
        super().__init__(clock, answering=1_000)
        self.error = error
        self.asked_s = []

    def without_retries(self):
        return self

    def fetch_iterator(self, *_):
        return "iterator"

    def fetch_records(self, *_):
        self.asked_s.append(round(self.clock.now_s, 3))
        if self.error is not None:
            raise self.error
        return RecordPage((), "next", 0, (), 0)


@pytest.mark.parametrize(
    ("bytes_count", "error", "moments"),
    [
        (0, None, [0.0, 1.0, 2.0]),
        (100, None, [0.0, 0.25, 0.5, 0.75, 1.0, 2.0]),
        (100, Throttled("throttled"), [0.0, 1.0, 2.0]),
        (100, Unavailable("unavailable"), [0.0, 1.0, 2.0]),
    ],
    ids=["quiet", "just read", "others read it too", "failing"],
)
def test_a_shard_that_a_batch_has_just_read_is_asked_sooner(bytes_count, error, moments):
    clock = MovedClock(0.0)
    shard = AtOnce(clock, error)
    poller = NewsPoller(shard, "s", 1.0, clock, threads=shard, chance=Never())
    states = {ONE: ShardState(at_record("5"), is_whole_record=True, tip_seen_ms=0, bytes_count=bytes_count)}
    while clock.now_s < 2.5:
        poller.probe_due_shards(states.items())
        clock.now_s = max(clock.now_s, poller.next_probe_s(states.values()))
    assert shard.asked_s == moments


class Never:
    """Chance that draws 0."""

    def random(self):
        return 0.0


def test_a_query_with_many_batches_a_second_leaves_room_for_its_tasks_reads():
    clock = MovedClock(0.0)
    shard = AtOnce(clock)
    poller = NewsPoller(shard, "s", 1.0, clock, threads=shard)
    while clock.now_s < 20.0:
        probed, states = (
            len(shard.asked_s),
            {ONE: ShardState(at_record("5"), is_whole_record=True, bytes_count=1)},
        )
        while len(shard.asked_s) == probed:
            poller.probe_due_shards(states.items())
            clock.now_s = max(clock.now_s, poller.next_probe_s(states.values()))
        clock.now_s += 0.1  # the batch, which reads the shard once
    assert 2 * len(shard.asked_s) <= 5 * 20 + 5


HOUR_MS = 3_600_000


class LateThreads(StoodStill):
    """Threads that keep submitted calls until a test runs them."""

    def __init__(self, clock):
        super().__init__(clock, answering=0)
        self.jobs = []

    def submit(self, job):
        self.jobs.append(job)


@dataclass
class TwoClocks:
    """Monotonic time, and a time of day, each moved by a test."""

    now_s: float = 100.0
    day_ms: int = 1_000_000

    def monotonic_s(self):
        return self.now_s

    def wall_ms(self):
        return self.day_ms

    def move(self, by_s):
        self.now_s += by_s
        self.day_ms += int(by_s * 1000)


def poller_of(clock, threads):
    kinesis = OneShard(clock.day_ms, 5)
    return NewsPoller(kinesis, "s", 1.0, clock, threads=threads)


def test_an_answer_that_waited_for_a_batch_sets_the_clock_of_its_own_moment():
    clock = TwoClocks()
    threads = LateThreads(clock)
    poller = poller_of(clock, threads)
    states = {"s": ShardState(at_record("5"))}
    poller.probe_due_shards(states.items())
    for job in threads.jobs:
        job()
    clock.move(60.0)
    poller.probe_due_shards(states.items())
    assert poller.steady_now_ms() == 1_060_000


def test_a_plan_uses_the_last_answers_time_after_the_machines_clock_was_set():
    clock = TwoClocks()
    poller = poller_of(clock, StoodStill(clock, answering=10))
    assert poller.steady_now_ms() == 1_000_000
    states = {"s": ShardState(at_record("5"))}
    poller.probe_due_shards(states.items())
    clock.move(2.0)
    clock.day_ms += 3_600_000
    assert poller.steady_now_ms() == 1_002_000


class Listing:
    """A stream of which only listings are answered. Its client without retries answers nothing."""

    def __init__(self):
        self.call_count = 0

    def without_retries(self):
        return None

    def fetch_shards(self, _stream):
        self.call_count += 1
        return ShardListing((Shard("c", HashRange(0, 1), ("s",)),), server_ms=5_000_000)


def test_the_moment_of_a_plan_is_fetched_with_retries_and_only_if_no_answer_has_shown_it():
    clock, kinesis = TwoClocks(), Listing()
    poller = NewsPoller(kinesis, "s", 1.0, clock, threads=LateThreads(clock))
    assert poller.fetch_now_ms() == 5_000_000
    clock.move(60.0)
    assert poller.fetch_now_ms() == 5_060_000
    assert kinesis.call_count == 1


def test_children_of_ended_shards_are_listed_with_retries_and_once_per_interval():
    clock, kinesis = TwoClocks(), Listing()
    poller = NewsPoller(kinesis, "s", 1.0, clock, threads=LateThreads(clock))
    children = {"s": (ChildShard("c", ("s",), HashRange(0, 1)),)}
    assert (poller.list_children([]), kinesis.call_count) == ({}, 0)
    assert (poller.list_children(["s"]), kinesis.call_count) == (children, 1)
    clock.move(0.9)
    assert (poller.list_children(["s"]), kinesis.call_count) == ({}, 1)
    clock.move(0.1)
    assert (poller.list_children(["s"]), kinesis.call_count) == (children, 2)


class OneShard:
    """A shard whose records before a number have left the stream; it is at its tip, or closed and read to its end."""

    def __init__(self, now_ms, *records, is_closed=False):
        self.now_ms = now_ms
        self.records = [Raw(str(number)) for number in records]
        self.is_closed = is_closed

    def without_retries(self):
        return self

    def fetch_iterator(self, _stream, _key, start):
        is_after = start.type is IteratorType.AFTER_SEQUENCE_NUMBER
        return str(int(start.sequence_number) + is_after)

    def fetch_records(self, _stream, iterator, _count):
        left = [each for each in self.records if int(each.sequence_number) >= int(iterator)][:1]
        after = str(int(left[0].sequence_number) + 1) if left else iterator
        is_end = self.is_closed and not left
        children = (ChildShard("c", ("s",), HashRange(0, 1)),) if is_end else ()
        return RecordPage(left, None if is_end else after, 0, children, self.now_ms)


@pytest.mark.parametrize("is_closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("is_whole", [False, True], ids=["from a checkpoint", "from a claim"])
@pytest.mark.parametrize(
    ("left", "tip_age_h", "is_for_a_task"),
    [
        pytest.param((), None, True, id="gone, and nobody knows whether it was the last"),
        pytest.param((), 30, True, id="gone, and others may have come and gone since the tip was seen"),
        pytest.param((), 10, False, id="gone, and it was the last one within the retention"),
        pytest.param((5,), None, False, id="there"),
        pytest.param((5,), 30, False, id="there, and the tip was seen long ago"),
    ],
)
def test_without_the_record_the_tip_counts_only_if_nothing_left_with_it(
    left, tip_age_h, is_for_a_task, is_whole, is_closed
):
    now_ms = 100 * HOUR_MS
    tip_ms = None if tip_age_h is None else now_ms - tip_age_h * HOUR_MS
    state = ShardState(at_record("5"), is_whole_record=is_whole, tip_seen_ms=tip_ms)
    clock = MovedClock(0.0)
    clock.wall_ms = lambda: now_ms
    poller = NewsPoller(OneShard(now_ms, *left, is_closed=is_closed), "s", 1.0, clock)

    def is_decided():
        poller.probe_due_shards([("s", state)])
        return state.has_news or state.is_finished or state.tip_seen_ms == now_ms

    try:
        wait_until(is_decided, "an answer")
    finally:
        poller.close()
    assert state.has_news is is_for_a_task
    assert state.is_finished is (is_closed and not is_for_a_task)


@pytest.mark.parametrize("hours", [3, 5])
def test_records_that_left_behind_a_probed_record_are_for_a_task_to_judge(hours):
    clock = MovedClock(0.0)
    kinesis = OneShard(100 * HOUR_MS)
    found = RecordPage((Raw("5"),), "6", 20 * HOUR_MS, (), kinesis.now_ms)
    after = RecordPage((), "7", 0, (), kinesis.now_ms + hours * HOUR_MS)
    kinesis.fetch_records = lambda *_: after if clock.now_s else found
    clock.wall_ms = lambda: kinesis.now_ms + round(clock.now_s * 1000)
    state = ShardState(at_record("5"))
    poller = NewsPoller(kinesis, "s", 1.0, clock, threads=StoodStill(clock, answering=2))
    poller.probe_due_shards([("s", state)])
    assert (state.is_probed, state.has_news) == (False, False)
    clock.now_s = hours * 3600.0
    poller.probe_due_shards([("s", state)])
    assert state.has_news is (hours == 5)  # the first unread record was 20 hours old, and is kept for 24


def test_the_record_of_the_position_itself_is_no_answer():
    state = ShardState(at_record("5"))
    poller = NewsPoller(OneShard(HOUR_MS, 5, 6), "s", 1.0, MovedClock(0.0))

    def has_looked(number):
        poller.probe_due_shards([("s", state)])
        return state.iterator == number or state.has_news

    try:
        wait_until(lambda: has_looked("6"), "a look at the record of the position")
        assert (state.is_probed, state.has_news) == (False, False)
        wait_until(lambda: has_looked("7"), "a look behind it")
    finally:
        poller.close()
    assert (state.is_probed, state.has_news) == (True, True)


ONE, TWO = "shardId-000000000000", "shardId-000000000001"


@dataclass
class Rig:
    """A poller over two shards, with a clock that a test moves."""

    server: LocalKinesis
    client: object
    options: AwsOptions
    stream: str = field(default_factory=lambda: f"s-{uuid.uuid4().hex[:10]}")
    clock: MovedClock = field(default_factory=lambda: MovedClock(1000.0))
    states: dict[str, ShardState] = field(default_factory=dict)
    checked: int = 0
    found_gone: NotFound | None = None
    poller: NewsPoller | None = None

    def begin(self, position=TRIM_HORIZON):
        self.states = {key: ShardState(position) for key in (ONE, TWO)}

    def probe(self):
        self.poller.probe_due_shards(self.states.items())

    def probe_at(self, now_s):
        self.clock.now_s = now_s
        self.probe()

    def put(self, data, shard):
        hash_key = "0" if shard == ONE else str(2**128 - 1)
        return self.client.put_record(
            StreamName=self.stream, PartitionKey="k", Data=data, ExplicitHashKey=hash_key
        )["SequenceNumber"]

    def check(self):
        self.checked += 1
        if self.found_gone is not None:
            raise self.found_gone

    def settle(self, *still_asked):
        """Take the answers that are under way, except for shards whose calls are held up; the clock does not move."""

        def is_settled():
            self.probe()
            return self.poller._probes.keys() == set(still_asked)

        wait_until(is_settled, "the answers under way")

    def until(self, condition, what):
        """Probe as the driver does, as fast as the clock that a test moves allows."""

        def is_met():
            self.clock.now_s += 0.5
            self.probe()
            return condition()

        wait_until(is_met, what)


@pytest.fixture
def rig():
    with LocalKinesis(limits=False, settle_s=0) as server:
        options = AwsOptions(**server.connection())
        made = Rig(server, server.client("kinesis"), options)
        made.clock.wall_ms = server.clock.now_ms
        server.create_stream(made.stream, shards=2)
        made.poller = NewsPoller(
            AwsKinesis(options),
            made.stream,
            0.2,
            made.clock,
            check_stream=made.check,
        )
        made.begin()
        yield made
        made.poller.close()


def test_a_failing_shard_is_postponed_alone(rig):
    rig.put(b"1", ONE)
    rig.put(b"2", TWO)
    rig.server.faults.error("GetRecords", count=None, shard=ONE)
    rig.until(lambda: rig.states[TWO].has_news, "news of the shard that answers")
    assert not rig.states[ONE].has_news
    rig.server.faults.clear()
    rig.until(lambda: rig.states[ONE].has_news, "news of the shard that failed before")


@pytest.mark.parametrize(
    "fault",
    [
        {"count": None},
        {"count": None, "status": 400, "code": "ProvisionedThroughputExceededException"},
        {"count": None, "status": 400, "code": "ExpiredTokenException"},
    ],
    ids=["500", "throttled", "expired"],
)
def test_a_shard_that_gives_no_answer_is_named_after_the_deadline_and_not_before(rig, fault):
    rig.server.faults.error("GetRecords", shard=ONE, **fault)
    began_s = rig.clock.now_s
    rig.until(lambda: ONE in rig.poller._failing, "the first failure")
    for now_s in range(int(rig.clock.now_s), int(began_s) + 59, 5):
        rig.probe_at(float(now_s))
    rig.settle()
    rig.clock.now_s = began_s + 60
    with pytest.raises(Unavailable) as raised:
        rig.until(lambda: False, "the error")
    assert f"stream {rig.stream}: {ONE} gave no answer for 6" in str(raised.value)
    assert "retryDeadline" in str(raised.value)
    assert TWO not in str(raised.value)


def test_a_shard_that_answers_in_between_begins_anew(rig):
    for _ in range(4):
        rig.server.faults.error("GetRecords", count=1, shard=ONE)
        rig.begin()
        rig.until(lambda: ONE in rig.poller._failing, "a failure")
        rig.until(lambda: ONE not in rig.poller._failing, "an answer")
        rig.settle()
        rig.clock.now_s += 50


def test_a_shard_that_has_been_read_meanwhile_is_not_named(rig):
    rig.server.faults.error("GetRecords", count=None, shard=ONE)
    rig.until(lambda: ONE in rig.poller._failing, "the first failure")
    rig.settle()
    rig.states = {TWO: rig.states[TWO]}  # it went to another worker
    rig.probe_at(rig.clock.now_s + 100)


def test_what_waiting_cannot_cure_is_raised_at_once(rig):
    rig.server.faults.error("GetRecords", count=None, status=400, code="AccessDeniedException")
    with pytest.raises(AccessDenied):
        rig.until(lambda: False, "the refusal")


@contextmanager
def held_up(rig, shard):
    """Calls for one shard's iterator get no further before the test lets them."""
    let = threading.Event()

    def wait(request, **_):
        if shard in str(request.body):
            assert let.wait(60)

    events = client_for("kinesis", rig.options).meta.events
    events.register("before-send.kinesis.GetShardIterator", wait)
    try:
        yield let
    finally:
        let.set()
        events.unregister("before-send.kinesis.GetShardIterator", wait)


def test_a_shard_whose_answer_takes_long_does_not_hold_up_the_others(rig):
    rig.put(b"1", ONE)
    rig.put(b"2", TWO)
    with held_up(rig, ONE) as let:
        rig.until(lambda: rig.states[TWO].has_news, "news of the shard that answers")
        assert not rig.states[ONE].has_news
        assert rig.poller.next_probe_s([rig.states[ONE]]) > rig.clock.now_s
        let.set()
        rig.until(lambda: rig.states[ONE].has_news, "the answer that took long")


def test_a_call_that_hangs_counts_as_no_answer(rig):
    with held_up(rig, ONE):
        rig.probe()
        rig.settle(ONE)
        with pytest.raises(Unavailable, match=f"{ONE} gave no answer for 61 s.*still under way"):
            rig.probe_at(rig.clock.now_s + 61)


def test_an_answer_about_what_was_before_a_batch_is_dropped(rig):
    with held_up(rig, ONE) as let:
        rig.probe()
        rig.put(b"1", ONE)
        rig.begin(LATEST)
        let.set()
        wait_until(lambda: rig.poller._answers, "the late answer")
        old = rig.states[ONE]
        rig.server.faults.error("GetShardIterator", count=None)
        rig.probe()
        assert not old.has_news


def test_a_shard_that_the_service_does_not_know_is_for_a_task_to_look_at(rig):
    rig.server.faults.error(
        "GetShardIterator", count=None, shard=ONE, status=400, code="ResourceNotFoundException"
    )
    rig.until(lambda: rig.states[ONE].has_news, "work for a task")
    assert rig.checked == 1
    assert not rig.states[TWO].has_news


def test_a_stream_that_is_gone_ends_the_query(rig):
    rig.found_gone = NotFound("stream x is gone")
    rig.client.delete_stream(StreamName=rig.stream)
    with pytest.raises(NotFound, match="stream x is gone"):
        rig.until(lambda: False, "the error")


def test_a_refused_position_is_for_a_task_to_explain(rig):
    rig.begin(at_record("12345"))
    rig.until(lambda: rig.states[ONE].has_news and rig.states[TWO].has_news, "work for tasks")


def test_the_tip_is_dated_by_the_service(rig):
    rig.server.clock.advance(5 * 86_400)
    rig.clock.wall_ms = lambda: 0
    rig.until(lambda: rig.states[ONE].tip_seen_ms is not None, "the tip")
    assert 0 <= rig.server.clock.now_ms() - rig.states[ONE].tip_seen_ms < 60_000


def test_the_lag_is_the_age_of_the_oldest_unread_record(rig):
    rig.put(b"1", ONE)
    rig.server.clock.advance(100)
    rig.until(lambda: rig.states[ONE].has_news and rig.states[TWO].tip_seen_ms is not None, "both answers")
    assert 100_000 <= rig.states[ONE].millis_behind_latest < 160_000
    assert rig.states[TWO].millis_behind_latest == 0


@contextmanager
def cut_off(rig):
    """Answers to GetRecords name neither a next iterator nor children."""

    def alter(parsed, **_):
        parsed["Page"].next_iterator = None

    events = client_for("kinesis", rig.options).meta.events
    events.register("after-call.kinesis.GetRecords", alter)
    yield
    events.unregister("after-call.kinesis.GetRecords", alter)


@pytest.mark.parametrize("is_read", [True, False])
def test_an_end_that_names_no_children_is_for_a_task_to_find_out(rig, is_read):
    if is_read:
        rig.begin(at_record(rig.put(b"1", ONE)))
        del rig.states[TWO]
    with cut_off(rig):
        rig.until(lambda: rig.states[ONE].has_news, "work for a task")
    assert not rig.states[ONE].is_finished
