"""`micro_batches(...).foreach_batch(write)`: the source for a Spark without sources in Python (3.5), run by the program.

The planner, the tasks and their claims are those of `format("kinesis")`. This loop replaces Spark's own: it writes a
batch's offset before the batch runs and a commit after it, so a repeated batch has the same number and the same rows. For
event time, watermarks and state, use Structured Streaming; this has none of them.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import UsageError
from penstock.spark.batch_log import BatchLog
from penstock.spark.batch_planning import batch_source_of
from penstock.spark.schema import SCHEMA_DDL
from penstock.spark.spark_errors import rows_with_plain_errors, with_plain_errors
from penstock.spark.tasks.shard_read import BatchPart

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.batch_planning import BatchSource

_log: Final = logging.getLogger("penstock.spark")
Write = Callable[["DataFrame", int], object]
"""Handles a batch: called with its rows and its number."""


def micro_batches(spark: SparkSession, options: Mapping[str, str], *, checkpoint: str) -> MicroBatches:
    """Return a stream's batches, to be driven by this program.

    Args:
        spark: A classic session of Spark 3.5 or later.
        options: The source's options, as `format("kinesis")` takes them.
        checkpoint: Folder of offsets and commits, wherever Spark can write (`s3:`, `hdfs:`, `file:`, ...).

    Raises:
        OptionError: An option is unknown or has a bad value.
        UsageError: The checkpoint cannot be used.
    """
    source, notes = batch_source_of(options, spark.conf.get("spark.sql.session.timeZone"))
    for note in notes:
        _log.warning(note)
    return MicroBatches(spark, source, BatchLog(spark, checkpoint.rstrip("/")))


class MicroBatches:
    """A stream's batches; made by `micro_batches`.

    Args:
        spark: The session.
        source: The stream, or several.
        log: The checkpoint.
    """

    def __init__(self, spark: SparkSession, source: BatchSource, log: BatchLog) -> None:
        self._spark = spark
        self._source = source
        self._log = log
        self._stop = threading.Event()
        self._running = threading.Lock()
        self.last_progress: Mapping[str, Any] | None = None
        """The last batch's number and duration, and the source's figures as they were when it was planned."""

    def stop(self) -> None:
        """End after the batch under way; from any thread."""
        self._stop.set()

    @with_plain_errors
    def foreach_batch(self, write: Write, *, available_now: bool = False) -> None:
        """Read the stream in batches and give each to `write`, until `stop` or SIGTERM.

        A batch is repeated, with the same number and the same rows, when the program ended before `write` returned.

        Args:
            write: Gets the batch's rows as a DataFrame, and its number.
            available_now: End when everything is read that had arrived when this was called.

        Raises:
            UsageError: It runs already, or another program works from the same checkpoint.
            PenstockError: Records would be lost, or the service does not answer.
            Exception: What `write` raised; the batch is not done then.
        """
        if not self._running.acquire(blocking=False):
            raise UsageError("these micro batches run already")
        try:
            self._stop.clear()
            with self._stop_on_termination():
                planner: Any = self._source.open_planner()
                try:
                    self._run(planner, write, available_now=available_now)
                finally:
                    planner.stop()
        finally:
            self._running.release()

    def _run(self, planner: Any, write: Write, *, available_now: bool) -> None:
        """Repeat the last batch if it is not done, then plan and run batches until the stop or the end."""
        source, last = self._source, self._log.last_number()
        offset: Any = source.initial_offset
        if last is not None:
            document = self._log.read_offset(last)
            assert document is not None, f"{self._log.location}: offsets/{last} was listed and is gone"
            offset = source.parse_offset(document)
        planner.join(offset)
        if last is not None and not self._log.is_committed(last):
            before = self._log.read_offset(last - 1)
            start = source.initial_offset.to_json() if before is None else before
            self._run_batch(planner, last, start, offset, write)
        if available_now:
            planner.prepare_available_now()
        number = -1 if last is None else last
        while not self._stop.is_set():
            next_offset = planner.latest(offset)
            if next_offset is offset:
                if available_now:
                    return
                continue
            number += 1
            self._log.add_plan(number, next_offset.to_json())
            self._run_batch(planner, number, offset.to_json(), next_offset, write)
            offset = next_offset

    def _run_batch(
        self, planner: Any, number: int, start: Mapping[str, Any], offset: Any, write: Write
    ) -> None:
        began_s = time.monotonic()
        tasks = tuple(self._source.tasks(planner, start, offset))
        read = partial(_read_tasks, self._source, tasks)
        rows = self._spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, SCHEMA_DDL)
        write(rows, number)
        self._log.commit(number)
        self.last_progress = {
            "batchId": number,
            "durationMs": round(1000 * (time.monotonic() - began_s)),
            "source": planner.report(),
        }
        _log.info("batch %d of stream %s: %s", number, self._source.shared_options.stream, self.last_progress)

    @contextlib.contextmanager
    def _stop_on_termination(self) -> Iterator[None]:
        """End the loop on SIGTERM after the batch under way, if the signal has no other handler and Python allows it."""
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            yield
            return

        def request_stop(_number: int, _frame: FrameType | None) -> None:
            self._stop.set()

        signal.signal(signal.SIGTERM, request_stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@rows_with_plain_errors
def _read_tasks(
    source: BatchSource,
    tasks: Sequence[tuple[int, Sequence[BatchPart]]],
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the tasks with these numbers; in an executor."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from source.rows(*tasks[number])
