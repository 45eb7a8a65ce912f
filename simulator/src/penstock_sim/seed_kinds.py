"""The presets of the kinds of seeds: each kind draws by itself, so a new kind does not change the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock_sim.kinds import SeedKind
from penstock_sim.plan import Scenario
from penstock_sim.queue_presets import draw_queue_scenario
from penstock_sim.reading_presets import (
    draw_kcl3_scenario,
    draw_query_scenario,
    draw_scenario,
    draw_streams_scenario,
)
from penstock_sim.writing_presets import draw_producer_scenario, draw_sink_scenario

DRAW: Final[Mapping[SeedKind, Callable[[int], Scenario]]] = {
    SeedKind.CONSUMERS: draw_scenario,
    SeedKind.QUERIES: draw_query_scenario,
    SeedKind.KCL3: draw_kcl3_scenario,
    SeedKind.PRODUCERS: draw_producer_scenario,
    SeedKind.SINKS: draw_sink_scenario,
    SeedKind.STREAMS: draw_streams_scenario,
    SeedKind.QUEUES: draw_queue_scenario,
}
"""Draws a seed's scenario, by kind."""
