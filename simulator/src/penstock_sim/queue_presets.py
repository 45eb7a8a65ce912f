"""The preset of worlds whose workers consume a queue."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.queues.queue_options import QueueConsumerOptions
from penstock_sim.plan import SETTLE_MAX_S, Chance, FaultPlan, QueuePlan, Scenario
from penstock_sim.reading_presets import draw_scenario, faults_of_processes, without_readers

_FAULTLESS_SEEDS: Final = 4
"""Index, of five seeds with queues, of the one that has no faults, or only graceful stops."""

_LOST_ANSWERS_FROM_S: Final = 5
"""A call without an answer takes up to three seconds, and other calls wait for its thread: a shorter visibility would end."""


def draw_queue_scenario(seed: int) -> Scenario:
    """Draw a seed's queue and its workers; crashes, stops and pauses as for consumers."""
    drawn, chance = draw_scenario(seed), Chance(f"queues {seed}")
    names = tuple(f"q{index}" for index in range(chance.choice((1, 2, 3, 5))))
    visibility_s = chance.choice((2, 5, 10, 30))
    is_calm = seed % 5 == _FAULTLESS_SEEDS
    backoff_max_s = chance.choice((2.0, 6.0, 20.0))
    receive_count_max = chance.choice((2, 3, 6, 20, 20, None))
    options = QueueConsumerOptions(
        concurrency=chance.choice((1, 2, 5, 20)),
        batch_records_max=chance.choice((None, None, 1, 3, 10)),
        wait_time_s=chance.choice((1, 5, 20)),
        receives_max=chance.choice((1, 2, 8)),
        records_in_hand_max=chance.choice((3, 20, 1_000)),
        bytes_in_hand_max=chance.choice((2_000, 64 * 2**20)),
        acknowledge_after_s=chance.choice((0.0, 0.02, 1.0)),
        backoff_min_s=1.0,
        backoff_max_s=backoff_max_s,
        handling_time_max_s=chance.choice((15.0, 60.0)),
        remember=chance.choice((0, 0, 10_000)),
        shutdown_timeout_s=chance.choice((3.0, 30.0)),
    )
    plan = QueuePlan(
        workers=frozenset(names),
        options=options,
        visibility_s=visibility_s,
        receive_count_max=receive_count_max,
        records_per_s=chance.choice((0.5, 2.0, 6.0)),
        retention_s=chance.choice((None, None, None, 40.0)),
        ends_handles=chance.random() < 0.5,
        is_calm=is_calm,
    )
    stops_per_min = chance.choice((0.0, 3.0))
    faults = _draw_faults(chance, drawn.faults, latency_max_s=min(0.1, visibility_s / 40))
    if visibility_s < _LOST_ANSWERS_FROM_S:
        faults = replace(faults, unknown_applied=0.0, unknown_lost=0.0, unknown_late=0.0)
    if is_calm:
        faults = FaultPlan(stops_per_min=stops_per_min, latency_max_s=0.05, aggregate=faults.aggregate)
    return without_readers(
        drawn, names, faults, chance.choice((60.0, 120.0)), queues=plan, settle_max_s=2 * SETTLE_MAX_S
    )


def _draw_faults(chance: Chance, fleet: FaultPlan, latency_max_s: float) -> FaultPlan:
    some = chance.some
    return FaultPlan(
        **faults_of_processes(fleet),
        denials_per_min=some(0.15, 0.0, 1.0),
        latency_max_s=latency_max_s,
        stream_throttle=some(0.5, 0.0, 0.2),
        broken_connection=some(0.4, 0.0, 0.1),
        unknown_applied=some(0.4, 0.0, 0.1),
        unknown_lost=some(0.4, 0.0, 0.1),
        unknown_late=some(0.3, 0.0, 0.1),
        entry_throttled=some(0.5, 0.0, 0.3),
        entry_failed=some(0.4, 0.0, 0.2),
        slow_handler=some(0.4, 0.0, 0.1),
        handler_failure=some(0.5, 0.0, 0.2),
        poison_record=some(0.3, 0.0, 0.05),
        rejected_record=some(0.4, 0.0, 0.1),
        hung_handler=some(0.2, 0.0, 0.01),
        aggregate=some(0.5, 0.0, 0.5),
        early_redeliveries_per_min=some(0.4, 0.0, 6.0),
        forgotten_acknowledgement=some(0.4, 0.0, 0.1),
    )
