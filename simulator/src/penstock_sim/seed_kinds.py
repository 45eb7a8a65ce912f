"""The kinds of worlds that seeds draw: each kind has its own, and a new one moves none of the others."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.core.position import LATEST, TRIM_HORIZON
from penstock.core.starting import StartingPosition
from penstock.core.writing.batcher_steps import BatcherSettings
from penstock_sim.faults import (
    DELIVERY,
    EPOCH_MS,
    SETTLE_MAX_S,
    FaultPlan,
    Scenario,
    draw_query_scenario,
    draw_scenario,
)
from penstock_sim.kcl3_plan import NATIVE, NATIVE_FOR_NOW, ROLLED_BACK, UPGRADING, Kcl3Plan
from penstock_sim.kinds import SeedKind
from penstock_sim.producer_plan import ProducerPlan
from penstock_sim.sink_plan import draw_sink_plan
from penstock_sim.streams_plan import draw_streams_plan

_MIGRATING_SEEDS: Final = 2
"""Of three seeds of KCL 3 fleets this one migrates."""
_QUERY_SEEDS: Final = frozenset({4, 5})
"""Of six seeds of KCL 3 fleets these have a query, in a native fleet and in one that migrates."""
_READ_SEEDS: Final = 3
"""Of four seeds of producers, and of sinks, this one has consumers."""
_CALM_SEEDS: Final = 3
"""Of four seeds of several streams in this one nothing goes wrong but with streams."""
_WRITTEN_WITHIN_S: Final = 900.0
"""So long after the faults' end every batch of a sink is done: one attempt may wait for its deadline, and another try."""


def draw_kcl3_scenario(seed: int) -> Scenario:
    """Draw a seed's KCL 3 fleet with workers of Penstock's in it; everything else as for consumers alone.

    Two of three fleets are native, the others migrate. In one of three there is a query.
    """
    has_query = seed % 6 in _QUERY_SEEDS
    drawn = _draw_beside_query(seed) if has_query else draw_scenario(seed)
    chance = random.Random(f"kcl3 {seed}")
    java, own = chance.choice(((1, 1), (1, 2), (2, 1), (2, 2), (3, 1)))
    names = tuple(f"{'ab'[index % 2]}/{'j' if index < java else 'w'}{index}" for index in range(java + own))
    queries = frozenset(names[java : java + 1]) if has_query else frozenset[str]()
    lock_s = chance.choice((20.0, 40.0, 120.0))
    plan = Kcl3Plan(
        workers=frozenset(names[:java]),
        lock_s=lock_s,
        leader_deaths_per_min=chance.uniform(0.3, 2.0) if chance.random() < 0.5 else 0.0,
        leader_moves_per_min=chance.uniform(0.3, 2.0) if chance.random() < 0.4 else 0.0,
    )
    # In some seeds the KCL's workers are retired, and the others must notice that there is no leader any more.
    leavers = plan.workers if chance.random() < 0.25 else frozenset[str]()
    safety_s = chance.choice((100.0, 150.0, 200.0))
    if seed % 3 == _MIGRATING_SEEDS:
        plan = _draw_migration(plan, chance)
        leavers = frozenset()
        safety_s = 200.0
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
        queries=queries,
        options=options,
        # The KCL keeps its rows in the lease table: without it no worker of its fleet goes on.
        faults=replace(drawn.faults, table_drops_per_min=0.0, rows_of_others=0.0),
        foreign=frozenset(),
        limits=(),
        leavers=leavers,
        safety_s=safety_s,
        quiet_rounds=min(drawn.quiet_rounds, 8),
        kcl3=plan,
        settle_max_s=2 * SETTLE_MAX_S + lock_s,
    )


def _draw_beside_query(seed: int) -> Scenario:
    """Draw the faults of a query of a KCL 3 fleet: no other worker uses its names."""
    drawn = draw_query_scenario(seed)
    plan = replace(
        drawn.query_plan,
        second_drivers_per_min=0.0,
        robberies_per_min=0.0,
        brief_robbery=0.0,
        restores_per_min=0.0,
        copies_per_min=0.0,
        strangers_per_min=0.0,
        twins_per_min=0.0,
        namesakes_per_min=0.0,
        moves_per_min=0.0,
    )
    takes_apart = "deaggregate" not in plan.options
    faults = replace(drawn.faults, aggregate=drawn.faults.aggregate if takes_apart else 0.0)
    return replace(drawn, query_plan=plan, faults=faults)


