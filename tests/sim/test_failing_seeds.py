"""The output for a failing seed: its last events, and a test with as few faults as still break it."""

import pytest
from msgspec.structs import replace

from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Renew, Take
from penstock.core.position import TRIM_HORIZON
from penstock.core.reading.delivery_calls import DeliveryOptions
from penstock_sim.checkers import Violation
from penstock_sim.events.base import HistoryEntry
from penstock_sim.events.leases import LeaseWritten
from penstock_sim.events.processes import CallMade, ProcessPaused, ProcessStarted
from penstock_sim.events.reading import ReaderStarted, RecordsDelivered
from penstock_sim.plan import FaultPlan
from penstock_sim.reading_presets import draw_query_scenario, draw_scenario
from penstock_sim.run import run_scenario
from penstock_sim.shrinking import as_test, shrink
from sim.calm import calm
from sim.mutants import MUTANTS

ONE, OTHER = "shardId-000000000001", "shardId-000000000002"
BEFORE, AFTER = Lease(ONE, owner="b"), Lease(ONE, owner="a", counter=1)
HISTORY = [
    HistoryEntry(1.0, ProcessStarted("a#1")),
    HistoryEntry(2.0, LeaseWritten("a#1", Take(ONE, 0, "a"), BEFORE, AFTER)),
    HistoryEntry(3.0, LeaseWritten("a#1", Renew(ONE, 1, "a"), AFTER, AFTER)),
    HistoryEntry(4.0, ReaderStarted("a#1", OTHER, 1, TRIM_HORIZON)),
    HistoryEntry(4.5, CallMade("a#1", "read", ONE)),
    HistoryEntry(5.0, RecordsDelivered("a#1", ONE, 1, (7, 8, 9))),
    HistoryEntry(6.0, ProcessPaused("a#1", 30.0)),
]


def test_the_story_tells_of_the_shards_that_the_violation_names():
    result = replace(run_scenario(calm((), 1, BalancePolicy.EVEN, safety_s=0.0)), history=tuple(HISTORY))
    of_one = replace(result, violation=Violation("S1", 6.0, f"a#1 delivers {ONE}"))
    assert of_one.story(10) == [str(HISTORY[place]) for place in (0, 1, 5, 6)]
    of_all = replace(result, violation=Violation("L2", 6.0, "uneven"))
    assert of_all.story(3) == [str(HISTORY[place]) for place in (3, 5, 6)]


def test_a_scenario_is_shrunk_to_what_breaks_it():
    drawn = draw_scenario(7)
    needed = replace(drawn.faults, crashes_per_min=2.0, table_error=0.1)

    def breaks(scenario):
        return scenario.faults.crashes_per_min > 0 and len(scenario.workers) >= 2

    found = shrink(replace(drawn, workers=("a", "b", "c", "d"), faults=needed), breaks, runs_max=1000)
    assert found.faults == FaultPlan(crashes_per_min=2.0)
    assert found.workers == ("a", "b")
    assert found.retention_s is None


def test_shrinking_ends_after_its_runs():
    runs = []
    shrink(draw_query_scenario(4), lambda scenario: bool(runs.append(scenario)), runs_max=3)
    assert len(runs) == 3


def test_a_failing_seed_is_shrunk_to_a_test_that_fails_too():
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "end before the children")
    drawn = draw_scenario(mutant.seed)
    with mutant.planted():
        smaller = shrink(drawn, lambda scenario: run_scenario(scenario).violation is not None, runs_max=12)
        result = run_scenario(smaller)
    assert result.story(10)
    text = as_test(smaller, drawn, draw_scenario)
    assert f"draw_scenario({mutant.seed})" in text
    ran = []
    names = {"draw_scenario": draw_scenario, "replace": replace, "show": str}
    names |= {"FaultPlan": FaultPlan, "DeliveryOptions": DeliveryOptions}
    names["run_scenario"] = lambda scenario: ran.append(scenario) or result
    exec(text, names)
    with pytest.raises(AssertionError):
        names[f"test_seed_{mutant.seed}_stays_clean"]()
    assert ran == [smaller]
