"""A fleet of two zones, a hundred workers in each."""

from collections import Counter

from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.core.leases.lease_writes import Renew
from penstock_sim.checkers import Suite
from penstock_sim.events.leases import LeaseWritten
from penstock_sim.world import World
from sim.calm import calm


def moves(world):
    return [
        event
        for _, event in world.history
        if isinstance(event, LeaseWritten) and not isinstance(event.write, Renew)
    ]


def test_500_shards_and_two_zones_of_a_hundred_workers_settle_at_250_and_250():
    workers = tuple(f"{zone}/w{number:03}" for number in range(100) for zone in ("east", "west"))
    scenario = calm(workers, 500, BalancePolicy.BY_ZONE, with_readers=False, start_spread_s=4.0)
    suite = Suite(scenario.options)
    world = World(scenario, suite.see)
    world.chance.randint = lambda low, high: low  # no resharding before the start
    world.begin()
    world.run_until(70.0)
    owners = [row.owner for row in suite.history.rows.values()]
    assert Counter(owner.partition("/")[0] for owner in owners) == {"east": 250, "west": 250}
    assert Counter(Counter(owners).values()) == {2: 100, 3: 100}
    before = len(moves(world))
    world.run_until(90.0)
    after = len(moves(world))
    assert after == before
    assert suite.violation is None
