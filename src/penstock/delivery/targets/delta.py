"""A Delta table. An append has the batch's number as `txnVersion`, and Delta skips a repeat of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core.delivering.definition import Delivery
from penstock.core.delivering.lake_table import batch_of, transaction_of
from penstock.core.delivering.sql_names import quote_name
from penstock.delivery.files import Files, spark_uri
from penstock.delivery.targets.lake import with_table_columns

_COMPUTED: Final = ("delta.generationExpression", "delta.identity.")
"""Beginnings of the metadata of generated columns and of identity columns."""
_WIDENING: Final = "delta.enableTypeWidening"


def has_log(files: Files, folder: str) -> bool:
    """Return whether a folder has a Delta table. A creation that was killed leaves only files that begin with a dot in its log."""
    names = (path.rpartition("/")[2] for path, _ in files.walk(f"{folder}/_delta_log"))
    return any(not name.startswith(".") for name in names)


class DeltaTable:
    """A table in a folder or in Spark's catalog.

    Args:
        spark: A session.
        delivery: The definition.
        files: The file system of the table's folder. Not used for a table in the catalog.
    """

    def __init__(self, spark: SparkSession, delivery: Delivery, files: Files) -> None:
        self._spark = spark
        self._files = files
        self._path = delivery.to if delivery.is_folder else None
        if self._path is not None:
            self.name = f"delta.{quote_name(spark_uri(self._path))}"
        else:
            self.name = ".".join(quote_name(part) for part in delivery.to.split("."))

    def exists(self) -> bool:
        """Return whether there is such a table."""
        if self._path is None:
            return self._spark.catalog.tableExists(self.name)
        return has_log(self._files, self._path)

    def schema(self) -> StructType:
        return self._spark.table(self.name).schema

    def partitions(self) -> Sequence[str]:
        return [
            str(each)
            for each in self._spark.sql(f"DESCRIBE DETAIL {self.name}").collect()[0].partitionColumns
        ]

    def property(self, name: str) -> str | None:
        found = self._spark.sql(f"DESCRIBE DETAIL {self.name}").collect()[0].properties
        return None if found.get(name) is None else str(found[name])

    def create(self, schema: StructType, partitions: Sequence[str]) -> None:
        writer = self._spark.createDataFrame([], schema).write.format("delta").mode("append")
        if partitions:
            writer = writer.partitionBy(*partitions)
        if self._path is None:
            writer.saveAsTable(self.name)
        else:
            writer.save(spark_uri(self._path))

    def way_to_widen(self) -> str | None:
        """Return how a user allows wider types, which older readers of Delta do not support; None if they are allowed."""
        if self.property(_WIDENING) == "true":
            return None
        return (
            f"allow it with ALTER TABLE {self.name} SET TBLPROPERTIES ('{_WIDENING}' = 'true') if all readers of the table know it, or "
            "keep the type"
        )

    def state(self) -> str | None:
        """Return None: Delta compares the batch's number itself."""
        return None

    def batches(self, delivery_id: str) -> Sequence[str]:
        """Return the labels in the table's transactions."""
        # One text: to ask for each id and version would be three calls of Java for each writer that the table ever had.
        listed = self._read_log(lambda snapshot: snapshot.transactions().mkString("\n"))
        if listed is None:
            return ()
        transactions = (line.rpartition(" -> ") for line in listed.split("\n"))
        labels = (batch_of(delivery_id, app, int(at)) for app, _, at in transactions if at.isdecimal())
        return [each for each in labels if each is not None]

    def computed(self) -> Sequence[str]:
        """Return the names of the generated columns and the identity columns."""
        schema = self._read_log(lambda snapshot: snapshot.metadata().schemaString())
        fields = [] if schema is None else json.loads(schema)["fields"]
        return [each["name"] for each in fields if any(key.startswith(_COMPUTED) for key in each["metadata"])]

    def _read_log(self, read: Callable[[Any], Any]) -> str | None:
        """Return a text of the log's newest snapshot, read by Delta's own classes: Spark's SQL shows neither transactions nor computed columns.

        Returns:
            None if Delta has other classes, such as Databricks' own.
        """
        jvm: Any = self._spark._jvm  # noqa: SLF001 - Delta's classes have no other way from Python
        session = self._spark._jsparkSession  # noqa: SLF001 - as well
        try:
            log = jvm.io.delta.tables.DeltaTable.forName(session, self.name).deltaLog()
            return str(read(log.unsafeVolatileSnapshot()))
        except Py4JJavaError:  # the log cannot be read
            raise
        except (Py4JError, TypeError):
            return None

    def compact(self, file_bytes: int) -> None:
        """Run `OPTIMIZE`."""
        for name in ("minFileSize", "maxFileSize"):
            self._spark.conf.set(f"spark.databricks.delta.optimize.{name}", str(file_bytes))
        self._spark.sql(f"OPTIMIZE {self.name}")

    def append(self, rows: DataFrame, delivery_id: str, label: str, state_before: str | None) -> None:
        del state_before
        application, version = transaction_of(delivery_id, label)
        schema = self.schema()
        # Delta fills columns that the rows lack, except partition columns, and those from which it computes others.
        has_all = {name.lower() for name in rows.columns} >= {name.lower() for name in schema.names}
        filled: Collection[str] = () if has_all else self.partitions()
        if not has_all and (computed := self.computed()):
            filled = {*schema.names} - {*computed}
        writer = (
            with_table_columns(rows, schema, filled=filled)
            .write.format("delta")
            .mode("append")
            .option("txnAppId", application)
            .option("txnVersion", version)
        )
        if self._path is None:
            writer.saveAsTable(self.name)
        else:
            writer.save(spark_uri(self._path))
