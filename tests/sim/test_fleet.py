"""A fleet too large for workers that scan the whole table: its reads, and how soon a dead worker's shards are read again."""

import json

import pytest

from penstock.cli.main import main
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.lease import Lease, TablePart
from penstock_sim.fleet import Fleet
from penstock_sim.fleet_scenarios import FleetScenario, WatchedFleet, free_fleet, length_s, settle
from penstock_sim.table_units import get_units, row_bytes, scan_units, write_units

WORKERS, LEASES = 60, 600


@pytest.fixture(scope="module")
def settled():
    fleet = settle(WORKERS, LEASES, BalancePolicy.EVEN).fleet
    fleet.run_until(fleet.now + 20.0)
    return fleet


def reads_per_s(fleet, length_s):
    """Pass time; return the read units per second, after a reset of the counts."""
    fleet.costs.moves.clear()
    fleet.costs.gaps.clear()
    began_s = int(fleet.now) + 1
    fleet.run_until(began_s + length_s)
    return sum(fleet.costs.reads.get(second, 0.0) for second in range(began_s, began_s + length_s)) / length_s


def test_a_fleet_at_rest_reads_a_third_of_what_whole_looks_in_every_round_would_cost(settled):
    size = sum(row_bytes(row) for row in settled.rows.values())
    whole_looks = WORKERS * scan_units(size, is_consistent=True) / settled.options.interval_s
    assert reads_per_s(settled, 60) < whole_looks / 3
    assert settled.costs.moves == []
    assert settled.counts() == [LEASES // WORKERS] * WORKERS


@pytest.mark.parametrize("lost", [1, WORKERS // 3])
def test_the_shards_of_workers_that_die_are_read_again_within_two_lease_times(settled, lost):
    reads_per_s(settled, 1)
    dead = sorted(settled.workers)[:lost]
    orphans = {key for name in dead for key in settled.workers[name].readers}
    for name in dead:
        settled.kill(name)
    settled.run_until(settled.now + 2 * settled.options.lease_duration_s)
    gaps = {key: gap_s for since_s, gap_s, key in settled.costs.gaps if key in orphans}
    assert gaps.keys() == orphans
    assert max(gaps.values()) <= 2 * settled.options.lease_duration_s


def test_a_fleet_that_starts_on_a_large_table_reads_it_in_parts_first():
    workers, leases = 90, 900
    watched = WatchedFleet(free_fleet(leases, BalancePolicy.EVEN), workers, leases)
    figures = watched.watch(FleetScenario.START, length_s=20.0)
    assert figures.all_read_s <= 15.0
    size = leases * row_bytes(Lease("shardId-000000000000", owner="a/w0000"))
    assert figures.reads_peak_per_s < workers * scan_units(size, is_consistent=True) / 10


def test_every_scenario_has_a_description_and_a_length():
    assert all(scenario.description and scenario.length_s > 0 for scenario in FleetScenario)
    assert length_s([FleetScenario.CALM, FleetScenario.ZONE]) == 380.0
    assert length_s([FleetScenario.START]) == 120.0


def test_units_are_counted_as_dynamodb_bills_them():
    assert scan_units(0, is_consistent=True) == 1
    assert scan_units(4097, is_consistent=True) == 2
    assert scan_units(4097, is_consistent=False) == 1
    assert scan_units(3 << 20, is_consistent=True) == 768
    assert (get_units(0), get_units(500), get_units(5000)) == (1, 1, 2)
    assert (write_units(0), write_units(1024), write_units(1025)) == (1, 1, 2)


def test_a_part_of_the_table_holds_what_its_rows_hash_to():
    fleet = Fleet(CoordinatorOptions())
    for number in range(40):
        fleet.put(Lease(f"s{number}"))
    parts = [fleet.scan(TablePart(number, 4)) for number in range(4)]
    fleet.put(Lease("late"))
    assert sorted(row.key for rows in parts for row in rows) == sorted(f"s{number}" for number in range(40))
    assert sum("late" in {row.key for row in fleet.scan(TablePart(number, 4))} for number in range(4)) == 1


# --- the command ------------------------------------------------------------------------------------------


def test_the_command_prints_what_a_fleet_costs(capsys):
    assert main(["simulate", "--fleet", "6", "--scenario", "calm"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("6 workers, 60 leases, policy even\n")
    assert "calm: nothing happens" in out
    assert "  moves          0; 10 to 10 shards per worker" in out


def test_the_command_speaks_json_of_a_fleet_too(capsys):
    arguments = [
        "simulate",
        "--fleet",
        "6",
        "--leases",
        "30",
        "--policy",
        "kcl2",
        "--scenario",
        "calm",
        "--json",
    ]
    assert main(arguments) == 0
    (document,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (document["scenario"], document["policy"]) == ("calm", "kcl2")
    assert (document["worker_count"], document["lease_count"], document["moves"]) == (6, 30, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fleet", "0"], "--fleet 0: expected at least 1"),
        (["--leases", "100"], "add --fleet"),
        (["--scenario", "zone"], "add --fleet"),
    ],
)
def test_what_describes_no_fleet_is_refused(arguments, message, capsys):
    assert main(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err
