"""Flow control: free until the service refuses, then down at once, back up along a curve, and fair to other writers."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

import pytest

from penstock.core.writing.flow_control import CURVE, DECREASE, FREE_RATE, RATE_MIN, ShardFlow, cost_s


@pytest.mark.parametrize(
    ("record_bytes", "expected"), [(0, 0.001), (1024, 0.001), (1049, 1049 / 2**20), (2**20, 1.0)]
)
def test_a_record_costs_its_bytes_or_its_place_whichever_is_more(record_bytes, expected):
    assert cost_s(record_bytes) == expected


def test_nothing_is_slowed_before_the_service_refuses():
    flow = ShardFlow()
    for number in range(1000):
        flow.on_sent(1.0, number * 0.001)
        flow.on_accepted(1.0, number * 0.001)
    assert (flow.rate, flow.ready_s) == (None, float("-inf"))


def test_a_first_refusal_halves_what_was_accepted_lately():
    flow = ShardFlow()
    for number in range(10):
        flow.on_accepted(0.04, number * 0.1)
    assert flow.on_refused(1.0, 0.5) == 0.05
    assert flow.rate == pytest.approx(0.4 * DECREASE)
    assert flow.ready_s == 1.05


def test_refusals_of_the_same_flood_only_pause_ever_longer():
    flow = ShardFlow()
    flow.on_accepted(1.0, 0.0)
    pauses = [flow.on_refused(1.0 + number * 0.01, 0.5) for number in range(8)]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.5, 2.5]
    assert flow.rate == 0.5


def test_the_rate_never_falls_below_its_floor():
    flow = ShardFlow()
    for number in range(100):
        flow.on_refused(float(number), 0.0)
    assert flow.rate == RATE_MIN


@pytest.mark.parametrize(
    ("record_bytes", "rate_max", "shards", "expected_s"),
    [
        (1000, None, 1.0, 0.1),
        (51_200, None, 1.0, 4.9),
        (2**20, None, 1.0, 5.0),
        (10 * 2**20, None, 1.0, 10.0),
        (10 * 2**20, None, 8.0, 5.0),
        (2**20, 0.1, 1.0, 10.0),
    ],
)
def test_a_large_record_does_not_silence_its_shard_at_the_lowest_rate(
    record_bytes, rate_max, shards, expected_s
):
    flow = ShardFlow(rate_max, shards)
    for number in range(100):
        flow.on_refused(float(number), 0.0)
    flow.on_sent(cost_s(record_bytes), 1000.0)
    assert flow.ready_s - 1000.0 == pytest.approx(expected_s, abs=0.1)


def test_the_way_back_is_flat_around_the_refused_rate_and_ends_free():
    flow = ShardFlow()
    flow.on_accepted(1.0, 0.0)
    flow.on_refused(1.0, 0.0)
    back_s = (0.5 / CURVE) ** (1 / 3)
    rates = []
    for second in range(120):
        flow.on_accepted(0.001, 1.0 + second)
        if flow.rate is None:
            break
        rates.append(flow.rate)
    assert rates == sorted(rates)
    assert rates[round(back_s)] == pytest.approx(1.0, abs=0.01)
    assert flow.rate is None
    assert second == pytest.approx(back_s + ((FREE_RATE - 1) / CURVE) ** (1 / 3), abs=1.5)


def test_a_limit_set_in_advance_paces_from_the_first_record_and_is_never_exceeded():
    flow = ShardFlow(rate_max=0.25)
    flow.on_sent(0.1, 10.0)
    assert flow.ready_s == pytest.approx(10.4)
    flow.on_refused(10.0, 0.0)
    for second in range(200):
        flow.on_accepted(0.001, 11.0 + second)
    assert flow.rate == 0.25


def test_batches_follow_the_rate():
    flow = ShardFlow()
    assert flow.request_cost_max_s == float("inf")
    flow.on_accepted(1.0, 0.0)
    flow.on_refused(1.0, 0.0)
    assert flow.request_cost_max_s == 0.25


# --- many writers, one stream ---------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What happened after the first ten seconds."""

    used: float = 0.0
    requests: int = 0
    refused: int = 0
    least: float = 0.0
    most: float = 0.0


def crowd(writers: int, load: float, record_bytes: int, seed: int, end_s: float = 60.0) -> Outcome:
    """Let writers push `load` times what one shard takes, each with a request under way; answers take 20 ms."""
    chance = random.Random(seed)
    flows = [ShardFlow() for _ in range(writers)]
    waiting = [0.0] * writers
    seen_s = [0.0] * writers
    accepted = [0.0] * writers
    level, level_s = 1.0, 0.0
    cost = cost_s(record_bytes)
    outcome = Outcome()
    events = [(chance.random() * 0.1, writer) for writer in range(writers)]
    heapq.heapify(events)
    while events[0][0] < end_s:
        now_s, writer = heapq.heappop(events)
        flow = flows[writer]
        waiting[writer] += (now_s - seen_s[writer]) * load / writers
        seen_s[writer] = now_s
        if flow.ready_s > now_s or waiting[writer] < cost:
            heapq.heappush(events, (max(flow.ready_s, now_s + 0.01), writer))
            continue
        count = max(1, int(min(waiting[writer], flow.request_cost_max_s, 500 * cost) / cost))
        flow.on_sent(count * cost, now_s)
        level, level_s = min(1.0, level + now_s - level_s), now_s
        taken = min(count, int(level / cost))
        level -= taken * cost
        waiting[writer] -= taken * cost
        if taken:
            flow.on_accepted(taken * cost, now_s + 0.02)
        if taken < count:
            flow.on_refused(now_s + 0.02, chance.random())
        if now_s > 10.0:
            accepted[writer] += taken * cost
            outcome.requests += 1
            outcome.refused += taken < count
        heapq.heappush(events, (now_s + 0.02, writer))
    outcome.used = sum(accepted) / (end_s - 10.0)
    outcome.least, outcome.most = min(accepted), max(accepted)
    return outcome


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("record_bytes", [1024, 51_200])
def test_eight_writers_that_want_three_times_a_shard_use_it_all_and_are_rarely_refused(record_bytes, seed):
    outcome = crowd(8, 3.0, record_bytes, seed)
    assert outcome.used > 0.95
    assert outcome.refused / outcome.requests < 0.06


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("record_bytes", [1024, 51_200])
def test_over_a_quarter_of_an_hour_each_of_eight_writers_has_much_the_same(record_bytes, seed):
    # A minute holds some five refusals per writer, so chance rules it; fairness shows in the long run.
    outcome = crowd(8, 3.0, record_bytes, seed, end_s=900.0)
    assert outcome.least > 0.6 * outcome.most


def test_a_writer_alone_uses_the_whole_shard():
    assert crowd(1, 3.0, 51_200, 0).used > 0.95


def test_writers_that_want_less_than_there_is_are_never_refused():
    outcome = crowd(4, 0.8, 10_000, 0)
    assert outcome.refused == 0
