"""The interface of a target: rows are staged, then put into the target once, by the manifest of their batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.core.delivering.manifest import Manifest, Move


class Placement(Struct, frozen=True):
    """The way of staged rows into a target; part of the manifest.

    Args:
        moves: Moves of staged files into the target.
        rows: Folder of the staged rows that `commit` reads; None if `commit` has no rows to read.
        state_before: State of the target before the batch, for `commit`.
        staged_count: Files in the folder `rows`.
    """

    moves: tuple[Move, ...] = ()
    rows: str | None = None
    state_before: str | None = None
    staged_count: int = 0


class Target(Protocol):
    """The place that a delivery fills. Implemented by `PlainFiles`, `LakeTarget` and `StreamTarget`."""

    @property
    def ending(self) -> str:
        """The ending of the names of staged files, such as `parquet`."""

    def known_columns(self) -> StructType:
        """Return the columns of an existing table that fields of records may fill; no columns for files and streams."""
        return StructType([])

    def check(self, schema: StructType | None) -> None:
        """Refuse, before the first write, a target that cannot take the rows.

        Args:
            schema: Schema of the records; None for the source's columns.

        Raises:
            OptionError: A column, or the layout, does not fit the target.
            DeliveryFailed: The target is another delivery's, or cannot be read.
        """

    def needed_changes(self, schema: StructType | None) -> tuple[str, ...]:
        """Return the changes that the target needs before it takes rows of the schema, as sentences for people."""
        del schema
        return ()

    def check_filled(self) -> None:
        """Raise DeliveryFailed if the target of earlier batches has gone or was created again. Called before a batch."""
        return

    def batches(self) -> Sequence[str]:
        """Return the labels of the delivery's batches that the target lists: the query's newest one, and others; empty if it lists none."""
        return ()

    def unreadable_columns(self) -> Mapping[str, str]:
        """Return the columns of an existing target that no field of a record can fill: type by name."""
        return {}

    def stage(self, rows: DataFrame, schema: StructType | None, folder: str) -> None:
        """Write the rows, with the columns of the target, to a folder beside it.

        Args:
            rows: Rows of the source, with the parsed fields if there is a schema.
            schema: Schema of the records; None for the source's columns.
            folder: A folder that does not exist yet.
        """

    def plan(self, label: str, staged: Sequence[tuple[str, int]], folder: str) -> Placement:
        """Plan how staged files get into the target.

        Args:
            label: Label of the batch.
            staged: Path and size of each file.
            folder: The folder in which they were staged.
        """

    def compact(self) -> None:
        """Merge the small files of the target, if it has a procedure for that. It is called between two batches."""

    def commit(self, manifest: Manifest) -> None:
        """Put the staged rows of a batch into the target, once: a repeat after any failure adds nothing.

        Not called for a batch without `rows` in its manifest.
        """
