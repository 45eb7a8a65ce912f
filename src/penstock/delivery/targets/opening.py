"""The target of a delivery, by its format."""

from __future__ import annotations

from pyspark.sql import SparkSession

from penstock.core.delivering.definition import Delivery
from penstock.delivery.files import open_files
from penstock.delivery.table_writer import set_session_options
from penstock.delivery.targets.delta import DeltaTable
from penstock.delivery.targets.iceberg import IcebergTable
from penstock.delivery.targets.lake import LakeTable, LakeTarget
from penstock.delivery.targets.plain_files import PlainFiles
from penstock.delivery.targets.stream import StreamTarget
from penstock.delivery.targets.target import Target


def open_target(spark: SparkSession, delivery: Delivery, delivery_id: str) -> Target:
    """Return the target of a delivery.

    Args:
        spark: The session.
        delivery: The definition.
        delivery_id: Id of the delivery; its transactions carry it.

    Raises:
        OptionError: The catalog of the table is not configured.
    """
    if delivery.format not in ("delta", "iceberg", "stream"):
        return PlainFiles(delivery)
    session = spark.newSession()  # its settings are of this delivery
    set_session_options(session, delivery)
    if delivery.format == "stream":
        return StreamTarget(session, delivery)
    if delivery.format == "delta":
        table: LakeTable = DeltaTable(session, delivery, open_files(session, delivery.to))
    else:
        table = IcebergTable(session, delivery)
    return LakeTarget(session, delivery, delivery_id, table)
