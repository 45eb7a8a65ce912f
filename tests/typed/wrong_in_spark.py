"""A program of a user of Spark with mistakes; see `wrong.py`."""

# A mistake and the words for it are on one line.
# fmt: off
from __future__ import annotations

from pyspark.sql import DataFrame

from penstock.spark import SinkReport, align_to_shards, sink_report


def write(batch: DataFrame, _batch_id: int) -> None:
    align_to_shards(batch, "billed", order_by="sequence", region="eu-west-1", endpointUrl="https://k")
    align_to_shards(batch, "billed", regoin="eu-west-1")  # Unexpected keyword argument "regoin"
    align_to_shards(batch, "billed", maxRetries=5)  # Argument "maxRetries" to "align_to_shards" has incompatible type "int"
    align_to_shards(batch, "billed", orderBy="sequence")  # Unexpected keyword argument "orderBy"
    report: SinkReport | None = sink_report(None, "s3://bucket/checkpoint")
    print(report.overruled)  # Item "None" of "SinkReport | None" has no attribute "overruled"
