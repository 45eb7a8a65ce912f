"""The tables of a followed query: the rows of a stream without an end, or of a recording."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.arrow_table import to_arrow
from penstock.consumer import Consumer, ConsumerOptions, ConsumerPorts
from penstock.consumer.stopped import without_ended_iteration
from penstock.core.reading.reader_options import ErrorAdvice
from penstock.core.starting import StartingPosition
from penstock.errors import ShardsStopped
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from penstock.sql.query_plan import RowBounds
from penstock.sql.stream_rows import ERROR_ADVICE, StreamRows

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.sql.recording_rows import RecordingRows


class _FollowOptions(ConsumerOptions):
    """Consumer options whose error messages advise the user of a query."""

    _error_advice = ErrorAdvice(of_loss="The query goes on", of_new_stream=ERROR_ADVICE.of_new_stream)


class FollowedStream:
    """Reads a stream without an end, through reshards too. Leases and checkpoints stay in this process."""

    def __init__(self, rows: StreamRows) -> None:
        self._rows = rows
        self._consumer: Consumer | None = None
        self._is_stopped = False

    def follow(self, bounds: RowBounds) -> Iterator[pa.RecordBatch]:
        """Yield rows from the query's lower bound on, until `stop`.

        Raises:
            ShardsStopped: A shard cannot be read any more.
        """
        rows = self._rows
        from_ms = None if bounds.from_ms is None else min(bounds.from_ms, rows.now_ms)
        options = _FollowOptions(
            worker_id="sql",
            starting_position=StartingPosition(rows.start_of(rows.plan(RowBounds(from_ms)))),
            on_data_loss="warn",
            lease_duration_s=60.0,
            round_interval_s=0.5,  # the table is a dictionary: scans are free, and children start at once
            cold_start_jitter_s=0.0,
            idle_time_between_reads_s=0.5,
        )
        consumer = Consumer(
            rows.stream,
            "sql",
            options=options,
            ports=ConsumerPorts(kinesis=rows.kinesis, lease_table=MemoryLeaseTable(f"sql of {rows.stream}")),
        )
        self._consumer = consumer
        if self._is_stopped:  # `stop` came before the consumer
            return
        try:
            for batch in consumer:
                yield from to_arrow(batch).combine_chunks().to_batches()
            failures = without_ended_iteration(consumer.failures)
        except ShardsStopped as error:
            failures = dict(error.failures)
        if failures:
            first = min(failures)
            raise ShardsStopped(f"stream {self._rows.stream}: {first} stopped. {failures[first]}", failures)

    def stop(self) -> None:
        """End `follow`, also if it has not begun; safe to call from any thread."""
        self._is_stopped = True
        if self._consumer is not None:
            self._consumer.request_stop()


class FollowedRecording:
    """Reads a recording once, as a table beside streams that are followed."""

    def __init__(self, rows: RecordingRows) -> None:
        self._rows = rows

    def follow(self, bounds: RowBounds) -> Iterator[pa.RecordBatch]:
        """Yield the rows within these bounds."""
        return self._rows.read(bounds)

    def stop(self) -> None:
        """Do nothing: the rows end by themselves."""
