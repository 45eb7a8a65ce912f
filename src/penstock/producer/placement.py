"""How a stream assigns records to its shards, which decides whether a writer may aggregate."""

from __future__ import annotations

import logging
import threading
from typing import Final

from msgspec import Struct

from penstock.core.limits import RECORD_DEFAULT_BYTES_MAX
from penstock.core.service_codes import is_denial
from penstock.core.shard import StreamSummary
from penstock.errors import AccessDenied
from penstock.ports.kinesis import Kinesis

_log: Final = logging.getLogger("penstock.producer")


class Placement(Struct, frozen=True):
    """How a stream places records.

    Args:
        may_aggregate: Whether writers may aggregate. If not, readers would drop the aggregates as misplaced.
        predicts: Whether a hash key determines the shard.
        record_bytes_max: The stream's limit on data and partition key of one record.
        shard_count: Open shards.
        is_assumed: Whether the stream could not be described, for lack of permission, and these values are usual ones.
    """

    may_aggregate: bool
    predicts: bool
    record_bytes_max: int
    shard_count: int = 1
    is_assumed: bool = False


PLACED_BY_KEY: Final = Placement(may_aggregate=True, predicts=True, record_bytes_max=RECORD_DEFAULT_BYTES_MAX)
"""The placement of nearly every stream. Writers without aggregation assume it without a call."""

_REMEMBERED_S: Final = 60.0
_REMEMBERED_COUNT_MAX: Final = 256


class PlacementCache:
    """Caches placements for a minute, so that the tasks of a process share one call. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # These are strong references: each task opens a `Kinesis`, and a weak reference would end with that task.
        self._found: dict[tuple[Kinesis, str, bool, bool], tuple[float, Placement]] = {}

    def fetch(
        self, kinesis: Kinesis, stream: str, *, wants_aggregation: bool, is_forced: bool, now_s: float
    ) -> Placement:
        """Return a placement that is at most a minute old, or fetch it."""
        key = (kinesis, stream, wants_aggregation, is_forced)
        with self._lock:
            fetched_s, placement = self._found.get(key, (float("-inf"), None))
        if placement is not None and 0 <= now_s - fetched_s < _REMEMBERED_S:
            return placement
        placement = fetch_placement(kinesis, stream, wants_aggregation=wants_aggregation, is_forced=is_forced)
        with self._lock:
            self._found.pop(key, None)
            self._found[key] = (now_s, placement)
            if len(self._found) > _REMEMBERED_COUNT_MAX:
                del self._found[next(iter(self._found))]
        return placement

    def forget(self, kinesis: Kinesis, stream: str) -> None:
        """Drop the stream's placements, so that the next `fetch` asks the service again."""
        with self._lock:
            for key in [key for key in self._found if key[:2] == (kinesis, stream)]:
                del self._found[key]


PLACEMENTS: Final = PlacementCache()


def fetch_placement(kinesis: Kinesis, stream: str, *, wants_aggregation: bool, is_forced: bool) -> Placement:
    """Fetch how the stream places records.

    If the service chooses the shards by itself, readers would drop the aggregates, so records are not aggregated. Unless
    aggregation is forced, the same holds if this is unknown: no permission, or an on-demand stream without the field.

    Raises:
        NotFound, Throttled, Unavailable, Rejected: The stream cannot be described.
        AccessDenied: The credentials are missing, unknown or too old. If the policy forbids the call, a placement is assumed.
    """
    summary: StreamSummary | None
    try:
        summary = kinesis.fetch_summary(stream)
    except AccessDenied as error:
        if not is_denial(error.code):
            raise
        if wants_aggregation and not is_forced:
            _log.warning(
                "stream %s: DescribeStreamSummary is not permitted (%s), so nothing says that aggregates would reach "
                "their readers: records are not aggregated; permit the call or force aggregation",
                stream,
                error,
            )
        return Placement(is_forced, predicts=True, record_bytes_max=RECORD_DEFAULT_BYTES_MAX, is_assumed=True)
    # Only an on-demand stream can be set to place records by itself (API reference, UpdateStreamMode).
    manages_keys = summary.on_demand if summary.service_managed_keys is None else summary.service_managed_keys
    may_aggregate = not wants_aggregation or not manages_keys or is_forced
    if not may_aggregate:
        _log.warning(
            "stream %s %s: records are not aggregated, since their readers would drop the aggregates",
            stream,
            "places records by itself (record distribution AUTO)"
            if summary.service_managed_keys
            else "is on-demand and does not say how it places records",
        )
    return Placement(
        may_aggregate, not summary.service_managed_keys, summary.record_bytes_max, summary.open_shard_count
    )
