"""A task of the sink: sends rows to their streams, over ports, so that the simulator runs it too.

`penstock.producer.task_writer` sends: requests within every limit, order, flow control, retries of refused entries only.
This module routes rows by stream, checks them and counts them. `row_writer` opens the ports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.core.stream_identity import is_name_or_arn
from penstock.errors import RecordError
from penstock.producer.task_writer import TaskMemory, TaskWriter, TaskWriterOptions
from penstock.spark.options.spark_options import SinkOptions
from penstock.spark.sink.dead_letters import DeadLetters
from penstock.spark.sink.ports import SinkPorts
from penstock.spark.sink.task_report import TaskReport
from penstock.spark.sink.values import RowValues, Text, values_of_batches

if TYPE_CHECKING:
    import pyarrow as pa

_REMEDY: Final = "filter such rows out, change the value, or put them aside with onError=deadLetter"


class SinkTask:
    """Writes the rows of one task, batch or streaming.

    Args:
        columns: The result of `check_columns`.
    """

    def __init__(self, options: SinkOptions, columns: tuple[str, ...], ports: SinkPorts) -> None:
        self._options = options
        self._columns = columns
        self._ports = ports

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Send every row and wait until each is acknowledged.

        Raises:
            RecordError: The service can never accept a row; the message names the row and the way out.
            DeliveryFailed: The service did not acknowledge in time, or refused permanently.
        """
        memory = TaskMemory(self._options.buffer_bytes_max)
        if not self._options.keeps_dead_letters:
            return self._write(batches, memory, None)
        with contextlib.closing(DeadLetters(self._options, self._ports, memory)) as dead_letters:
            return self._write(batches, memory, dead_letters)

    def _write(
        self, batches: Iterator[pa.RecordBatch], memory: TaskMemory, dead_letters: DeadLetters | None
    ) -> TaskReport:
        writers: dict[str, TaskWriter] = {}
        router = _Router(self._options.stream)
        for row_number, values in enumerate(values_of_batches(batches, self._columns)):
            stream: str | None = None
            try:
                stream = router.stream_of(values[3], row_number)
                writer = writers.get(stream)
                if writer is None:
                    writer = writers[stream] = self._open_writer(stream, memory)
                self._write_row(writer, stream, row_number, values)
            except RecordError as error:
                if dead_letters is None:
                    raise RecordError(f"{error}; {_REMEDY}") from None
                dead_letters.add(stream, row_number, values[:3], str(error))
        reports = {stream: writer.finish() for stream, writer in writers.items()}
        # The records first: a task that fails here is repeated, and its dead letters are then written once, by the repeat.
        if dead_letters is not None:
            dead_letters.finish()
        return TaskReport(
            reports,
            0 if dead_letters is None else dead_letters.count,
            router.overruled_count,
            router.overruled_stream,
        )

    def _open_writer(self, stream: str, memory: TaskMemory) -> TaskWriter:
        options = self._options
        writer_options = TaskWriterOptions(
            aggregation=options.aggregation,
            ordering=options.ordering,
            rate_limit_percent=options.rate_limit_percent,
            request_record_count_max=options.request_record_count_max,
            no_progress_deadline_s=options.write_deadline_s,
        )
        return self._ports.open_writer(options.connection, stream, writer_options, memory)

    @staticmethod
    def _write_row(writer: TaskWriter, stream: str, row_number: int, values: RowValues) -> None:
        data, key, hash_key, _ = values
        if data is None or not isinstance(key, str) or isinstance(hash_key, bytes):
            raise RecordError(
                f"stream {stream}, row {row_number} of the task: {_reason_not_sendable(values)}"
            )
        try:
            writer.write(data, key, hash_key)
        except RecordError as error:
            reason = str(error).removeprefix(f"stream {stream}: ")
            raise RecordError(f"stream {stream}, row {row_number} of the task: {reason}") from None


class _Router:
    """Decides the stream of each row: that of the option streamName, or without the option the one in the row's column."""

    def __init__(self, stream: str | None) -> None:
        self._stream = stream
        self._named: set[str] = set()
        """Streams that the column has named. Their names were checked, and are valid."""
        self.overruled_count = 0
        """Rows whose column names another stream than the option."""
        self.overruled_stream = ""
        """One stream that such a column has named, for the warning."""

    def stream_of(self, named: Text, row_number: int) -> str:
        """Return the stream of a row whose column has this value.

        Raises:
            RecordError: The option streamName is not set, and the column names no stream.
        """
        if self._stream is not None:
            if named is not None and named != self._stream and not _may_be_same_stream(named, self._stream):
                self.overruled_count += 1
                self.overruled_stream = self.overruled_stream or _short_repr(named)
            return self._stream
        if named not in self._named:
            if not isinstance(named, str) or not is_name_or_arn(named):
                why = "is null" if named is None else f"does not name a stream ({_short_repr(named)})"
                raise RecordError(
                    f"row {row_number} of the task: the column streamName {why}, and option streamName is not set"
                )
            self._named.add(named)
        return str(named)


def _may_be_same_stream(named: Text, stream: str) -> bool:
    """Return whether one of the texts is a name, and the other an ARN with that name."""
    return (
        isinstance(named, str)
        and named.startswith("arn:") != stream.startswith("arn:")
        and named.rpartition("/")[2] == stream.rpartition("/")[2]
    )


def _short_repr(value: str | bytes) -> str:
    return f"{value!r:.80}"


def _reason_not_sendable(values: RowValues) -> str:
    """Return why a row cannot be sent: a column is null, or its text is not UTF-8."""
    data, key, hash_key, _stream = values
    if data is None or key is None:
        return f"the column {'data' if data is None else 'partitionKey'} is null"
    name, value = ("partitionKey", key) if isinstance(key, bytes) else ("explicitHashKey", hash_key)
    return f"the column {name} is not UTF-8 text ({_short_repr(value or b'')}); encode it, for instance with base64(...)"
