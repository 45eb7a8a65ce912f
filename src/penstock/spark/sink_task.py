"""Rows on their way to a stream: what a task of the sink does, over ports, so that the simulator runs it too.

`penstock.producer.task_writer` does the sending: requests within every limit, order, flow control, retries of refused
entries only. Here rows are read from Arrow, routed by stream, and counted. `row_writer` opens the ports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.errors import RecordError
from penstock.producer.task_writer import TaskMemory, TaskWriter, TaskWriterOptions
from penstock.spark.dead_letters import DeadLetters
from penstock.spark.sink_ports import SinkPorts
from penstock.spark.spark_errors import explained
from penstock.spark.spark_options import SinkOptions
from penstock.spark.task_report import TaskReport

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row

_SLICE_BYTES: Final = 4 * 2**20
_SLICE_ROWS_MAX: Final = 10_000
_Values: TypeAlias = tuple[Any, Any, Any, Any]
"""One row's data, partition key, explicit hash key and stream; None where it has none."""


class SinkTask:
    """Writes the rows of one task, batch or streaming.

    Args:
        options: The sink's options.
        columns: As `check_columns` returned them.
        ports: What the task reaches outside itself.
    """

    def __init__(self, options: SinkOptions, columns: tuple[str, ...], ports: SinkPorts) -> None:
        self._options = options
        self._columns = columns
        self._ports = ports

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Send every row of Arrow batches and wait until each is acknowledged; raises as `write_rows` does."""
        return self._write_all(_values_of_batches(batches, self._columns))

    def write_rows(self, rows: Iterator[Row]) -> TaskReport:
        """Send every row and wait until each is acknowledged.

        Raises:
            RecordError: The service can never accept a row; names it and the way out.
            DeliveryFailed: The service did not acknowledge in time, or refused for good.
        """
        return self._write_all(_values_of_rows(rows, self._columns))

    @explained
    def _write_all(self, rows: Iterator[_Values]) -> TaskReport:
        memory = TaskMemory(self._options.buffer_bytes_max)
        if not self._options.keeps_dead_letters:
            return self._write(rows, memory, None)
        with contextlib.closing(DeadLetters(self._options, self._ports, memory)) as dead:
            return self._write(rows, memory, dead)

    def _write(self, rows: Iterator[_Values], memory: TaskMemory, dead: DeadLetters | None) -> TaskReport:
        writers: dict[str, TaskWriter] = {}
        for row_number, (data, key, hash_key, to_stream) in enumerate(rows):
            row = (data, key, hash_key)
            stream: str | None = None
            try:
                stream = self._stream_of(to_stream, row_number)
                writer = writers.get(stream)
                if writer is None:
                    writer = writers[stream] = self._open(stream, memory)
                self._send(writer, stream, row_number, row)
            except RecordError as error:
                if dead is None:
                    raise
                dead.add(stream, row_number, row, str(error))
        reports = {stream: writer.finish() for stream, writer in writers.items()}
        # The records first: a task that fails here is repeated, and its dead letters are then written once, by the repeat.
        if dead is not None:
            dead.finish()
        return TaskReport(reports, 0 if dead is None else dead.count)

    def _open(self, stream: str, memory: TaskMemory) -> TaskWriter:
        options = self._options
        return TaskWriter(
            self._ports.open_kinesis(options.connection),
            stream,
            TaskWriterOptions(
                aggregation=options.aggregation,
                ordering=options.ordering,
                rate_limit_percent=options.rate_limit_percent,
                request_record_count_max=options.request_record_count_max,
                no_progress_deadline_s=options.write_deadline_s,
            ),
            clock=self._ports.clock,
            chance=self._ports.chance,
            memory=memory,
            placements=self._ports.placements,
        )

    def _stream_of(self, value: Any, row_number: int) -> str:
        if value is not None:
            return str(value)
        if self._options.stream is None:
            raise RecordError(
                f"row {row_number} of the task: the column streamName is null and no option streamName is set; set it, give a "
                "value, or put such rows aside with onError=deadLetter"
            )
        return self._options.stream

    @staticmethod
    def _send(writer: TaskWriter, stream: str, row_number: int, row: tuple[Any, Any, Any]) -> None:
        data, key, hash_key = row
        if data is None or key is None:
            missing = "data" if data is None else "partitionKey"
            raise RecordError(
                f"stream {stream}, row {row_number} of the task: the column {missing} is null; filter such rows out, give a "
                "value, or put them aside with onError=deadLetter"
            )
        payload = data.encode() if isinstance(data, str) else data
        try:
            writer.write(payload, key, hash_key)
        except RecordError as error:
            raise RecordError(f"stream {stream}, row {row_number} of the task: {error}") from None


def _values_of_batches(batches: Iterator[pa.RecordBatch], columns: tuple[str, ...]) -> Iterator[_Values]:
    """Yield the rows of batches, in slices of a few megabytes, since a slice is copied to Python objects."""
    for batch in batches:
        row_bytes = max(1, batch.nbytes // max(1, batch.num_rows))
        row_count = max(1, min(_SLICE_ROWS_MAX, _SLICE_BYTES // row_bytes))
        for begin in range(0, batch.num_rows, row_count):
            rows = batch.slice(begin, row_count)
            data, keys, hash_keys, streams = (_values(rows, column) for column in columns)
            yield from zip(data, keys, hash_keys, streams, strict=True)


def _values(batch: pa.RecordBatch, column: str) -> list[Any]:
    return batch.column(batch.schema.names.index(column)).to_pylist() if column else [None] * batch.num_rows


def _values_of_rows(rows: Iterator[Row], columns: tuple[str, ...]) -> Iterator[_Values]:
    """Yield the rows that Spark made itself; their binary values are bytearrays."""
    for row in rows:
        data, key, hash_key, stream = (row[column] if column else None for column in columns)
        yield (bytes(data) if isinstance(data, bytearray) else data, key, hash_key, stream)
