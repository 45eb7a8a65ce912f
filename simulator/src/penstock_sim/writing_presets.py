"""Presets of worlds whose workers write: producers and Spark queries, in a quarter of the seeds with consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.core.position import TRIM_HORIZON
from penstock.core.starting import StartingPosition
from penstock.core.writing.batcher_steps import BatcherSettings
from penstock_sim.plan import SETTLE_MAX_S, Chance, FaultPlan, ProducerPlan, Scenario, SinkPlan
from penstock_sim.reading_presets import draw_scenario, faults_of_processes, without_readers

_READ_SEEDS: Final = 3
"""Of four seeds of producers, and of sinks, this one has consumers."""
_WRITTEN_WITHIN_S: Final = 900.0
"""Every batch of a sink is done within this time after the faults' end: one attempt may wait for its deadline before the next."""


def draw_producer_scenario(seed: int) -> Scenario:
    """Draw a seed's producers, with consumers of their records in a quarter of the seeds; the rest as for consumers alone."""
    drawn = draw_scenario(seed)
    chance = Chance(f"producers {seed}")
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
    )
    rates = _draw_faults_of_puts(chance)
    denials_per_min = chance.some(0.2, 0.3, 1.5)
    names = tuple(f"p{index}" for index in range(chance.choice((1, 2, 3))))
    plan = replace(plan, workers=frozenset(names))
    safety_s = chance.choice((40.0, 80.0))
    if seed % 4 == _READ_SEEDS:
        return replace(_with_consumers(drawn, plan.workers, safety_s + 40.0, rates), producers=plan)
    faults = _faults_of_writers(drawn, denials_per_min, rates)
    return without_readers(drawn, names, faults, safety_s, producers=plan)


def _draw_faults_of_puts(chance: Chance) -> dict[str, float]:
    """Draw the rates of failures of PutRecords and of its entries."""
    some = chance.some
    return {
        "put_throttled": some(0.5, 0.0, 0.2),
        "put_unavailable": some(0.4, 0.0, 0.1),
        "put_lost": some(0.4, 0.0, 0.1),
        "put_late": some(0.3, 0.0, 0.1),
        "put_unanswered": some(0.5, 0.0, 0.1),
        "entry_throttled": some(0.6, 0.0, 0.4),
        "entry_failed": some(0.4, 0.0, 0.2),
        "entry_unanswered": some(0.2, 0.0, 0.1),
    }


def _faults_of_writers(drawn: Scenario, denials_per_min: float, rates: Mapping[str, Any]) -> FaultPlan:
    """Return the faults of a fleet of writers, and none of leases."""
    faults = drawn.faults
    return FaultPlan(
        **faults_of_processes(faults),
        stream_throttle=faults.stream_throttle,
        bad_listing=faults.bad_listing,
        denials_per_min=denials_per_min,
        latency_max_s=faults.latency_max_s,
        **rates,
    )


def draw_sink_scenario(seed: int) -> Scenario:
    """Draw a seed's queries that write, with consumers of their rows in a quarter of the seeds."""
    drawn = draw_scenario(seed)
    chance = Chance(f"sinks {seed}")
    plan, rates = _draw_sink_plan(chance)
    denials_per_min = chance.some(0.25, 0.3, 1.5)
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
        return replace(_with_consumers(drawn, plan.workers, safety_s, rates), sinks=plan)
    faults = _faults_of_writers(drawn, denials_per_min, rates)
    return without_readers(drawn, names, faults, safety_s, sinks=plan, settle_max_s=_WRITTEN_WITHIN_S)


def _draw_sink_plan(chance: Chance) -> tuple[SinkPlan, dict[str, float]]:
    """Draw one seed's sinks, and the rates of their faults."""
    some = chance.some
    options = {
        "aggregation": chance.choice(("true", "true", "false")),
        "ordering": chance.choice(("key", "key", "key", "none")),
        "maxRecordsPerBatch": chance.choice(("2", "10", "500")),
        "writeDeadline": chance.choice(("10s", "10s", "30s", "600s")),
        "bufferBytes": chance.choice(("2000", "20000", "1m")),
    }
    if chance.random() < 0.2:
        options["rateLimit"] = chance.choice(("10", "100"))
    bad_row = some(0.4, 0.002, 0.02)
    if bad_row:
        kept = chance.choice(({}, {"deadLetterPath": "letters"}, {"deadLetterStream": "letters"}))
        options |= {"onError": "deadLetter", **kept} if kept else {}
    large_row = some(0.1, 0.002, 0.01)
    chance.random()  # unused: without this draw, every seed that is kept for its plan would draw another plan
    plan = SinkPlan(
        options=options,
        in_foreach_batch=chance.random() < 0.3,
        key_count=chance.choice((1, 3, 20)),
        keys_stay=chance.random() < 0.7,
        routes=chance.random() < 0.3,
        hash_keys=chance.random() < 0.2,
        task_count_max=chance.choice((1, 3, 6)),
        row_count_max=chance.choice((3, 20, 60)),
        padding_bytes=chance.choice((0, 0, 100, 6_000)),
        record_bytes_max=3 * 2**20 if large_row else 2**20,
        large_row=large_row,
        bad_row=bad_row,
        executor_count=chance.choice((1, 2, 3)),
    )
    rates = {
        "executor_kills_per_min": some(0.5, 0.5, 5.0),
        "executor_pauses_per_min": some(0.4, 0.3, 3.0),
        "executor_pause_max_s": chance.choice((5.0, 20.0, 60.0)),
        "second_attempt": some(0.5, 0.05, 0.5),
        "slow_put": some(0.3, 0.0, 0.1),
        "slow_input": some(0.3, 0.0, 0.3),
        "second_drivers_per_min": some(0.2, 0.3, 1.0),
        "driver_dies_before_commit": some(0.4, 0.02, 0.2),
        "driver_dies_after_commit": some(0.4, 0.02, 0.2),
        "outages_per_min": some(0.4, 0.5, 3.0),
        "deletions_per_min": some(0.2, 0.3, 1.0),
        "listing_denied": chance.random() < 0.1,
        "folder_failure": some(0.35, 0.05, 0.4),
        **_draw_faults_of_puts(chance),
    }
    return plan, rates


def _with_consumers(
    drawn: Scenario, writers: frozenset[str], safety_s: float, rates: Mapping[str, Any]
) -> Scenario:
    """Make the fleet of consumers that a seed draws read the records of its producers or sinks, from the first one on."""
    # A deletion of rows or records would excuse readers from the order that is checked here.
    faults = replace(
        drawn.faults,
        reshards_per_min=max(1.0, drawn.faults.reshards_per_min),
        row_deletions_per_min=0.0,
        table_drops_per_min=0.0,
        rows_of_others=0.0,
        quiet_streams_per_min=0.0,
        **rates,
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
