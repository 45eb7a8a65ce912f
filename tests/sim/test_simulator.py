"""The simulator: the faults that seeds draw, small fleets without faults, and the command."""

import json
import re
from collections import Counter

from msgspec.structs import replace

from penstock.cli.main import main
from penstock.core.leases.coordinator_options import BalancePolicy
from penstock_sim.checkers import Suite
from penstock_sim.events.base import name_of
from penstock_sim.events.processes import CallMade, ProcessExited
from penstock_sim.kinds import SeedKind
from penstock_sim.plan import FaultPlan
from penstock_sim.reading_presets import draw_query_scenario
from penstock_sim.run import run_scenario
from penstock_sim.seed_kinds import DRAW
from penstock_sim.situations import expected, never_met
from penstock_sim.world import World
from sim.calm import calm


def test_the_seeds_draw_every_fault():
    off = FaultPlan()
    plans = [draw(seed).faults for draw in DRAW.values() for seed in range(300)]
    always = {"latency_max_s", "pause_max_s"}
    for name in set(FaultPlan.__slots__) - always:
        used = sum(getattr(plan, name) != getattr(off, name) for plan in plans)
        assert 5 < used < len(plans), name


def test_the_seeds_draw_every_option_of_queries():
    plans = [draw_query_scenario(seed).query_plan for seed in range(300)]
    for option in (
        "maxRecordsPerTrigger",
        "maxRecordsPerShard",
        "maxBatchDuration",
        "shardsPerTask",
        "deaggregate",
    ):
        assert 5 < sum(option in plan.options for plan in plans) < len(plans), option


def test_what_never_came_up_is_named():
    assert never_met([], SeedKind.CONSUMERS) == list(expected(SeedKind.CONSUMERS))
    assert "refusal: COUNTER" not in never_met(["refusal: COUNTER of Take"], SeedKind.CONSUMERS)


def running(scenario, until_s, *, reshards=True):
    """Return the world of a scenario at a moment, and its checkers; perhaps without reshards before the start."""
    suite = Suite(scenario.options)
    world = World(scenario, suite.see)
    if not reshards:
        world.chance.randint = lambda low, high: low
    world.begin()
    world.run_until(until_s)
    return world, suite


def test_fifty_workers_on_an_empty_table_list_a_few_times_and_each_at_most_once():
    workers = tuple(f"w{number}" for number in range(50))
    scenario = calm(workers, 100, BalancePolicy.EVEN, with_readers=False, start_spread_s=0.5)
    world, _ = running(scenario, 25.0)
    listings = Counter(
        event.who for _, event in world.history if isinstance(event, CallMade) and event.call == "list shards"
    )
    assert max(listings.values()) == 1
    assert sum(listings.values()) <= 5


def test_a_killed_workers_shards_move_within_the_lease_time_and_one_round():
    scenario = calm(("a", "b", "c"), 12, BalancePolicy.EVEN, start_spread_s=0.0)
    world, suite = running(scenario, 40.0)
    victim = world.workers["a"]
    assert any(row.owner == "a" for row in world.table.rows.values())
    world.is_healed = False
    victim.is_alive = False
    del world.workers["a"]
    world.record(ProcessExited(victim.who, "killed"))
    options = scenario.options
    world.run_until(40.0 + options.lease_duration_s + 1.2 * options.interval_s + 1.0)
    owners = {row.owner for row in world.table.rows.values() if not row.is_ended}
    assert owners == {"b", "c"}
    assert suite.violation is None


def test_a_politely_stopped_workers_shards_move_within_one_round():
    scenario = calm(("a", "b", "c"), 12, BalancePolicy.EVEN, start_spread_s=0.0)
    world, _ = running(scenario, 40.0)
    world.is_healed = False
    leaving = world.workers["a"]
    leaving.on_gone = lambda worker, how: (setattr(worker, "is_alive", False), world.workers.pop(worker.name))
    leaving.request_stop()
    world.run_until(40.0 + 1.2 * scenario.options.interval_s + 1.0)
    assert {row.owner for row in world.table.rows.values() if not row.is_ended} == {"b", "c"}


