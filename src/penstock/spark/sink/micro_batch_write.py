"""`write_kinesis(df, options)`: the sink for a Spark without sinks in Python (3.5), called by the program itself."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict

from penstock.spark.options.spark_options import parse_sink
from penstock.spark.sink.columns import check_columns
from penstock.spark.sink.report import SinkReport, reports_of_json, reports_to_json
from penstock.spark.sink.row_writer import RowWriter
from penstock.spark.sink.task_report import TaskReport, report_of, sum_up, warn_of_overruled
from penstock.spark.spark_errors import explained

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_REPORT_DDL: Final = "report STRING"


@explained
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
    writer = RowWriter(parsed, columns, uuid.uuid4().hex)
    rows = df.mapInArrow(_WriteTask(writer), _REPORT_DDL).collect()
    total = sum_up(map(_parse, (row.report for row in rows)), f"batch {batch_id}")
    warn_of_overruled(total, f"batch {batch_id}")
    return report_of(batch_id, total)


def _parse(text: str) -> TaskReport:
    document = json.loads(text)
    return TaskReport(**{**document, "reports": reports_of_json(document["reports"])})


@dataclass(frozen=True)
class _WriteTask:
    """Runs in an executor: writes a partition's rows and returns its report as the only row."""

    writer: RowWriter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of this partition."""
        import pyarrow as pa

        done = self.writer.write(batches)
        report = {**asdict(done), "reports": reports_to_json(done.reports)}
        yield pa.RecordBatch.from_pydict({"report": [json.dumps(report)]})
