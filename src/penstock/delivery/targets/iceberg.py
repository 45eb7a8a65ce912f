"""An Iceberg table. The snapshot of an append has the batch in its summary; a repeated append searches the summaries first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core.delivering.definition import Delivery
from penstock.core.delivering.lake_table import Snapshot, batches_in, history_of, is_in_snapshots
from penstock.core.delivering.sql_names import quote_name
from penstock.delivery.targets.lake import with_table_columns
from penstock.errors import DeliveryFailed, OptionError

_DELIVERY: Final = "penstock.delivery"
_BATCH: Final = "penstock.batch"
_REDACTED: Final = "(redacted)"
"""Spark shows this for the values of properties that may be secret, such as names with `token` or `url` (also in `hourly`)."""


class IcebergTable:
    """A table of a catalog.

    Args:
        spark: A session.
        delivery: The definition.

    Raises:
        OptionError: The catalog is not configured.
    """

    def __init__(self, spark: SparkSession, delivery: Delivery) -> None:
        self._spark = spark
        self._file_bytes = delivery.file_bytes
        parts = delivery.to.split(".")
        self.name = ".".join(quote_name(part) for part in parts)
        self._namespace = ".".join(quote_name(part) for part in parts[:-1]) if len(parts) > 2 else None
        own = spark.conf.get("spark.sql.catalog.spark_catalog", None) if len(parts) == 2 else None
        if not spark.conf.get(f"spark.sql.catalog.{parts[0]}", None) and "iceberg" not in (own or ""):
            raise OptionError(
                f"to={delivery.to}: Spark has no catalog {parts[0]}; configure it, for instance --conf "
                f"spark.sql.catalog.{parts[0]}=org.apache.iceberg.spark.SparkCatalog --conf spark.sql.catalog.{parts[0]}.type=glue "
                f"--conf spark.sql.catalog.{parts[0]}.warehouse=s3://BUCKET/FOLDER"
            )

    def exists(self) -> bool:
        """Return whether the table exists now. The session's catalog may still have a table that another program has dropped."""
        is_kept = self._spark.catalog.tableExists(self.name)
        if is_kept:
            self._spark.catalog.refreshTable(self.name)
        return is_kept and self._spark.catalog.tableExists(self.name)

    def schema(self) -> StructType:
        self._spark.catalog.refreshTable(self.name)
        return self._spark.table(self.name).schema

    def partitions(self) -> Sequence[str]:
        """Return the partition columns, or the expressions of hidden partitions."""
        rows = self._spark.sql(f"DESCRIBE TABLE {self.name}").collect()
        titles = [row.col_name for row in rows]
        if "# Partition Information" in titles:
            after = titles[titles.index("# Partition Information") + 1 :]
            return [each for each in after if each and not each.startswith("#")]
        found = rows[titles.index("# Partitioning") + 1 :] if "# Partitioning" in titles else []
        return [row.data_type for row in found if row.col_name.startswith("Part ")]

    def computed(self) -> Sequence[str]:
        return ()

    def property(self, name: str) -> str | None:
        rows = self._spark.sql(f"SHOW TBLPROPERTIES {self.name}").collect()
        found = next((str(row.value) for row in rows if row.key == name), None)
        if found is None or not found.endswith(_REDACTED):
            return found
        jvm: Any = self._spark._jvm  # noqa: SLF001 - Iceberg's classes have no other way from Python
        session = self._spark._jsparkSession  # noqa: SLF001 - as well
        return str(
            jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session, self.name)
            .properties()
            .get(name)
        )

    def create(self, schema: StructType, partitions: Sequence[str]) -> None:
        """Create the namespace if it is missing, and the table without rows."""
        from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

        if self._namespace is not None:
            self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace}")
        writer = self._spark.createDataFrame([], schema).writeTo(self.name).using("iceberg")
        if partitions:
            writer = writer.partitionedBy(*(F.col(quote_name(each)) for each in partitions))
        writer.create()

    def way_to_widen(self) -> str | None:
        """Return None: every reader of Iceberg supports wider types."""
        return None

    def state(self) -> str | None:
        """Return the id of the current snapshot; None if there is none."""
        rows = self._spark.table(f"{self.name}.refs").where("name = 'main'").collect()
        return str(rows[0].snapshot_id) if rows else None

    def batches(self, delivery_id: str) -> Sequence[str]:
        state = self.state()
        return batches_in(self._snapshots(), None if state is None else int(state), delivery_id)

    def compact(self, file_bytes: int) -> None:
        """Run `rewrite_data_files`."""
        catalog, _, table = self.name.partition(".")
        # A name of two parts is a namespace and a table in Spark's own catalog, or a catalog without namespaces and a table.
        if self._namespace is None:
            is_own = not self._spark.conf.get(f"spark.sql.catalog.{catalog.strip('`')}", None)
            catalog, table = ("spark_catalog", self.name) if is_own else (catalog, table)
        self._spark.sql(
            f"CALL {catalog}.system.rewrite_data_files(table => '{table}', options => "
            f"map('target-file-size-bytes', '{file_bytes}'))"
        )

    def append(self, rows: DataFrame, delivery_id: str, label: str, state_before: str | None) -> None:
        """Append the rows of a batch, unless it was committed.

        Raises:
            DeliveryFailed: The snapshots that would show the commit have expired, or another driver has appended the rows too.
        """
        schema = self.schema()
        if self.state() != state_before:
            is_there = is_in_snapshots(
                self._snapshots(), delivery_id, label, None if state_before is None else int(state_before)
            )
            if is_there:
                return
            if is_there is None:
                raise DeliveryFailed(
                    f"{self.name}: batch {label} may be in the table, and the snapshots since its first attempt have expired: compare "
                    "the table with the batch's manifest, then deliver into another table, or under another name with a start after the "
                    "batch"
                )
        (
            with_table_columns(rows, schema, filled=schema.names)
            .writeTo(self.name)
            .option(f"snapshot-property.{_DELIVERY}", delivery_id)
            .option(f"snapshot-property.{_BATCH}", label)
            .option("fanout-enabled", "true")
            .option("target-file-size-bytes", str(self._file_bytes))
            .append()
        )
        self._check_once(delivery_id, label)

    def _check_once(self, delivery_id: str, label: str) -> None:
        """Raise DeliveryFailed if another driver has appended the batch too, between this driver's search and its append."""
        snapshots = self._snapshots()
        found = [each.id for each in snapshots if each.delivery == delivery_id and each.batch == label]
        if len(found) > 1:  # a user may have rolled the table back to before the first of them
            found = [each for each in history_of(snapshots, int(self.state() or 0)) if each in found]
        if len(found) > 1:
            raise DeliveryFailed(
                f"{self.name}: another driver has delivered batch {label} too, and the table has it twice, by snapshots "  # noqa: S608 - a text
                f"{found[0]} and {found[1]}: stop one of the drivers, then remove the rows of one snapshot with DELETE FROM {self.name} "
                f"WHERE _file IN (SELECT data_file.file_path FROM {self.name}.entries WHERE snapshot_id = {found[1]})"
            )

    def _snapshots(self) -> list[Snapshot]:
        rows = (
            self._spark.table(f"{self.name}.snapshots")
            .selectExpr(
                "snapshot_id",
                "parent_id",
                f"summary['{_DELIVERY}'] AS delivery",
                f"summary['{_BATCH}'] AS batch",
            )
            .collect()
        )
        return [Snapshot(row.snapshot_id, row.parent_id, row.delivery, row.batch) for row in rows]
