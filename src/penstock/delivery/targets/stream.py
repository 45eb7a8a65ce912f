"""Another stream as a target. Records are put unchanged, at least once: after a crash the whole batch is put again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StructType

from penstock import wiring
from penstock.core.delivering.definition import Delivery
from penstock.core.delivering.manifest import Manifest
from penstock.delivery.files import read_uri, spark_uri
from penstock.delivery.targets.target import Placement, Target
from penstock.spark.options.spark_options import parse_sink

_COLUMNS: Final = (
    "partitionKey",
    "explicitHashKey",
    "data",
    "shardId",
    "sequenceNumber",
    "subSequenceNumber",
)


class StreamTarget(Target):
    """Puts records into a stream in the account and region of the connection.

    Args:
        spark: A session of this delivery.
        delivery: The definition.
    """

    ending = "parquet"

    def __init__(self, spark: SparkSession, delivery: Delivery) -> None:
        self._spark = spark
        self._to = delivery.to
        named = {"streamARN" if delivery.to.startswith("arn:") else "streamName": delivery.to}
        self._options = {**named, **dict(delivery.connection)}

    def check(self, schema: StructType | None) -> None:
        """Raise NotFound if there is no such stream."""
        del schema
        options, _ = parse_sink(self._options)
        wiring.open_kinesis(options.connection).fetch_summary(self._to)

    def stage(self, rows: DataFrame, schema: StructType | None, folder: str) -> None:
        """Write the records to files, one for each task that has read records."""
        del schema
        rows.select(*_COLUMNS).write.parquet(spark_uri(folder))

    def plan(self, label: str, staged: Sequence[tuple[str, int]], folder: str) -> Placement:
        del label
        return Placement(rows=folder, staged_count=len(staged)) if staged else Placement()

    def compact(self) -> None:
        """Do nothing."""

    def commit(self, manifest: Manifest) -> None:
        """Put the records. Records with the same partition key stay in order."""
        assert manifest.rows is not None
        number = F.lpad("sequenceNumber", 60, "0")
        records = self._spark.read.parquet(read_uri(manifest.rows))
        (
            records.repartition("partitionKey")
            .sortWithinPartitions(number, "subSequenceNumber")
            .write.format("kinesis")
            .options(**self._options)
            .mode("append")
            .save()
        )
