"""Reports of the sink's tasks, and their sum. Loaded for every commit, so it is kept small."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct, field

from penstock.producer.write_report import WriteReport
from penstock.spark.sink.folder import FileFolder, Folder
from penstock.spark.sink.report import SinkReport, add_write_reports, record_commit

_log: Final = logging.getLogger("penstock.spark")


class TaskReport(Struct, frozen=True):
    """Writes of one task, or of several together.

    Args:
        reports: The writes by stream.
        dead_letter_count: Rows that became dead letters.
        overruled_count: Rows whose column streamName names another stream than the option, which decides.
        overruled_stream: One of these other streams, as text for messages.
    """

    reports: dict[str, WriteReport] = field(default_factory=dict)
    dead_letter_count: int = 0
    overruled_count: int = 0
    overruled_stream: str = ""


def log_sum(reports: Iterable[TaskReport], heading: str) -> TaskReport:
    """Log the sum of tasks' reports, and return it.

    Args:
        heading: Names the write in the log, such as `micro-batch 7`.
    """
    written = list(reports)
    by_stream: dict[str, list[WriteReport]] = {}
    for message in written:
        for stream, report in message.reports.items():
            by_stream.setdefault(stream, []).append(report)
    total = TaskReport(
        {stream: add_write_reports(reports) for stream, reports in sorted(by_stream.items())},
        sum(message.dead_letter_count for message in written),
        sum(message.overruled_count for message in written),
        next((message.overruled_stream for message in written if message.overruled_count), ""),
    )
    for stream, report in total.reports.items():
        _log.info("%s to stream %s: %s", heading, stream, report)
    if total.dead_letter_count:
        _log.warning(
            "%s: %d rows that the service can never accept went to the dead letters",
            heading,
            total.dead_letter_count,
        )
    return total


def sink_report_of(batch: int, total: TaskReport) -> SinkReport:
    """Return the report of a batch alone, from the sum of its tasks' reports."""
    dead, overruled = total.dead_letter_count, total.overruled_count
    return SinkReport(batch, total.reports, total.reports, dead, dead, overruled, overruled)


def warn_of_overruled_rows(total: TaskReport, heading: str) -> None:
    """Warn if the column streamName of written rows names another stream than the option."""
    if total.overruled_count:
        _log.warning(
            "%s: the column streamName of %d rows names another stream (%s) than the option, which decides: they were "
            "written to %s. Rows that the source reads have this column. To route rows by it, leave out option streamName",
            heading,
            total.overruled_count,
            total.overruled_stream,
            ", ".join(total.reports) or "no stream",
        )


def commit_batch(
    written: Iterable[TaskReport],
    batch: int,
    checkpoint_location: str | None,
    open_folder: Callable[[str], FileFolder] = Folder,
) -> frozenset[str]:
    """Log a micro-batch's writes and keep them for `sink_report`. After a restart Spark may commit it again.

    Returns:
        The streams that the query wrote to for the first time, according to its checkpoint location.
    """
    total = log_sum(written, f"micro-batch {batch}")
    before = None
    if checkpoint_location is not None:
        before = record_commit(checkpoint_location, sink_report_of(batch, total), open_folder)
    # Rows whose column streamName has no effect are reported once for a checkpoint location.
    if before is None or not before.overruled_total:
        warn_of_overruled_rows(total, f"micro-batch {batch}")
    return frozenset(total.reports if before is None else total.reports.keys() - before.total.keys())
