"""Delta and Iceberg tables: rows are staged as Parquet, then appended by one transaction that names the batch."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StructField, StructType

from penstock.core.delivering.definition import Delivery
from penstock.core.delivering.lake_table import (
    TableChange,
    TableColumn,
    check_computed,
    check_owner,
    check_partitions,
    describe_lost_table,
    may_be_column_name,
    may_fill_column,
    may_try_again,
    owner_property,
    plan_change,
)
from penstock.core.delivering.manifest import Manifest
from penstock.core.delivering.sql_names import quote_name
from penstock.delivery.files import read_uri, spark_uri
from penstock.delivery.table_rows import table_rows, unfindable_struct
from penstock.delivery.targets.target import Placement, Target
from penstock.errors import DeliveryFailed, OptionError
from penstock.spark.schema import SCHEMA_DDL

_log: Final = logging.getLogger("penstock.delivery")
_TRIES_MAX: Final = 5


class LakeTable(Protocol):
    """A table of Delta Lake or Apache Iceberg. Implemented by `DeltaTable` and `IcebergTable`."""

    @property
    def name(self) -> str:
        """The table's name for SQL."""

    def exists(self) -> bool:
        """Return whether there is such a table. Raises OptionError if no table can be created there."""

    def schema(self) -> StructType:
        """Return the table's columns as they are now."""

    def partitions(self) -> Sequence[str]:
        """Return the partition columns, or the expressions of hidden partitions."""

    def computed(self) -> Sequence[str]:
        """Return the names of the columns whose values the table computes, so that no row may have them."""

    def property(self, name: str) -> str | None:
        """Return a property of the table; None if it is not set."""

    def create(self, schema: StructType, partitions: Sequence[str]) -> None:
        """Create the table without rows."""

    def way_to_widen(self) -> str | None:
        """Return how a user allows wider types; None if they are allowed."""

    def state(self) -> str | None:
        """Return the table's state, by which a later `append` finds out whether its batch was committed; None if it needs no state."""

    def batches(self, delivery_id: str) -> Sequence[str]:
        """Return the labels of a delivery's batches in the table. Of the query's batches only the newest one is sure to be among them."""

    def compact(self, file_bytes: int) -> None:
        """Merge files that are smaller than a size."""

    def append(self, rows: DataFrame, delivery_id: str, label: str, state_before: str | None) -> None:
        """Append the rows of a batch by one transaction, unless an earlier attempt has committed it.

        Args:
            rows: Rows with columns of the table.
            delivery_id: Id of the delivery.
            label: Label of the batch.
            state_before: The result of `state` before the first attempt.
        """


