"""Worlds in which nothing goes wrong, to measure how leases settle."""

from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.position import TRIM_HORIZON
from penstock.core.starting import StartingPosition
from penstock_sim.plan import FaultPlan, Scenario


def calm(workers, shard_count, policy, **more):
    options = CoordinatorOptions(policy=policy, start=StartingPosition(default=TRIM_HORIZON))
    return Scenario(
        seed=5,
        workers=workers,
        shard_count=shard_count,
        options=options,
        faults=FaultPlan(),
        records_per_s=0.0,
        **more,
    )
