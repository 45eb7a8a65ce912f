"""Measure what balancing does to a fleet in the simulator, without faults: leases that move, rounds until all are even, units.

The policies are Penstock's and the rule of the KCL 2.x, both run by the same workers on the same leases.
"""

from __future__ import annotations

import random
import time
from typing import Any

from program import Figures, run

SETTLED_S, WATCHED_S = 60.0, 360.0


def world_of(worker_count: int, shard_count: int, policy: str, seed: int, see: Any) -> Any:
    """Return a fleet that is even when it starts to count."""
    from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
    from penstock.core.position import TRIM_HORIZON
    from penstock.core.starting import StartingPosition
    from penstock_sim.plan import FaultPlan, Scenario
    from penstock_sim.world import World

    scenario = Scenario(
        seed,
        tuple(f"w{number}" for number in range(worker_count)),
        shard_count,
        CoordinatorOptions(start=StartingPosition(default=TRIM_HORIZON), policy=BalancePolicy(policy)),
        FaultPlan(),
        records_per_s=0.0,
        start_spread_s=0.0,
        with_readers=False,
    )
    world = World(scenario, see)
    world.chance.randint = lambda low, _: low  # type: ignore[method-assign]  # no resharding before the start
    world.begin()
    return world


def join(turn: int, before: int, after: int, shard_count: int, policy: str) -> Figures:
    """Add workers over one round; count the leases that move and the rounds until none does."""
    readers: dict[str, str | None] = {}
    moves: list[float] = []

    def see(entry: Any) -> None:
        after = getattr(entry.event, "after", None)  # the row after a write
        if after is not None and not after.is_ended:
            if after.reader is not None and after.reader != readers.get(after.key):
                moves.append(entry.at_s)
            readers[after.key] = after.reader

    world = world_of(before, shard_count, policy, turn, see)
    world.run_until(SETTLED_S)
    moves.clear()
    chance, round_s = random.Random(turn), world.scenario.options.interval_s
    for number in range(before, after):
        world.schedule(SETTLED_S + chance.uniform(0.0, round_s), world.start_worker, f"w{number}")
    world.run_until(SETTLED_S + WATCHED_S)
    needed = shard_count - -(-shard_count * before // after)
    return {
        "moves": float(len(moves)),
        "needed_moves": float(needed),
        "rounds": (moves[-1] - SETTLED_S) / round_s if moves else 0.0,
    }


def fleet(turn: int, workers: int, leases: int, scenario: str, policy: str) -> Figures:
    """Run a scenario of a large fleet."""
    del turn
    from penstock.core.leases.coordinator_options import BalancePolicy
    from penstock_sim.fleet_scenarios import FleetScenario, run_fleet

    scenarios = [FleetScenario(scenario)]
    (found,) = run_fleet(workers, leases, policy=BalancePolicy(policy), scenarios=scenarios)
    return {
        "read_units_per_hour": found.reads_per_s * 3600,
        "write_units_per_hour": found.writes_per_s * 3600,
        "units_per_hour": (found.reads_per_s + found.writes_per_s) * 3600,
        "moves": float(found.moves),
        "unread_max_s": found.unread_max_s,
    }


def plan(turn: int, leases: int, workers: int) -> Figures:
    """Plan one round of a newcomer in a fleet in which nine of ten workers hold leases at random."""
    from penstock.core.leases.balance import BalancePolicy, plan_balance
    from penstock.core.leases.fleet_view import FleetLease
    from penstock.core.leases.lease import Lease
    from penstock.core.leases.lease_view import OwnerState

    chance = random.Random(turn)
    names = [f"{number % 3}/w{number}" for number in range(workers)]
    view = [
        FleetLease(
            Lease(
                f"shardId-{number:012}",
                owner=chance.choice(names[: workers * 9 // 10]),
                throughput_kbps=chance.random() * 1000,
            ),
            OwnerState.ALIVE,
        )
        for number in range(leases)
    ]
    times_ms: dict[str, list[float]] = {policy.value: [] for policy in BalancePolicy}
    for _ in range(5):
        for policy in BalancePolicy:
            began_s = time.process_time()
            plan_balance(view, names[workers * 19 // 20], policy)
            times_ms[policy.value].append((time.process_time() - began_s) * 1000)
    return {f"{name}_ms": min(found) for name, found in times_ms.items()}


if __name__ == "__main__":
    run({"join": join, "fleet": fleet, "plan": plan})
