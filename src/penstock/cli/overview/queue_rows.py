"""Queues beside the applications: their figures and their troubles, as values and as a JSON document. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from penstock.core.queueing.queue_limits import IN_FLIGHT_COUNT_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LEVEL_METRICS: Final = ("VisibleQueueRecords", "InFlightQueueRecords", "VisibleDeadLetterQueueRecords")
RATE_METRICS: Final = ("ReceivedQueueRecords", "AcknowledgedQueueRecords", "EmptyReceives")
FIGURE_MINUTES: Final = 5
"""Minutes of CloudWatch that are read: its figures may be some minutes late."""
_IN_FLIGHT_HIGH: Final = IN_FLIGHT_COUNT_MAX * 8 // 10


class Activity(Enum):
    """The activity of a queue's workers, from CloudWatch's figures: the service keeps no list of workers."""

    WORKING = "working"
    RECEIVING = "receiving"
    """Records are received, and none is acknowledged."""
    WAITING = "waiting"
    """Receives are answered without records."""
    NONE = "none seen"
    UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue. A figure is None if it is unknown.

    Args:
        status: ACTIVE, or another state.
        visible: Records that wait to be received.
        in_flight: Received records that are not acknowledged and not visible.
        dead_letters: Visible dead letters.
        measured_ms: The minute of these three figures, milliseconds since the epoch.
        received_per_min: Records received per minute, on average over the last minutes.
        acknowledged_per_min: Records acknowledged, likewise.
        empty_per_min: Receives without records, likewise.
    """

    queue: str
    arn: str
    stream_arn: str
    status: str
    visible: int | None = None
    in_flight: int | None = None
    dead_letters: int | None = None
    measured_ms: int | None = None
    received_per_min: float | None = None
    acknowledged_per_min: float | None = None
    empty_per_min: float | None = None

    @property
    def activity(self) -> Activity:
        """The work of the queue's workers, as far as the figures show it."""
        if self.acknowledged_per_min:
            return Activity.WORKING
        if self.received_per_min:
            return Activity.RECEIVING
        if self.empty_per_min:
            return Activity.WAITING
        are_known = None not in (self.acknowledged_per_min, self.received_per_min, self.empty_per_min)
        return Activity.NONE if are_known and self.measured_ms is not None else Activity.UNKNOWN

    @property
    def trouble(self) -> str:
        """The worst trouble in a sentence; empty if there is none."""
        if self.status not in ("ACTIVE", "UPDATING"):
            return f"the queue is {self.status}"
        if self.in_flight is not None and self.in_flight >= _IN_FLIGHT_HIGH:
            return f"{self.in_flight:,} records are in flight; at {IN_FLIGHT_COUNT_MAX:,} the service delivers no more"
        if self.dead_letters:
            return f"dead letters, which `penstock queues dead {self.queue}` shows"
        if self.visible and self.activity is Activity.NONE:
            return "records wait, and no worker receives"
        if self.activity is Activity.RECEIVING:
            return "records are received, and none is acknowledged"
        return ""


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """The queues of the region: those in trouble first, then by name; and failures to read them, a sentence each."""

    rows: tuple[QueueRow, ...] = ()
    problems: tuple[str, ...] = ()


def sorted_queues(rows: Iterable[QueueRow]) -> tuple[QueueRow, ...]:
    """Return queues in trouble first, then by name."""
    return tuple(sorted(rows, key=lambda row: (not row.trouble, row.queue)))


def figures_of(sums: Mapping[str, Mapping[int, float] | None]) -> dict[str, Any]:
    """Return the figures of a queue as fields of `QueueRow`.

    Args:
        sums: For each metric its values of the last `FIGURE_MINUTES`, by the beginning of the minute in milliseconds; None if the
            query failed.
    """
    figures: dict[str, Any] = {}
    for field, metric in zip(("visible", "in_flight", "dead_letters"), LEVEL_METRICS, strict=True):
        values = sums.get(metric)
        if values:
            newest_ms = max(values)
            figures[field] = int(values[newest_ms])
            figures["measured_ms"] = min(newest_ms, figures.get("measured_ms", newest_ms))
    fields = ("received_per_min", "acknowledged_per_min", "empty_per_min")
    for field, metric in zip(fields, RATE_METRICS, strict=True):
        values = sums.get(metric)
        if values is not None:
            figures[field] = sum(values.values()) / FIGURE_MINUTES
    return figures


def queue_document(row: QueueRow, moment: str | None) -> dict[str, Any]:
    """Return a queue as a JSON document.

    Args:
        moment: `measured_ms` as text.
    """
    return {
        "queue": row.queue,
        "arn": row.arn,
        "stream_arn": row.stream_arn,
        "status": row.status,
        "trouble": row.trouble or None,
        "visible_records": row.visible,
        "in_flight_records": row.in_flight,
        "dead_letters": row.dead_letters,
        "measured_at": moment,
        "received_per_minute": row.received_per_min,
        "acknowledged_per_minute": row.acknowledged_per_min,
        "empty_receives_per_minute": row.empty_per_min,
        "workers": None if row.activity is Activity.UNKNOWN else row.activity.value,
    }