class LakeTarget(Target):
    """Puts rows into a Delta or Iceberg table.

    Args:
        spark: A session of this delivery.
        delivery: The definition.
        delivery_id: Id of the delivery; each of its transactions carries it.
        table: The table.
    """

    ending = "parquet"

    def __init__(self, spark: SparkSession, delivery: Delivery, delivery_id: str, table: LakeTable) -> None:
        self._spark = spark
        self._delivery = delivery
        self._id = delivery_id
        self._table = table
        self._is_marked_as_own = False  # the table is known to have the delivery's property

    def known_columns(self) -> StructType:
        columns = self._columns_of_records()
        return StructType([each for each, is_computed in columns if _is_readable(each) and not is_computed])

    def unreadable_columns(self) -> Mapping[str, str]:
        return {
            each.name: "generated" if is_computed else each.dataType.simpleString()
            for each, is_computed in self._columns_of_records()
            if is_computed or not _is_readable(each)
        }

    def _columns_of_records(self) -> list[tuple[StructField, bool]]:
        """Return the columns of the table, if it exists, that the delivery does not add, and whether the table computes them."""
        if self._delivery.schema == "raw" or not self._table.exists():
            return []
        other_names = {each.name.lower() for each in self._delivery.partitions if not each.is_plain}
        other_names |= {f"_{name}".lower() for name in self._delivery.metadata}
        computed = self._table.computed()
        columns = self._table.schema().fields
        return [(each, each.name in computed) for each in columns if each.name.lower() not in other_names]

    def check(self, schema: StructType | None) -> None:
        """Compare the rows' columns and the partitions with the table."""
        if not self._table.exists():
            wanted = [] if schema is None else _columns(schema, is_required=False)
            plan_change(self._table.name, wanted, (), way_to_widen=lambda: None)  # refuses some names
            return
        delivery = self._delivery
        check_owner(
            self._table.name, delivery, self._table.property(owner_property(delivery.name)), self._id or None
        )
        check_partitions(self._table.name, delivery.partitions, self._table.partitions())
        check_computed(
            self._table.name,
            self._table.computed(),
            columns=() if schema is None else schema.names,
            partitions=delivery.partitions,
        )
        self._plan_change(self._rows_schema(schema))

    def check_filled(self) -> None:
        """Refuse a missing table, and one without the property that the first batch has set."""
        delivery, name = self._delivery, self._table.name
        if not self._table.exists():
            raise DeliveryFailed(describe_lost_table(name, delivery))
        owner = owner_property(delivery.name)
        if self._table.property(owner) != self._id:
            raise DeliveryFailed(
                f"{name} was created again, or its property {owner} was removed: {delivery.state} has batches that were delivered into "
                f"the earlier table. Put that back, or remove {delivery.state} too to start over, or deliver only the later batches, into "
                f"this table, after ALTER TABLE {name} SET TBLPROPERTIES ('{owner}' = '{self._id}')"
            )
        self._is_marked_as_own = True

    def batches(self) -> Sequence[str]:
        return self._table.batches(self._id) if self._table.exists() else ()

    def needed_changes(self, schema: StructType | None) -> tuple[str, ...]:
        if not self._table.exists():
            return (f"the first batch creates {self._table.name}",)
        change = self._plan_change(self._rows_schema(schema))
        added = [
            f"{self._table.name} gets a column {each.name} {each.kind.upper()}"
            for each in change.added_columns
        ]
        widened = [
            f"column {each.name} of {self._table.name} becomes {each.kind.upper()}"
            for each in change.widened_columns
        ]
        return (*added, *widened)

    def _rows_schema(self, schema: StructType | None) -> StructType:
        from penstock.delivery.json_rows import with_verdict

        rows = self._spark.createDataFrame([], SCHEMA_DDL)
        if schema is not None:
            if not schema.fields:
                return schema
            rows = with_verdict(rows, schema)
        return table_rows(rows, self._delivery, schema).schema

    def _plan_change(self, schema: StructType) -> TableChange:
        return plan_change(
            self._table.name,
            _columns(schema, is_required=False),
            _columns(self._table.schema(), filled=self._table.computed()),
            way_to_widen=self._table.way_to_widen,
        )

    def stage(self, rows: DataFrame, schema: StructType | None, folder: str) -> None:
        """Write the rows as Parquet, without folders of partitions."""
        names = [each.name for each in self._delivery.partitions]
        table_rows(rows, self._delivery, schema).hint("rebalance", *names).write.parquet(spark_uri(folder))

    def plan(self, label: str, staged: Sequence[tuple[str, int]], folder: str) -> Placement:
        """Return the folder that `commit` reads, and the table's state before the commit."""
        del label
        if not staged:
            return Placement()
        state_before = self._table.state() if self._table.exists() else None
        return Placement(rows=folder, state_before=state_before, staged_count=len(staged))

    def compact(self) -> None:
        if self._table.exists():
            self._table.compact(self._delivery.file_bytes)

    def commit(self, manifest: Manifest) -> None:
        """Create the table if it is missing, add or widen its columns, and append the rows.

        If another writer changes the table in between, all steps are repeated. A repeat of any step is safe.
        """
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                self._commit(manifest)
            except (OptionError, DeliveryFailed) as error:  # they name the table and the way out
                raise type(error)(
                    f"batch {manifest.batch} of delivery {self._delivery.name}: {error}"
                ) from error
            except (PySparkException, Py4JJavaError) as error:
                if tries_left == 0 or not may_try_again(str(error)):
                    raise
                _log.warning(
                    "%s was changed by another writer: %s", self._table.name, str(error).splitlines()[0]
                )
            else:
                return

    def _commit(self, manifest: Manifest) -> None:
        assert manifest.rows is not None
        rows = self._spark.read.parquet(read_uri(manifest.rows))
        if self._is_marked_as_own:
            self.check_filled()
        else:
            if not self._table.exists():
                self._table.create(rows.schema, [each.name for each in self._delivery.partitions])
            owner = owner_property(self._delivery.name)
            if self._table.property(owner) != self._id:
                self._alter_table(f"SET TBLPROPERTIES ('{owner}' = '{self._id}')")
        change = self._plan_change(rows.schema)
        if change.added_columns:
            columns = ", ".join(f"{quote_name(each.name)} {each.kind}" for each in change.added_columns)
            self._alter_table(f"ADD COLUMNS ({columns})")
        for each in change.widened_columns:
            self._alter_table(f"ALTER COLUMN {quote_name(each.name)} TYPE {each.kind}")
        self._table.append(rows, self._id, manifest.batch, manifest.state_before)
        self._is_marked_as_own = True

    def _alter_table(self, change: str) -> None:
        self._spark.sql(f"ALTER TABLE {self._table.name} {change}")


def with_table_columns(rows: DataFrame, schema: StructType, *, filled: Collection[str]) -> DataFrame:
    """Return rows with the names and types of a table's columns.

    Args:
        rows: Staged rows.
        schema: The table's schema.
        filled: Columns that become null if the rows lack them. Other columns that the rows lack are left out.
    """
    names = {name.lower(): name for name in rows.columns}
    columns = []
    for field in schema.fields:
        name = names.get(field.name.lower())
        if name is not None or field.name in filled:
            column = F.lit(None) if name is None else F.col(quote_name(name))
            columns.append(column.cast(field.dataType).alias(field.name))
    return rows.select(*columns)


def _is_readable(column: StructField) -> bool:
    """Return whether fields of records may fill a column of the table."""
    kind, name = column.dataType.simpleString(), column.name
    return (
        may_fill_column(kind) and may_be_column_name(name) and unfindable_struct(StructType([column])) is None
    )


def _columns(
    schema: StructType, *, is_required: bool = True, filled: Collection[str] = ()
) -> list[TableColumn]:
    return [
        TableColumn(
            each.name,
            each.dataType.simpleString(),
            is_required and not each.nullable and each.name not in filled,
        )
        for each in schema.fields
    ]
