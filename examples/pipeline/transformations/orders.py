"""A stream as a streaming table, its sums as a materialized view, and large orders to a second stream."""

from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark: Any = SparkSession.active()
ORDER = "`order` INT, country STRING, cents INT"


@dp.table
def orders() -> DataFrame:
    """Each order once, also if an update was killed: a replayed batch holds the same records."""
    records = (
        spark.readStream.format("kinesis")
        .option("streamName", "orders")
        .option("applicationName", "pipeline")
        .option("startingPosition", "TRIM_HORIZON")
        .load()
    )
    parsed = f.from_json(records["data"].cast("string"), ORDER).alias("o")
    return records.select("partitionKey", "approximateArrivalTimestamp", parsed).select("*", "o.*").drop("o")


@dp.materialized_view
def by_country() -> DataFrame:
    """Computed again by every update, from the whole table."""
    return spark.read.table("orders").groupBy("country").agg(f.sum("cents").alias("cents"))


dp.create_sink("billed", "kinesis", {"streamName": "billed"})


@dp.append_flow(target="billed")
def large_orders() -> DataFrame:
    """Orders from 100 on, to the stream `billed`. Delivery is at-least-once."""
    large = spark.readStream.table("orders").where("cents >= 10000")
    return large.select("partitionKey", f.to_json(f.struct("order", "cents")).alias("data"))
