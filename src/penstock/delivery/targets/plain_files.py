"""Plain files in a folder: staged in partition folders, then moved to names that have the delivery, the batch and a number."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.core.delivering.definition import Delivery
from penstock.core.delivering.manifest import Manifest, plan_moves
from penstock.delivery.files import spark_uri
from penstock.delivery.table_rows import table_rows
from penstock.delivery.targets.target import Placement, Target


class PlainFiles(Target):
    """Puts rows into a folder as Parquet files or JSON lines. The schema of the folder is in the delivery's state folder.

    Args:
        delivery: The definition.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    @property
    def ending(self) -> str:
        return self._delivery.format

    def stage(self, rows: DataFrame, schema: StructType | None, folder: str) -> None:
        """Write the rows as they will be in the table."""
        names = [each.name for each in self._delivery.partitions]
        # Without the hint, every task would write a file into every folder. With it, Spark chooses the number of files by size.
        balanced = table_rows(rows, self._delivery, schema).hint("rebalance", *names)
        writer = balanced.write.mode("overwrite").option("mergeSchema", "false")
        if names:
            writer = writer.partitionBy(*names)
        if self._delivery.format == "parquet":
            writer.parquet(spark_uri(folder))
        else:
            writer.json(spark_uri(folder))

    def plan(self, label: str, staged: Sequence[tuple[str, int]], folder: str) -> Placement:
        moves = plan_moves(
            self._delivery.name, label, staged, root=folder, to=self._delivery.to, ending=self.ending
        )
        return Placement(moves)

    def check(self, schema: StructType | None) -> None:
        """Accept every schema."""

    def compact(self) -> None:
        """Do nothing."""

    def commit(self, manifest: Manifest) -> None:
        """Do nothing: the batch's files are moved by its manifest."""
