"""Spark source, sink and batch: the only package that knows pyspark.

Spark finds `format("kinesis")` by itself; nothing here needs to be imported for it. In an environment where Spark's
discovery does not reach (an old session, an archive on the workers' path) register the source by hand:
`spark.dataSource.register(penstock.spark.KinesisDataSource)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock._lazy_names import loaded_on_use

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
    ".align": "align_to_shards",
    ".awslabs_checkpoint": "saved_positions",
    ".micro_batch_loop": "MicroBatches micro_batches",
    ".monitoring.lag_listener": "LagListener",
    ".monitoring.progress": "StreamLag lag",
    ".options.keywords": "SinkKeywords",
    ".schemas.glue_columns": "from_glue_avro from_glue_json",
    ".sink.micro_batch_write": "write_kinesis",
    ".sink.report": "SinkReport sink_report",
    ".source": "KinesisDataSource",
}
_SPARK: Final = "'penstock[spark]', or, where a cluster brings its own Spark, the package alone"
_EXTRAS: Final = {
    "fastavro": "'penstock[schemas]', here and on the executors",
    **dict.fromkeys(("pyspark", "pyarrow", "pandas"), _SPARK),
}

__getattr__, __dir__ = loaded_on_use(__name__, _HOMES, __all__, _EXTRAS)
