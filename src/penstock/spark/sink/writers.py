"""The sink, `write.format("kinesis")`, batch and streaming: a task ends when all of its records are acknowledged.

Delivery is at least once: a task that Spark repeats sends its rows again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.spark.engine import StreamWriter
from penstock.spark.options.spark_options import SinkOptions
from penstock.spark.sink.task_report import TaskReport, commit_batch, log_sum, warn_of_overruled_rows
from penstock.spark.spark_errors import with_plain_errors

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class KinesisCommitMessage(WriterCommitMessage):
    """One task's report to the driver."""

    report: TaskReport = field(default_factory=TaskReport)


def _reports(messages: list[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message.report for message in messages if isinstance(message, KinesisCommitMessage)]


def _write(
    rows: Iterator[pa.RecordBatch],
    options: SinkOptions,
    columns: tuple[str, ...],
    write_id: str | None = None,
) -> KinesisCommitMessage:
    # Only a task writes rows. A commit, for which Spark starts a process too, does not load the modules for it.
    from penstock.spark.sink.row_writer import write_rows

    return KinesisCommitMessage(write_rows(rows, options, columns, write_id))


class KinesisBatchWriter(DataSourceArrowWriter):
    """The sink of `df.write`."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._write_id = uuid.uuid4().hex

    @with_plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> KinesisCommitMessage:
        """Write one task's rows."""
        return _write(iterator, self._options, self._columns, self._write_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the written records."""
        warn_of_overruled_rows(log_sum(_reports(messages), "batch write"), "batch write")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the written records although the job failed: nothing is removed from a stream."""
        log_sum(_reports(messages), "failed batch write, acknowledged before the failure")


class KinesisStreamWriter(StreamWriter):
    """The sink of `df.writeStream`."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    @with_plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> KinesisCommitMessage:
        """Write one task's rows of a micro-batch."""
        return _write(iterator, self._options, self._columns)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log a micro-batch's writes, keep them for `sink_report`, and warn if the query reads a stream that it writes to.

        After a restart Spark may commit a batch again.
        """
        location = self._options.checkpoint_location
        new_streams = commit_batch(_reports(messages), batchId, location)
        if new_streams and location is not None:
            from penstock.spark.sink.own_source import warn_of_own_source
            from penstock.wiring import open_kinesis

            warn_of_own_source(
                new_streams,
                location,
                batchId,
                lambda stream: open_kinesis(self._options.connection).fetch_summary(stream),
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log the written records; the batch will be written again (at least once)."""
        log_sum(_reports(messages), f"failed micro-batch {batchId}, acknowledged before the failure")