def _draw_migration(plan: Kcl3Plan, chance: random.Random) -> Kcl3Plan:
    """Plan the fleet's migration from the KCL's 2.x mode to a leader, perhaps back, and perhaps forward again."""
    begins, *later = chance.choice(
        (
            (UPGRADING,),
            (UPGRADING, NATIVE_FOR_NOW),
            (UPGRADING, NATIVE_FOR_NOW, NATIVE),
            (UPGRADING, NATIVE_FOR_NOW, ROLLED_BACK),
            (ROLLED_BACK, UPGRADING, NATIVE_FOR_NOW),
            (NATIVE_FOR_NOW, ROLLED_BACK, UPGRADING, NATIVE_FOR_NOW),
        )
    )
    at_s = 0.0
    changes = []
    for version in later:
        at_s += chance.uniform(30.0, 60.0)
        changes.append((at_s, version))
    return replace(plan, begins=begins, changes=tuple(changes))


def draw_producer_scenario(seed: int) -> Scenario:
    """Draw a seed's producers, with consumers of their records in a quarter of the seeds; the rest as for consumers alone."""
    drawn = draw_scenario(seed)
    chance = random.Random(f"producers {seed}")

    def some(likelihood: float, high: float) -> float:
        return chance.uniform(0.0, high) if chance.random() < likelihood else 0.0

    settings = BatcherSettings(
        aggregates=chance.random() < 0.6,
        keeps_key_order=chance.random() < 0.8,
        request_record_count_max=chance.choice((2, 10, 500)),
        aggregate_count_max=chance.choice((2, 5, 1000)),
        linger_s=chance.choice((0.0, 0.1, 1.0)),
        map_age_max_s=chance.choice((20.0, 300.0)),
    )
    plan = ProducerPlan(
        settings=settings,
        sender_count=chance.choice((1, 2, 4)),
        key_count=chance.choice((1, 3, 20)),
        records_per_s=chance.choice((1.0, 4.0, 10.0)),
        put_throttled=some(0.5, 0.2),
        put_unavailable=some(0.4, 0.1),
        put_lost=some(0.4, 0.1),
        put_late=some(0.3, 0.1),
        put_unanswered=some(0.5, 0.1),
        entry_throttled=some(0.6, 0.4),
        entry_failed=some(0.4, 0.2),
        entry_unanswered=some(0.2, 0.1),
    )
    denials_per_min = chance.uniform(0.3, 1.5) if chance.random() < 0.2 else 0.0
    names = tuple(f"p{index}" for index in range(chance.choice((1, 2, 3))))
    plan = replace(plan, workers=frozenset(names))
    safety_s = chance.choice((40.0, 80.0))
    if seed % 4 == _READ_SEEDS:
        return replace(_with_consumers(drawn, plan.workers, safety_s + 40.0), producers=plan)
    return Scenario(
        seed=seed,
        workers=names,
        shard_count=drawn.shard_count,
        options=drawn.options,
        faults=_faults_of_writers(drawn, denials_per_min),
        safety_s=safety_s,
        records_per_s=0.0,
        with_readers=False,
        producers=plan,
        settle_max_s=SETTLE_MAX_S,
    )


def _faults_of_writers(drawn: Scenario, denials_per_min: float) -> FaultPlan:
    """Return the faults of a fleet of writers, without those of their calls and without any of leases."""
    faults = drawn.faults
    return FaultPlan(
        crashes_per_min=faults.crashes_per_min,
        stops_per_min=faults.stops_per_min,
        pauses_per_min=faults.pauses_per_min,
        pause_max_s=faults.pause_max_s,
        clock_rate_spread=faults.clock_rate_spread,
        stream_throttle=faults.stream_throttle,
        bad_listing=faults.bad_listing,
        reshards_per_min=2 * faults.reshards_per_min,
        denials_per_min=denials_per_min,
        latency_max_s=faults.latency_max_s,
    )


