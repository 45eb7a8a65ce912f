"""`penstock.spark.lag(query)`: how far behind a running query is, shard by shard.

The figures are the source's own, from the progress that Spark keeps of every query, so they are there wherever the query
runs: in this process, on a cluster, behind Spark Connect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class _Query(Protocol):
    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        """The newest progress, or None before the first batch."""


@dataclass(frozen=True, slots=True)
class StreamLag:
    """One Kinesis source of a query, as of its last progress.

    Args:
        stream: Name or ARN, as the query's options have it.
        millis_behind_latest: Shard id to the milliseconds from its oldest unread record to the tip; shards that the query
            holds now.
        record_count: User records of the last batch.
        bytes_count: Bytes of data of the last batch.
        held_leases: Leases that the query holds.
        total_leases: Unfinished leases of the application.
        taken_leases: Leases taken since the query started.
        lost_leases: Leases lost since the query started.
    """

    stream: str
    millis_behind_latest: Mapping[str, int]
    record_count: int
    bytes_count: int
    held_leases: int
    total_leases: int
    taken_leases: int
    lost_leases: int

    @property
    def max_millis_behind_latest(self) -> int:
        """The lag of the shard that is furthest behind; 0 when the query holds none."""
        return max(self.millis_behind_latest.values(), default=0)


def lag(query: _Query) -> list[StreamLag]:
    """Say how far behind each Kinesis source of a streaming query is.

    Args:
        query: A running or ended `StreamingQuery`.

    Returns:
        One entry per Kinesis source, in the query's order; empty before the query's first progress.
    """
    progress = query.lastProgress
    if progress is None:
        return []
    found = []
    for source in _field(progress, "sources"):
        report = _field(source, "latestOffset")
        if isinstance(report, str):
            report = _parse(report)
        if isinstance(report, Mapping) and "millisBehindLatest" in report and "leases" in report:
            found.append(_lag_of(report))
    return found


def _field(holder: Any, name: str) -> Any:
    return holder[name] if isinstance(holder, Mapping) else getattr(holder, name)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # another source's offset, which need not be JSON


def _lag_of(report: Mapping[str, Any]) -> StreamLag:
    leases = report["leases"]
    return StreamLag(
        stream=report["stream"],
        millis_behind_latest=dict(report["millisBehindLatest"]),
        record_count=report["records"],
        bytes_count=report["bytes"],
        held_leases=leases["held"],
        total_leases=leases["total"],
        taken_leases=leases["taken"],
        lost_leases=leases["lost"],
    )
