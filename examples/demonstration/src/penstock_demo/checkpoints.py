"""Reads a query's progress from its checkpoint and Parquet folders: the running batch, the number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def batch_numbers(folder: Path) -> set[int]:
    """Return the numbers of the batches that a log of Spark's (`offsets`, `commits`) holds."""
    try:
        return {int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()}
    except FileNotFoundError:
        return set()


def running_batch(checkpoint: Path) -> int | None:
    """Return the batch that was planned and is not committed, or None between batches."""
    commits = batch_numbers(
        checkpoint / "commits"
    )  # read first: a batch that ends meanwhile counts as running
    open_batches = batch_numbers(checkpoint / "offsets") - commits
    return max(open_batches, default=None)


class EventRows:
    """The rows of the batches that are committed. Each batch's files are looked at once.

    Args:
        events_dir: A folder per batch, `batch=N`.
        checkpoint: Of the query that writes them.
    """

    def __init__(self, events_dir: Path, checkpoint: Path) -> None:
        self._events_dir = events_dir
        self._checkpoint = checkpoint
        self._counts: dict[int, int] = {}

    def count(self) -> int:
        """Count the rows of the committed batches."""
        from pyarrow.parquet import read_metadata

        for batch in batch_numbers(self._checkpoint / "commits") - self._counts.keys():
            files = (self._events_dir / f"batch={batch}").glob("*.parquet")
            self._counts[batch] = sum(read_metadata(file).num_rows for file in files)
        return sum(self._counts.values())

    @property
    def batch_count(self) -> int:
        """How many batches were counted."""
        return len(self._counts)


def read_events(events_dir: Path) -> pd.DataFrame:
    """Read every row, with the number of its batch.

    Numbers and flags have nullable types, so that a missing value differs from all others.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.dataset as ds

    partitioning = ds.partitioning(pa.schema([("batch", pa.int64())]), flavor="hive")
    table = ds.dataset(events_dir, format="parquet", partitioning=partitioning).to_table()
    types = {pa.int32(): pd.Int64Dtype(), pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    rows: pd.DataFrame = table.to_pandas(types_mapper=types.get)
    return rows
