"""`write_kinesis(df, options)`: the sink for a Spark without sinks in Python (3.5), called by the program itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.spark.options.spark_options import SinkOptions, parse_sink
from penstock.spark.sink.columns import check_columns
from penstock.spark.sink.report import SinkReport
from penstock.spark.sink.row_writer import write_rows
from penstock.spark.sink.task_report import TaskReport, log_sum, sink_report_of, warn_of_overruled_rows
from penstock.spark.spark_errors import rows_with_plain_errors, with_plain_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_REPORT_DDL: Final = "report STRING"


@with_plain_errors
def write_kinesis(df: DataFrame, options: Mapping[str, str], *, batch_id: int = 0) -> SinkReport:
    """Write every row to Kinesis and wait until each is acknowledged.

    At least once: a task that Spark repeats, and a batch that is repeated, send their rows again.

    Args:
        df: Columns as the sink takes them: `data`, `partitionKey`, and if wanted `explicitHashKey` and `streamName`.
        options: The sink's options, as `format("kinesis")` takes them.
        batch_id: Number of the micro-batch, for the report and for the names of dead letters.

    Returns:
        The writes, by stream and shard.

    Raises:
        OptionError: An option or a column is unknown or wrong.
        Py4JJavaError, PythonException: A task failed four times; the message has the reason.
    """
    parsed, _ = parse_sink(options)
    columns = check_columns(df.schema, parsed, overwrite=False)
    write = partial(_write_task, parsed, columns, uuid.uuid4().hex)
    written = df.mapInArrow(write, _REPORT_DDL).collect()
    reports = (msgspec.json.decode(row.report, type=TaskReport) for row in written)
    total = log_sum(reports, f"batch {batch_id}")
    warn_of_overruled_rows(total, f"batch {batch_id}")
    return sink_report_of(batch_id, total)


@rows_with_plain_errors
def _write_task(
    options: SinkOptions, columns: tuple[str, ...], write_id: str, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write a partition's rows, in an executor, and yield its report as the only row."""
    import pyarrow as pa

    report = write_rows(rows, options, columns, write_id)
    yield pa.RecordBatch.from_pydict({"report": [msgspec.json.encode(report).decode()]})
