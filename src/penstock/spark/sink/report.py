"""`penstock.spark.sink_report(query)`: the records that the sink has written, by stream and shard.

Spark ends the sink's Python process after each commit, and a sink cannot add to the query's progress. So the commit writes
its counts to a small file in the query's checkpoint location, which outlives the query and is readable wherever the
checkpoint is. The query itself never reads it. If it cannot be written, a warning is logged for the batch and the query
goes on.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import msgspec

from penstock.errors import UsageError
from penstock.producer.write_report import WriteReport
from penstock.spark.monitoring.html_table import html_table
from penstock.spark.sink.folder import FileFolder, Folder

_log: Final = logging.getLogger("penstock.spark")
FILE_NAME: Final = "penstock-sink.json"
_VERSION: Final = 1
_SHOWN: Final = {
    "user records": "user_record_count",
    "Kinesis records": "kinesis_record_count",
    "bytes": "bytes_count",
    "refused": "refused_count",
    "perhaps twice": "possible_duplicate_count",
    "paused, s": "pause_s",
}
"""Columns of the table for a notebook: fields of `WriteReport` by their titles."""


@dataclass(frozen=True, slots=True)
class SinkReport:
    """Counts of a streaming query's sink.

    Args:
        batch: Spark's number of the last batch that was committed.
        last: Writes of the last committed batch, by stream.
        total: Writes of all batches since the checkpoint location was created, by stream.
        dead_letters: Rows of the last batch that became dead letters.
        dead_letters_total: Rows of all batches that became dead letters.
        overruled: Rows of the last batch whose column `streamName` names another stream than the option. The option decides.
        overruled_total: Such rows of all batches.
    """

    batch: int
    last: Mapping[str, WriteReport] = field(default_factory=dict)
    total: Mapping[str, WriteReport] = field(default_factory=dict)
    dead_letters: int = 0
    dead_letters_total: int = 0
    overruled: int = 0
    overruled_total: int = 0

    def _repr_html_(self) -> str:
        """Return a table of the counts, for a notebook."""
        batch = f"batch {self.batch}"
        rows = [
            (of, stream, *(getattr(report, name) for name in _SHOWN.values()))
            for of, reports in ((batch, self.last), ("all", self.total))
            for stream, report in reports.items()
        ]
        no_counts = [""] * (len(_SHOWN) - 1)
        for of, count in ((batch, self.dead_letters), ("all", self.dead_letters_total)):
            rows.append((of, "(dead letters)", count, *no_counts))
        if self.overruled_total:
            for of, count in ((batch, self.overruled), ("all", self.overruled_total)):
                rows.append((of, "(column streamName overruled)", count, *no_counts))
        return html_table(("of", "stream", *_SHOWN), rows)


def sink_report(query: Any, checkpoint_location: str | None = None) -> SinkReport | None:
    """Return a streaming query's writes to Kinesis.

    Args:
        query: A `StreamingQuery`, running or ended. It may be None if the location is given.
        checkpoint_location: The query's checkpoint location. It is needed with Spark Connect, whose query does not have it,
            and if this process reaches it under another name.

    Returns:
        The report of the last committed batch and of all batches; None before the first commit.

    Raises:
        UsageError: The location is not known, or not reachable from here, or has no report although rows were written.
    """
    location = checkpoint_location or _location_of(query)
    report = _read_report(location, Folder)
    batches = query.recentProgress if report is None and query is not None else []
    has_written = any(batch["sink"]["numOutputRows"] > 0 for batch in batches)
    # The first batch may have been committed since the file was looked for.
    if has_written and (report := _read_report(location, Folder)) is None:
        raise UsageError(
            f"the query has written rows, and {location} has no report of them: give the query its location with option "
            "checkpointLocation, since Spark does not pass that of spark.sql.streaming.checkpointLocation to a sink in Python. Or the "
            "report could not be written: then the driver's log has the reason"
        )
    return report


def _location_of(query: Any) -> str:
    try:
        # The classic session's own handle; Spark Connect has none.
        return str(query._jsq.streamingQuery().resolvedCheckpointRoot())  # noqa: SLF001 - there is no public way
    except AttributeError:
        raise UsageError(
            "this query does not show its checkpoint location (Spark Connect): pass it, "
            "sink_report(query, checkpoint_location=...)"
        ) from None


def add_write_reports(reports: Iterable[WriteReport]) -> WriteReport:
    """Add up the reports of several writers to one stream."""
    total = WriteReport()
    for report in reports:
        total.add(report)
    return total


def record_commit(
    location: str, batch: SinkReport, open_folder: Callable[[str], FileFolder] = Folder
) -> SinkReport | None:
    """Add a committed batch to the file, unless it was added before. Never raises.

    Args:
        batch: The batch's report; its totals count this batch alone.

    Returns:
        The report in the file before; None if the file cannot be read or written.
    """
    try:
        before = _read_report(location, open_folder) or SinkReport(-1)
        document = {"v": _VERSION, **asdict(_add_totals(before, batch))}
        open_folder(location).replace(FILE_NAME, io.BytesIO(json.dumps(document).encode()))
    except Exception as error:  # noqa: BLE001 - a report is never worth a batch
        _log.warning(
            "batch %d: the sink's counts could not be written to %s/%s, and sink_report does not show them: %s",
            batch.batch,
            location,
            FILE_NAME,
            error,
        )
        return None
    return before


def _add_totals(before: SinkReport, batch: SinkReport) -> SinkReport:
    """Return the batch's report with the totals of both reports. If the earlier report has the batch already, return that."""
    if batch.batch <= before.batch:
        # If the driver fails after this commit and before Spark's, the batch is committed again after the restart.
        return before
    return replace(
        batch,
        total={
            stream: add_write_reports(each.total[stream] for each in (before, batch) if stream in each.total)
            for stream in {**before.total, **batch.total}
        },
        dead_letters_total=before.dead_letters_total + batch.dead_letters_total,
        overruled_total=before.overruled_total + batch.overruled_total,
    )


def _read_report(location: str, open_folder: Callable[[str], FileFolder]) -> SinkReport | None:
    """Return the report in a checkpoint location; None before the first commit. A file of version 0.1.0 has no `overruled`."""
    import pyarrow as pa

    try:
        document = json.loads(open_folder(location).read(FILE_NAME))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UsageError(f"{location}/{FILE_NAME} cannot be read from here: {error}") from error
    if document.get("v") != _VERSION:
        raise UsageError(f"{FILE_NAME} has format {document.get('v')!r}, and this version reads {_VERSION}")
    return msgspec.convert(document, SinkReport)
