"""Spark source, sink and batch: the only package that knows pyspark.

Spark finds `format("kinesis")` by itself; nothing here needs to be imported for it. In an environment where Spark's
discovery does not reach (an old session, an archive on the workers' path) register the source by hand:
`spark.dataSource.register(penstock.spark.KinesisDataSource)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.spark.progress import StreamLag, lag

if TYPE_CHECKING:
    from penstock.spark.source import KinesisDataSource

__all__ = ["KinesisDataSource", "StreamLag", "lag"]


def __getattr__(name: str) -> Any:
    """Load the data source when it is asked for: the option table is read without Spark."""
    if name == "KinesisDataSource":
        from penstock.spark.source import KinesisDataSource

        return KinesisDataSource
    raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
