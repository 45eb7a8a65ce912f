"""Which write has changed a row follows from the rows before and after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock_sim.events.base import Event
from penstock_sim.events.leases import LeaseWritten
from penstock_sim.kinds import SeedKind
from penstock_sim.model_batch_log import WriteFinder
from penstock_sim.model_batches import traces_of_queries
from penstock_sim.model_trace import number_of
from penstock_sim.run import run_scenario
from penstock_sim.seed_kinds import DRAW


def events_of(queries: Sequence[str], events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the events of the queries' traces: without writes that leave the row, and owners of creations and deletions."""
    found = []
    for trace in traces_of_queries("", queries, events, number_of):
        rows: dict[str, object] = {}
        for event in trace.events:
            if "row" in event and rows.get(event["shard"]) == event["row"]:
                continue
            if "row" in event:
                rows[event["shard"]] = event["row"]
            is_anyones = event["name"] in ("Create", "Delete")
            found.append({**event, "isOwn": False} if is_anyones else event)
    return found


@pytest.mark.parametrize("seed", [0, 3, 8, 13, 16])
def test_a_log_of_rows_gives_the_writes_of_the_simulator(seed: int) -> None:
    scenario = DRAW[SeedKind.QUERIES](seed)
    events = [entry.event for entry in run_scenario(scenario).history]
    finder, queries = WriteFinder(), sorted(scenario.queries)
    from_rows = [
        finder.on_row(event.write.key, event.after) if isinstance(event, LeaseWritten) else event
        for event in events
    ]
    for written, found in zip(events_of(queries, events), events_of(queries, from_rows), strict=True):
        if written["name"] == "LateCheckpoint" and found["name"] == "Promote":
            assert found["at"] == found["row"]["claim"]["end"]  # the row does not show the difference
        else:
            assert found == written