def test_a_joining_worker_has_its_share_after_two_rounds_and_nothing_is_repeated():
    scenario = calm(("a", "b", "c"), 12, BalancePolicy.EVEN, start_spread_s=0.0)
    world, suite = running(scenario, 40.0)
    world.start_worker("d")
    world.run_until(40.0 + 2 * scenario.options.interval_s)
    counts = Counter(name_of(reader.who) for reader in suite.history.readers.values())
    shards = sum(1 for row in world.table.rows.values() if not row.is_ended)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert sum(counts.values()) == shards
    assert len(counts) == 4
    assert suite.violation is None


def test_500_shards_and_two_zones_of_a_hundred_workers_settle_at_250_and_250():
    workers = tuple(f"{zone}/w{number:03}" for number in range(100) for zone in ("east", "west"))
    scenario = calm(workers, 500, BalancePolicy.BY_ZONE, with_readers=False, start_spread_s=4.0)
    world, suite = running(scenario, 70.0, reshards=False)
    owners = [row.owner for row in suite.history.rows.values()]
    assert Counter(owner.partition("/")[0] for owner in owners) == {"east": 250, "west": 250}
    assert Counter(Counter(owners).values()) == {2: 100, 3: 100}
    suite.history.is_quiet = True
    world.run_until(90.0)
    assert suite.violation is None


def run_with_a_limited_worker():
    drawn = calm(("a", "b"), 6, BalancePolicy.EVEN, start_spread_s=0.0, limits=(("b", 1),))
    scenario = replace(drawn, options=replace(drawn.options, scanned_rows_per_s_max=4.0, part_watchers_min=1))
    world, _ = running(scenario, 60.0, reshards=False)
    world.is_healed = True  # it returns at once
    world.workers["a"].request_stop()
    world.run_until(200.0)
    return Counter(row.owner for row in world.table.rows.values())


def test_leases_whose_watchers_are_full_are_taken_by_others():
    assert run_with_a_limited_worker() == {"a": 5, "b": 1}


def test_a_calm_world_settles_without_a_violation():
    result = run_scenario(calm(("a", "b"), 4, BalancePolicy.EVEN, safety_s=30.0))
    assert result.violation is None


# --- the command ------------------------------------------------------------------------------------------


def test_the_command_ends_with_its_figures_and_zero_when_clean(capsys):
    assert main(["simulate", "--seeds", "3", "--start", "7"]) == 0
    out = capsys.readouterr()
    assert out.out.splitlines()[-1].startswith("3 seeds, 0 violations, ")
    assert out.out.splitlines()[-1].endswith(" seeds/s")
    assert any(line.startswith("fault: ") for line in out.out.splitlines())
    assert "never came up" not in out.out
    (came_up,) = re.findall(
        r"^(\d+) of (\d+) expected situations came up; .*--json.*--seeds 100", out.out, re.MULTILINE
    )
    assert 0 < int(came_up[0]) < int(came_up[1])
    assert max(map(len, out.out.splitlines()[-3:])) < 130
    assert "\r" not in out.out + out.err


def test_the_command_speaks_json(capsys):
    assert main(["simulate", "--seeds", "2", "--json"]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document.get("seed") for document in documents] == [0, 1, None]
    assert documents[-1]["violations"] == 0
    assert documents[-1]["met"]["refusal: EXISTS of Create"] > 0
    assert "fault: table_drops_per_min" in documents[-1]["never_met"]


def test_a_failing_seed_is_shown_with_its_history_and_how_to_run_it_again(capsys):
    from sim.mutants import MUTANTS

    mutant = next(mutant for mutant in MUTANTS if mutant.name == "end before the children")
    with mutant.planted():
        assert main(["simulate", "--seeds", "1", "--start", "0", "--history", "5"]) == 1
    out = capsys.readouterr().out
    assert "seed 0: S5 at" in out
    assert "again: penstock simulate --seeds 1 --start 0" in out
    assert out.splitlines()[-1].startswith("1 seeds, 1 violations, ")


def test_a_bad_number_of_seeds_is_refused(capsys):
    assert main(["simulate", "--seeds", "0"]) == 2
    assert "--seeds 0" in capsys.readouterr().err
