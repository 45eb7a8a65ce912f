"""Native KCL 3 fleets in the simulator: one of the KCL's workers leads, and workers of Penstock's are members that follow."""

from collections import Counter

import pytest
from msgspec.structs import replace

from penstock.cli import simulate_command
from penstock.cli.main import main
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import End, RequestHandover, Take
from penstock.core.position import SHARD_END
from penstock_sim.events.kcl3 import FleetUnready, LeaderElected, LeaderLost, VersionChanged
from penstock_sim.events.leases import LeaseWritten
from penstock_sim.events.processes import CoordinatorReported, ProcessExited, ProcessStarted
from penstock_sim.events.streams import ShardCreated
from penstock_sim.kcl3_checkers import LeftToTheLeader
from penstock_sim.kinds import SeedKind
from penstock_sim.plan import NATIVE, NATIVE_FOR_NOW, ROLLED_BACK
from penstock_sim.reading_presets import draw_kcl3_scenario
from penstock_sim.run import run_seed
from penstock_sim.situations import expected, never_met
from sim.judging import verdict
from sim.seed_results import IMPORTS, assert_clean, outputs_by_hash_seed

SEEDS = 4  # test_many_seeds.py runs the following ones


FAILED_BEFORE = {
    173: "a query planned empty batches without end for a shard whose last records had left the stream unread, as its lease told "
    "an older moment than its task of when nothing was left",
    169: "a child that the leader assigned was read before its parent, which no look at the table had shown yet",
    379: "the same",
    869: "a merged shard waited for the turn of Java workers, which look for no lease that is missing",
    585: "what was passed in doubt, behind a checkpoint of the KCL, was taken for a loss that nobody told",
    1264: "a worker that found its leases by the index looked for a lease that was missing ten times less often than others",
    1456: "the same",
    1757: "the same",
    1843: "a reader that was refused for the length of the retention told a loss, and a checker took its doubts for tips",
    1896: "a handler that got one record at a time was still at work on a backlog when the run ended",
    1948: "a query did not read a shard whose lease had been another worker's in its last batch, and was deleted and made again since",
    12849: "a worker that saw no KCL 3 worker was to ask one that had not written a throughput yet, said a checker",
    30029: "reshards were so frequent that a query listed the shards once more than a checker allowed",
    1630: "the second driver of a query found a shard ended, and a checker blamed it for taking the child",
}


@pytest.fixture(scope="module")
def runs():
    return [run_seed(seed, SeedKind.KCL3) for seed in range(SEEDS)]


def test_no_invariant_is_broken(runs):
    assert_clean(runs)


@pytest.mark.parametrize("seed", FAILED_BEFORE)
def test_a_seed_that_failed_once_stays_clean(seed):
    assert run_seed(seed, SeedKind.KCL3).violation is None


def test_the_same_seed_gives_the_same_history(runs):
    assert run_seed(3, SeedKind.KCL3).digest == runs[3].digest


def test_the_same_seed_gives_the_same_history_in_every_process():
    # The order of a set of names differs between processes.
    program = f"{IMPORTS}; print(run_seed(0, SeedKind.KCL3).digest)"
    assert len(outputs_by_hash_seed(program, ("1", "3", "5", "7"))) == 1


def test_every_fleet_has_workers_of_both_kinds():
    for seed in range(50):
        scenario = draw_kcl3_scenario(seed)
        assert 0 < len(scenario.kcl3.workers) < len(scenario.workers)


def test_leaders_come_and_go_and_assign_and_leases_are_handed_over_both_ways(runs):
    met = sum((result.met for result in runs), Counter())
    missing = never_met(met, SeedKind.KCL3)
    assert [each for each in missing if each.startswith(("situation: a leader", "fleet: "))] == []
    for situation in (
        "situation: a worker becomes the leader",
        "situation: the leader assigns a free lease",
        "situation: the leader asks for a lease",
        "situation: a Penstock worker hands a lease to a KCL 3 worker",
    ):
        assert met[situation] > 0, situation
    assert set(missing) <= set(expected(SeedKind.KCL3))


# --- the checker ------------------------------------------------------------------------------------------------

