"""The seeds behind the first ones, of every kind, and their situations."""

from collections import Counter

import pytest

from penstock_sim.kinds import SeedKind
from penstock_sim.run import run_seed
from penstock_sim.situations import never_met
from sim.judging import show

BLOCK = 5
SEEDS = {
    SeedKind.CONSUMERS: range(45, 100, BLOCK),
    SeedKind.QUERIES: range(5, 180, BLOCK),
    SeedKind.KCL3: range(4, 38, BLOCK),
    SeedKind.PRODUCERS: range(14, 64, BLOCK),
    SeedKind.SINKS: range(6, 201, BLOCK),
    SeedKind.STREAMS: range(4, 130, BLOCK),
    SeedKind.QUEUES: range(6, 106, BLOCK),
}
"""The first seed of each block; earlier ones are run by the tests of their kind."""
PUSHED = range(10, 30, BLOCK)
RARE = {
    SeedKind.STREAMS: {
        "fault: table_drops_per_min",
        "situation: a worker leaves for ever during a hand-over that it has requested",
    }
}
"""What one world of a kind in a hundred or fewer meets, and another kind meets more often."""


def check(kind, begin, options=None):
    met = Counter()
    for seed in range(begin, begin + BLOCK):
        result = run_seed(seed, kind, options)
        assert result.violation is None, show(result)
        met += result.met
    return met


@pytest.fixture(scope="module")
def met_by_kind():
    return {kind: {} for kind in SeedKind}


@pytest.fixture(scope="module")
def events_pushed():
    return {}


@pytest.mark.parametrize(
    ("kind", "begin"),
    [pytest.param(kind, begin, id=f"{kind.value}-{begin}") for kind in SeedKind for begin in SEEDS[kind]],
)
def test_no_promise_is_broken_in_any_of_many_seeds(kind, begin, met_by_kind):
    met_by_kind[kind][begin] = check(kind, begin)


@pytest.mark.parametrize("consumer_type", ["fan-out", "auto"])
@pytest.mark.parametrize("begin", PUSHED)
def test_no_guarantee_of_a_query_is_broken_where_subscriptions_bring_the_pages(
    begin, consumer_type, events_pushed
):
    met = check(SeedKind.QUERIES, begin, {"consumerType": consumer_type})
    events_pushed[begin, consumer_type] = met["fan-out: events"]


def test_subscriptions_brought_pages_in_both_ways(events_pushed):
    if len(events_pushed) < 2 * len(PUSHED):
        pytest.skip("only a part of the seeds was run, or some of them failed")
    for consumer_type in ("fan-out", "auto"):
        assert sum(count for (_, kind), count in events_pushed.items() if kind == consumer_type) > 0


@pytest.mark.parametrize(
    "kind", [SeedKind.QUERIES, SeedKind.SINKS, SeedKind.QUEUES, SeedKind.STREAMS], ids=lambda kind: kind.value
)
def test_everything_that_is_expected_of_a_kind_came_up_in_its_seeds(kind, met_by_kind):
    met = met_by_kind[kind]
    if len(met) < len(SEEDS[kind]):
        pytest.skip("only a part of the seeds was run, or some of them failed")
    assert set(never_met(sum(met.values(), Counter()), kind)) <= RARE.get(kind, set())
