"""Writers with a bounded number of records, as the tasks of one write: near the quota, in full requests, and done together."""

import heapq
import random

import pytest

from penstock.core.hash_key import FULL_RANGE, HashRange
from penstock.core.put_entry import EntryAnswer
from penstock.core.shard import Shard
from penstock.core.writing.batcher import Batcher
from penstock.core.writing.batcher_steps import BatcherSettings, FetchShards, PutRequest, WaitUntil
from penstock.core.writing.flow_control import BRIEF_DECREASE, ShardFlow

REFUSED = "ProvisionedThroughputExceededException"
SHARDS, WRITERS, RECORDS = 6, 3, 30_000


class Quota:
    """Shards that each accept 1,000 records per second, and one second's worth at once."""

    def __init__(self):
        size = (FULL_RANGE.end + 1) // SHARDS
        ends = [*((number + 1) * size - 1 for number in range(SHARDS - 1)), FULL_RANGE.end]
        self.shards = [Shard(f"s{n}", HashRange(n * size, end), (), "1") for n, end in enumerate(ends)]
        self.levels = {shard.shard_id: (1000.0, 0.0) for shard in self.shards}
        self.calls = 0

    def put(self, entries, now_s):
        self.calls += 1
        answers = []
        for entry in entries:
            level, seen_s = self.levels[entry.shard_id]
            level = min(1000.0, level + (now_s - seen_s) * 1000)
            is_accepted = level >= 1
            self.levels[entry.shard_id] = (level - is_accepted, now_s)
            answers.append(
                EntryAnswer("1", entry.shard_id)
                if is_accepted
                else EntryAnswer(error_code=REFUSED, error_message="slow down")
            )
        return answers


def write_all(settings, latency_s):
    """Let the writers send all their records at once; return the service and when each had finished."""
    service, chance = Quota(), random.Random(7)
    batchers = [Batcher(settings) for _ in range(WRITERS)]
    for writer, batcher in enumerate(batchers):
        batcher.on_shards(service.shards, 0.0)
        for number in range(RECORDS // WRITERS):
            batcher.add(b"x" * 300, f"{writer}-{number}", None, 0.0)
    done_s = [0.0] * WRITERS
    events = [(0.01 * writer, writer, None) for writer in range(WRITERS)]
    while events:
        now_s, writer, sent = heapq.heappop(events)
        batcher = batchers[writer]
        if sent is not None:
            batcher.on_answers(*sent, now_s, chance.random())
        step = batcher.plan_step(now_s, flushes=True)
        if isinstance(step, FetchShards):
            batcher.on_shards(service.shards, now_s)
            step = batcher.plan_step(now_s, flushes=True)
        if isinstance(step, PutRequest):
            sent = (step, service.put(step.entries, now_s + latency_s / 2))
            heapq.heappush(events, (now_s + latency_s, writer, sent))
        elif batcher.waiting_count:
            assert isinstance(step, WaitUntil)
            heapq.heappush(events, (step.until_s, writer, None))
        else:
            done_s[writer] = now_s
    return service, done_s


@pytest.mark.parametrize("latency_s", [0.005, 0.025])
def test_tasks_of_one_write_use_the_quota_with_full_requests(latency_s):
    service, done_s = write_all(BatcherSettings(linger_s=1e9, gather_s=0.2, is_brief=True), latency_s)
    quota_s = RECORDS / SHARDS / 1000
    assert max(done_s) <= quota_s / 0.9
    assert service.calls <= 3.5 * RECORDS / 500
    assert max(done_s) <= 2 * min(done_s)


def test_a_refused_brief_writer_goes_on_nearly_as_fast_as_it_was_accepted():
    flow = ShardFlow(is_brief=True)
    flow.on_sent(0.3, 0.0)
    flow.on_accepted(0.3, 0.5)
    flow.on_accepted(0.3, 1.5)
    flow.on_refused(1.5, 0.0)
    assert flow.rate == pytest.approx(BRIEF_DECREASE * 0.3)


@pytest.mark.parametrize("writers", [1, 4])
def test_the_first_rate_of_a_brief_writer_does_not_count_what_a_quiet_shard_had_saved_up(writers):
    # Each of the writers had an equal part of one second's worth at once, and of each second's worth from then on.
    flow = ShardFlow(is_brief=True)
    flow.on_accepted(1.0 / writers, 10.0)
    flow.on_accepted(0.5 / writers, 10.5)
    flow.on_refused(10.5, 0.0)
    assert flow.rate == pytest.approx(BRIEF_DECREASE / writers)


def test_its_rate_trebles_within_a_second_and_then_has_no_limit():
    flow = ShardFlow(is_brief=True)
    flow.on_accepted(0.3, 0.5)
    flow.on_refused(1.0, 0.0)
    rate = flow.rate
    for tenth in range(1, 11):
        flow.on_accepted(0.01, 1.0 + tenth / 10)
    assert flow.rate is None or flow.rate >= 3 * rate
    for tenth in range(11, 31):
        flow.on_accepted(0.01, 1.0 + tenth / 10)
    assert flow.rate is None


def test_a_request_that_is_not_full_waits_for_shards_that_pause():
    service = Quota()
    batcher = Batcher(BatcherSettings(linger_s=1e9, gather_s=0.2, is_brief=True))
    batcher.on_shards(service.shards, 0.0)
    for number in range(60):
        batcher.add(b"x", f"k{number}", None, 0.0)
    first = batcher.plan_step(0.0, flushes=True)
    shard_id = first.entries[0].shard_id
    answers = [
        EntryAnswer(error_code=REFUSED, error_message="slow down")
        if entry.shard_id == shard_id
        else EntryAnswer("1", entry.shard_id)
        for entry in first.entries
    ]
    batcher.on_answers(first, answers, 0.01, 0.5)
    other = next(entry.partition_key for entry in first.entries if entry.shard_id != shard_id)
    batcher.add(b"x", other, None, 0.02)
    step = batcher.plan_step(0.02, flushes=True)
    assert isinstance(step, WaitUntil), step
    assert step.until_s == pytest.approx(0.2)
    assert isinstance(batcher.plan_step(0.2, flushes=True), PutRequest)
