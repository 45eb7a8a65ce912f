"""Native KCL 3 fleets in the simulator: one of the KCL's workers leads, and workers of Penstock's are members that follow."""

import pytest
from msgspec.structs import replace

from penstock.cli.main import main
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import End, RequestHandover, Take
from penstock.core.position import SHARD_END
from penstock_sim import command
from penstock_sim.events.kcl3 import FleetUnready, LeaderElected, LeaderLost, VersionChanged
from penstock_sim.events.leases import LeaseWritten
from penstock_sim.events.processes import CoordinatorReported, ProcessExited, ProcessStarted
from penstock_sim.events.streams import ShardCreated
from penstock_sim.kcl3_checkers import LeftToTheLeader
from penstock_sim.plan import NATIVE, NATIVE_FOR_NOW, ROLLED_BACK
from penstock_sim.reading_presets import draw_kcl3_scenario
from sim.judging import verdict


def test_every_fleet_has_workers_of_both_kinds():
    for seed in range(50):
        scenario = draw_kcl3_scenario(seed)
        assert 0 < len(scenario.kcl3.workers) < len(scenario.workers)


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


@pytest.mark.parametrize("kind", ["--kcl3", "--queries"])
def test_the_command_says_what_is_missing_for_worlds_with_a_query(kind, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    assert main(["simulate", kind]) == 2
    told = capsys.readouterr().err
    assert kind in told
    assert "pip install 'penstock[spark]'" in told