OTHERS = Lease("s", owner="w", counter=1)
TAKE = LeaseWritten("p#1", Take("s", 1, "p"), OTHERS, Lease("s", owner="p", counter=2))
ASK = LeaseWritten("p#1", RequestHandover("s", "w", "p"), OTHERS, Lease("s", owner="p", checkpoint_owner="w"))
TAKE_FREE = LeaseWritten("p#1", Take("s", 1, "p"), Lease("s", counter=1), Lease("s", owner="p", counter=2))
ENDED = Lease("r", checkpoint=SHARD_END)
END = LeaseWritten("p#1", End("r", 1, "p", SHARD_END), Lease("r", owner="p", counter=1), ENDED)
END_OF_TWIN = replace(END, who="p#2")
FOUND_ENDED = CoordinatorReported("p#1", "ENDED", "", "r")
LED, LEADERLESS, OWN = (
    CoordinatorReported("p#1", "FLEET", mode, None) for mode in ("led", "leaderless", "own")
)
BACK = VersionChanged(ROLLED_BACK)
UP, LEADS = (0.5, ProcessStarted("p#1")), LeaderElected("j#1")
SEEN = LeaseWritten("w#1", Take("s", 0, "w"), Lease("s"), OTHERS)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([(1.0, LED), (20.0, TAKE)], "K1"),
        ([(1.0, LED), (20.0, ASK)], "K1"),
        ([(1.0, LED), (20.0, TAKE_FREE)], "K1"),
        ([(1.0, LED), (5.0, TAKE)], None),
        ([(1.0, LED), (20.0, OWN), (21.0, TAKE)], None),
        ([(1.0, LEADERLESS), (20.0, TAKE_FREE)], None),
        ([(1.0, LEADERLESS), (19.0, SEEN), (20.0, TAKE)], "K1"),
        ([(1.0, LEADERLESS), (19.0, SEEN), (40.0, TAKE)], None),
        ([(1.0, LED), (19.0, END), (20.0, TAKE_FREE)], None),
        ([(1.0, LED), (19.0, END_OF_TWIN), (20.0, TAKE_FREE)], "K1"),
        ([(1.0, LED), (19.0, END_OF_TWIN), (19.5, FOUND_ENDED), (20.0, TAKE_FREE)], None),
        ([(1.0, LED), (19.0, LeaderElected("p#1")), (20.0, TAKE)], None),
        ([UP, (1.0, OWN), (2.0, LEADS), (80.0, SEEN)], "K1"),
        ([UP, (1.0, OWN), (2.0, LEADS), (3.0, LED), (80.0, SEEN)], None),
        ([UP, (1.0, OWN), (2.0, LEADS), (3.0, LeaderLost("j#1", "resigned")), (80.0, SEEN)], None),
        ([UP, (1.0, OWN), (2.0, LEADS), (3.0, ProcessExited("j#1", "crashed")), (80.0, SEEN)], None),
        ([UP, (1.0, OWN), (2.0, LEADS), (50.0, SEEN)], None),
        ([UP, (1.0, LED), (2.0, BACK), (80.0, SEEN)], "K1"),
        ([UP, (1.0, LED), (2.0, BACK), (50.0, SEEN)], None),
        ([UP, (1.0, LED), (2.0, BACK), (40.0, OWN), (80.0, SEEN)], None),
        ([UP, (1.0, LED), (2.0, VersionChanged(NATIVE_FOR_NOW)), (80.0, SEEN)], None),
        ([(1.0, FleetUnready(NATIVE)), (80.0, SEEN)], "K1"),
        ([(1.0, FleetUnready(NATIVE)), (6.0, VersionChanged(NATIVE)), (80.0, SEEN)], None),
    ],
)
def test_what_is_left_to_the_leader(lines, expected):
    begin = [ShardCreated("r", ()), ShardCreated("s", ("r",))]
    assert verdict(LeftToTheLeader, [*begin, *lines]) == expected


# --- the command ------------------------------------------------------------------------------------------------


def test_the_command_runs_fleets_of_kcl_3_workers(capsys):
    assert main(["simulate", "--kcl3", "--seeds", "1"]) == 0
    out = capsys.readouterr().out
    assert "becomes the leader" in out
    assert out.splitlines()[-1].startswith("1 seeds, 0 violations, ")


@pytest.mark.parametrize("kind", ["--kcl3", "--queries"])
def test_the_command_says_what_is_missing_for_worlds_with_a_query(kind, monkeypatch, capsys):
    monkeypatch.setattr(simulate_command, "find_spec", lambda _: None)
    assert main(["simulate", kind]) == 2
    told = capsys.readouterr().err
    assert kind in told
    assert "pip install 'penstock[spark]'" in told


def test_the_command_runs_one_kind_of_world_at_once(capsys):
    assert main(["simulate", "--kcl3", "--queries"]) == 2
    assert "choose one" in capsys.readouterr().err
