"""The kinds of worlds that seeds draw: each kind has its own, and a new one moves none of the others."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Final

from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.sim.faults import SETTLE_MAX_S, Scenario, draw_query_scenario, draw_scenario
from penstock.sim.kcl3_plan import Kcl3Plan


class SeedKind(Enum):
    """What a seed is about."""

    CONSUMERS = "consumers"
    QUERIES = "queries"
    KCL3 = "kcl3"


def draw_kcl3_scenario(seed: int) -> Scenario:
    """Draw a seed's native KCL 3 fleet, with workers of Penstock's in it; everything else as for consumers alone."""
    drawn = draw_scenario(seed)
    chance = random.Random(f"kcl3 {seed}")
    java, own = chance.choice(((1, 1), (1, 2), (2, 1), (2, 2), (3, 1)))
    names = tuple(f"{'ab'[index % 2]}/{'j' if index < java else 'w'}{index}" for index in range(java + own))
    lock_s = chance.choice((20.0, 40.0, 120.0))
    plan = Kcl3Plan(
        workers=frozenset(names[:java]),
        lock_s=lock_s,
        leader_deaths_per_min=chance.uniform(0.3, 2.0) if chance.random() < 0.5 else 0.0,
        leader_moves_per_min=chance.uniform(0.3, 2.0) if chance.random() < 0.4 else 0.0,
    )
    options = replace(
        drawn.options,
        policy=BalancePolicy.EVEN,
        kcl3=True,
        handover=True,
        leases_to_acquire=None,
        handover_timeout_s=30.0,
    )
    return replace(
        drawn,
        workers=names,
        options=options,
        # The KCL keeps its rows in the lease table: without it no worker of its fleet goes on.
        faults=replace(drawn.faults, table_drops_per_min=0.0, rows_of_others=0.0),
        foreign=frozenset(),
        limits=(),
        # In some seeds the KCL's workers are retired, and the others must notice that nobody leads any more.
        leavers=plan.workers if chance.random() < 0.25 else frozenset(),
        safety_s=chance.choice((100.0, 150.0, 200.0)),
        quiet_rounds=min(drawn.quiet_rounds, 8),
        kcl3=plan,
        settle_max_s=2 * SETTLE_MAX_S + lock_s,
    )


DRAW: Final[Mapping[SeedKind, Callable[[int], Scenario]]] = {
    SeedKind.CONSUMERS: draw_scenario,
    SeedKind.QUERIES: draw_query_scenario,
    SeedKind.KCL3: draw_kcl3_scenario,
}
"""Draws a seed's scenario, by kind."""