def draw_sink_scenario(seed: int) -> Scenario:
    """Draw a seed's queries that write, with consumers of their rows in a quarter of the seeds."""
    drawn = draw_scenario(seed)
    chance = random.Random(f"sinks {seed}")
    plan = draw_sink_plan(chance)
    denials_per_min = chance.uniform(0.3, 1.5) if chance.random() < 0.25 else 0.0
    names = tuple(f"s{index}" for index in range(chance.choice((1, 1, 2))))
    plan = replace(plan, workers=frozenset(names))
    safety_s = chance.choice((60.0, 120.0))
    if seed % 4 == _READ_SEEDS:
        # Readers of the stream must get every row, and the rows of each key in their order.
        plan = replace(
            plan,
            options={**plan.options, "ordering": "key"},
            keys_stay=True,
            routes=False,
            large_row=0.0,
            row_count_max=min(plan.row_count_max, 20),
        )
        return replace(_with_consumers(drawn, plan.workers, safety_s), sinks=plan)
    return Scenario(
        seed=seed,
        workers=names,
        shard_count=drawn.shard_count,
        options=drawn.options,
        faults=_faults_of_writers(drawn, denials_per_min),
        safety_s=safety_s,
        records_per_s=0.0,
        with_readers=False,
        sinks=plan,
        settle_max_s=_WRITTEN_WITHIN_S,
    )


def draw_streams_scenario(seed: int) -> Scenario:
    """Draw a seed's fleet of consumers that reads several streams; in a quarter of the seeds only streams have faults."""
    drawn = draw_scenario(seed)
    chance = random.Random(f"streams {seed}")
    safety_s = chance.choice((100.0, 150.0, 200.0))
    is_calm = seed % 4 == _CALM_SEEDS
    plan = draw_streams_plan(chance, safety_s, EPOCH_MS, is_calm=is_calm)
    faults = drawn.faults
    keeps_all = all(stream.retention_s is None for stream in plan.streams)
    starts_late = any(stream.start == LATEST for stream in plan.streams)
    faults = replace(
        faults,
        quiet_streams_per_min=0.0 if keeps_all else chance.choice((0.0, chance.uniform(0.5, 2.0))),
        table_drops_per_min=0.0 if starts_late else faults.table_drops_per_min,
    )
    drawn = replace(
        drawn,
        options=replace(drawn.options, stream=None, start=StartingPosition(default=TRIM_HORIZON)),
        faults=faults,
        safety_s=safety_s,
        quiet_rounds=min(drawn.quiet_rounds, 8),
        records_per_s=chance.choice((3.0, 6.0)),
        retention_s=None,
        streams=plan,
        settle_max_s=2 * SETTLE_MAX_S,
    )
    if not is_calm:
        return drawn
    return replace(
        drawn,
        faults=FaultPlan(latency_max_s=0.1, reshards_per_min=chance.choice((0.0, 2.0))),
        delivery=DELIVERY,
        foreign=frozenset(),
        leavers=frozenset(),
        limits=(),
        start_spread_s=0.0,
        options=replace(drawn.options, policy=BalancePolicy.EVEN),
    )


def _with_consumers(drawn: Scenario, writers: frozenset[str], safety_s: float) -> Scenario:
    """Make the fleet of consumers that a seed draws read the records of its producers or sinks, from the first one on."""
    # A deletion of rows or records would excuse readers from the order that is checked here.
    faults = replace(
        drawn.faults,
        reshards_per_min=max(1.0, drawn.faults.reshards_per_min),
        row_deletions_per_min=0.0,
        table_drops_per_min=0.0,
        rows_of_others=0.0,
        quiet_streams_per_min=0.0,
    )
    policy = BalancePolicy.EVEN if drawn.foreign else drawn.options.policy
    return replace(
        drawn,
        workers=(*sorted(writers), *drawn.workers),
        options=replace(drawn.options, policy=policy, start=StartingPosition(default=TRIM_HORIZON)),
        faults=faults,
        safety_s=safety_s,
        quiet_rounds=min(drawn.quiet_rounds, 6),
        records_per_s=0.0,
        foreign=frozenset(),
        leavers=frozenset(),
        limits=(),
        retention_s=None,
        # Handlers that take one record at a time work off all that the producers have put.
        settle_max_s=2 * SETTLE_MAX_S,
    )


DRAW: Final[Mapping[SeedKind, Callable[[int], Scenario]]] = {
    SeedKind.CONSUMERS: draw_scenario,
    SeedKind.QUERIES: draw_query_scenario,
    SeedKind.KCL3: draw_kcl3_scenario,
    SeedKind.PRODUCERS: draw_producer_scenario,
    SeedKind.SINKS: draw_sink_scenario,
    SeedKind.STREAMS: draw_streams_scenario,
}
"""Draws a seed's scenario, by kind."""
