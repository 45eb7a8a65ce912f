"""Spark source, sink and batch: the only package that knows pyspark.

Spark finds `format("kinesis")` by itself; nothing here needs to be imported for it. In an environment where Spark's
discovery does not reach (an old session, an archive on the workers' path) register the source by hand:
`spark.dataSource.register(penstock.spark.KinesisDataSource)`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.spark.align import align_to_shards
    from penstock.spark.awslabs_checkpoint import saved_positions
    from penstock.spark.micro_batch_loop import MicroBatches, micro_batches
    from penstock.spark.monitoring.lag_listener import LagListener
    from penstock.spark.monitoring.progress import StreamLag, lag
    from penstock.spark.options.keywords import SinkKeywords
    from penstock.spark.schemas.glue_columns import from_glue_avro, from_glue_json
    from penstock.spark.sink.micro_batch_write import write_kinesis
    from penstock.spark.sink.report import SinkReport, sink_report
    from penstock.spark.source import KinesisDataSource

__all__ = [
    "KinesisDataSource",
    "LagListener",
    "MicroBatches",
    "SinkKeywords",
    "SinkReport",
    "StreamLag",
    "align_to_shards",
    "from_glue_avro",
    "from_glue_json",
    "lag",
    "micro_batches",
    "saved_positions",
    "sink_report",
    "write_kinesis",
]

_HOMES: Final = {
    "KinesisDataSource": "source",
    "LagListener": "monitoring.lag_listener",
    "MicroBatches": "micro_batch_loop",
    "SinkKeywords": "options.keywords",
    "SinkReport": "sink.report",
    "StreamLag": "monitoring.progress",
    "align_to_shards": "align",
    "from_glue_avro": "schemas.glue_columns",
    "from_glue_json": "schemas.glue_columns",
    "lag": "monitoring.progress",
    "micro_batches": "micro_batch_loop",
    "saved_positions": "awslabs_checkpoint",
    "sink_report": "sink.report",
    "write_kinesis": "sink.micro_batch_write",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for: Spark imports this in every session, and the option table needs no Spark."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
    try:
        return getattr(import_module(f"penstock.spark.{home}"), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "fastavro":
            raise ModuleNotFoundError(
                f"penstock.spark.{name} needs the package {package}, which is not installed: pip install "
                "'penstock[schemas]', here and on the executors",
                name=error.name,
            ) from error
        if package not in ("pyspark", "pyarrow", "pandas"):
            raise
        raise ModuleNotFoundError(
            f"penstock.spark.{name} needs the package {package}, which is not installed: pip install 'penstock[spark]', "
            f"or, where a cluster brings its own Spark, the package alone",
            name=error.name,
        ) from error


def __dir__() -> list[str]:
    """Show the public names."""
    return sorted(__all__)
