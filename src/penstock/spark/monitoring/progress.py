"""`penstock.spark.lag(query)`: the lag of a running query, shard by shard.

The figures are the source's own, from the progress that Spark keeps of every query. So they are available wherever the
query runs: in this process, on a cluster, behind Spark Connect.

Spark requests them when a batch is planned and shows them when it is done; while a query is idle it shows new ones every
ten seconds only. Spark 4.0 and 4.1 do not request them: the offset of each batch carries them, and an idle query shows
those of its last batch. The query's state corrects them: while it waits for data, nothing is unread; and after a batch that
was planned to the tip, only records that arrived after its plan can be unread; with AvailableNow, those since the run began.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.spark.monitoring.html_table import html_table

_WAITING: Final = "Waiting for data to arrive"
_CARRIED: Final = "report"


class _Query(Protocol):
    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        """The newest progress, or None before the first batch."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Whether the query runs."""

    @property
    def status(self) -> Any:
        """The query's current activity."""


@dataclass(frozen=True, slots=True)
class StreamLag:
    """One stream of a Kinesis source of a query.

    Args:
        stream: Name or ARN, as the query's options have it.
        millis_behind_latest: Shard id to the age of its oldest unread record in milliseconds, 0 if everything is read;
            shards that the query holds.
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


class StreamLags(list[StreamLag]):
    """The Kinesis sources of a query; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        names = ("stream", "shard", "lag in s", "records", "bytes", "leases held", "of")
        return html_table(
            names,
            [
                (
                    lag.stream,
                    shard,
                    millis / 1000,
                    lag.record_count,
                    lag.bytes_count,
                    lag.held_leases,
                    lag.total_leases,
                )
                for lag in self
                for shard, millis in sorted(lag.millis_behind_latest.items()) or [("-", 0)]
            ],
        )


def lag(query: _Query) -> StreamLags:
    """Return the lag of each stream of a streaming query's Kinesis sources.

    Args:
        query: A running or ended `StreamingQuery`.

    Returns:
        A list with one entry per Kinesis source, or per stream of a source that reads several, in the query's order; empty before the query's first progress.
    """
    progress = query.lastProgress
    if progress is None:
        return StreamLags()
    return lags_of_progress(progress, is_waiting=_waits_for_data(query))


def lags_of_progress(progress: Any, *, is_waiting: bool = False) -> StreamLags:
    """Return the lag of each stream of the Kinesis sources at the time of a progress.

    Args:
        progress: A `StreamingQueryProgress`, or its JSON values.
        is_waiting: The query has found nothing to read since.
    """
    return StreamLags(lag for lags in lags_by_source(progress, is_waiting=is_waiting) for lag in lags)


def lags_by_source(progress: Any, *, is_waiting: bool = False) -> list[StreamLags]:
    """Return the lags of each Kinesis source: one, or one for each of its streams. The arguments are those of `lags_of_progress`."""
    batch_ms = _batch_duration_ms(progress)
    found = []
    for source in _value_of(progress, "sources"):
        report = report_of(source)
        if report is None:
            continue
        lags = StreamLags()
        for each in report.get("streams") or [report]:
            millis_max = None
            if batch_ms is not None and each.get("readsToTip"):
                millis_max = batch_ms + each.get("tipAgeMillis", 0)
            lags.append(_lag_of(each, 0 if is_waiting else millis_max))
        found.append(lags)
    return found


def with_report(offset: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Return an offset that carries the source's figures; its keys stay sorted."""
    return dict(sorted({**offset, _CARRIED: report}.items()))


def report_of(source: Any) -> Mapping[str, Any] | None:
    """Return a Kinesis source's figures from its progress; None for another source, or before the first figures."""
    report = _value_of(source, "latestOffset")
    if isinstance(report, str):
        report = _parse(report)
    if isinstance(report, Mapping):
        report = report.get(_CARRIED, report)
    is_ours = isinstance(report, Mapping) and report.keys() >= {"millisBehindLatest", "leases"}
    return report if is_ours else None


def _waits_for_data(query: _Query) -> bool:
    """Return whether a running query waits: no source had anything to read at the last request."""
    if not query.isActive:
        return False
    status = query.status
    return not _value_of(status, "isDataAvailable") and _value_of(status, "message") == _WAITING


def _batch_duration_ms(progress: Any) -> int | None:
    """Return the duration of a progress's batch; None if no batch ran."""
    took = _value_of(progress, "durationMs")
    return int(took["triggerExecution"]) if "addBatch" in took and "triggerExecution" in took else None


def _value_of(holder: Any, name: str) -> Any:
    return holder[name] if isinstance(holder, Mapping) else getattr(holder, name)


def _parse(text: str) -> Any:
    # PySpark 4.0 and 4.1 show an offset as a Python literal. Another source's offset may be neither that nor JSON.
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):
            return parse(text)
    return None


def _lag_of(report: Mapping[str, Any], millis_max: int | None) -> StreamLag:
    """Return the lag that a stream's report has, but at most `millis_max` for each shard."""
    leases = report["leases"]
    behind = dict(report["millisBehindLatest"])
    if millis_max is not None:
        behind = {shard: min(millis, millis_max) for shard, millis in behind.items()}
    return StreamLag(
        stream=report["stream"],
        millis_behind_latest=behind,
        record_count=report["records"],
        bytes_count=report["bytes"],
        held_leases=leases["held"],
        total_leases=leases["total"],
        taken_leases=leases["taken"],
        lost_leases=leases["lost"],
    )
