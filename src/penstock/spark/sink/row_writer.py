"""The sink's task in Spark: `sink_task` over the service, real folders and the system's clock."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import UsageError
from penstock.spark.options.spark_options import SinkOptions
from penstock.spark.sink.folder import Folder
from penstock.spark.sink.ports import SinkPorts
from penstock.spark.sink.task import SinkTask
from penstock.spark.sink.task_report import TaskReport
from penstock.spark.worker_memory import freeze_once
from penstock.wiring import open_kinesis

if TYPE_CHECKING:
    import pyarrow as pa


def write_rows(
    rows: Iterator[pa.RecordBatch],
    options: SinkOptions,
    columns: tuple[str, ...],
    write_id: str | None = None,
) -> TaskReport:
    """Send every row of one task, batch or streaming, and wait until each is acknowledged.

    Args:
        columns: The result of `check_columns`.
        write_id: Distinguishes this write from others of the same micro-batch; None if no other write is possible.

    Raises:
        RecordError, DeliveryFailed: As in `SinkTask.write`.
    """
    ports = SinkPorts(open_kinesis, Folder, partial(_dead_letters_name, write_id))
    try:
        return SinkTask(options, columns, ports).write(rows)
    finally:
        freeze_once()


def _dead_letters_name(write_id: str | None) -> str:
    from pyspark import TaskContext

    from penstock.spark.sink.dead_letters import letters_file_name

    context = TaskContext.get()
    if context is None:
        raise UsageError("dead letters are written by Spark tasks, and this is none")
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    return letters_file_name(query, batch, write_id, context.partitionId())
