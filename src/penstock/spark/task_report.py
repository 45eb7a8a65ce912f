"""What the sink's tasks report, and what a job adds up of it. Loaded for every commit, so it is kept small."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct, field

from penstock.producer.write_report import WriteReport
from penstock.spark.folder import FileFolder, Folder
from penstock.spark.sink_metrics import merge, record_commit

_log: Final = logging.getLogger("penstock.spark")


class TaskReport(Struct, frozen=True):
    """What one task has written: its writes by stream, and how many rows became dead letters."""

    reports: dict[str, WriteReport] = field(default_factory=dict)
    dead_letter_count: int = 0


def sum_up(written: Iterable[TaskReport], what: str) -> tuple[dict[str, WriteReport], int]:
    """Add up and log the reports of the tasks; return them by stream, and the number of dead letters."""
    written = list(written)
    by_stream: dict[str, list[WriteReport]] = {}
    for message in written:
        for stream, report in message.reports.items():
            by_stream.setdefault(stream, []).append(report)
    totals = {stream: merge(reports) for stream, reports in sorted(by_stream.items())}
    dead_letters = sum(message.dead_letter_count for message in written)
    for stream, report in totals.items():
        _log.info("%s to stream %s: %s", what, stream, report)
    if dead_letters:
        _log.warning(
            "%s: %d rows that the service can never accept went to the dead letters", what, dead_letters
        )
    return totals, dead_letters


def commit_batch(
    written: Iterable[TaskReport],
    batch: int,
    checkpoint_location: str | None,
    open_folder: Callable[[str], FileFolder] = Folder,
) -> None:
    """Log and keep for `sink_report` what a micro-batch wrote. After a restart Spark may commit it again."""
    totals, dead_letters = sum_up(written, f"micro-batch {batch}")
    if checkpoint_location is not None:
        record_commit(checkpoint_location, batch, totals, dead_letters, open_folder)


def abort_batch(written: Iterable[TaskReport], batch: int) -> None:
    """Log what the finished tasks of a failed micro-batch wrote; the batch will be written again (at least once)."""
    sum_up(written, f"failed micro-batch {batch}, acknowledged before the failure")
