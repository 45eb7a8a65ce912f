"""Features of the installed Spark for sources and sinks in Python: the only module that checks its version.

| Spark | 4.0 | 4.1 | 4.2 and later |
|---|---|---|---|
| passes a batch's start, read limits and AvailableNow to the source | no | no | yes |
| `DataFrame.repartitionById` | no | yes | yes |

If a feature is missing, this module has the nearest replacement under the same name, so the rest of the package is the same
for all versions.

Source:
    PySpark's `sql.datasource`, `sql.streaming.datasource` and `sql.streaming.python_streaming_source_runner`, and the calls
    that 4.0.0, 4.0.2, 4.1.4, 4.2.1 and 4.3.0 make.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark.sql import datasource

from penstock.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SPARK_MIN: Final = (4, 0)
_ROW_COUNT_MAX: Final = 2**63 - 1
PASSES_START: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether `latestOffset` is called with the start of the batch and a limit, and a source can take part in AvailableNow."""

if TYPE_CHECKING or PASSES_START:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class SupportsTriggerAvailableNow:
        """Stands for Spark's class of the same name."""


if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriter
else:

    class StreamWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """Stands for Spark's class of Arrow batches: 4.0 hands them to any `DataSourceArrowWriter`, streaming or not."""


__all__ = [
    "PASSES_START",
    "SPARK_MIN",
    "BatchStarts",
    "StreamWriter",
    "SupportsTriggerAvailableNow",
    "check_version",
    "is_only_batch",
    "limit_of",
    "repartition_by_id",
]


def check_version(version: str = pyspark.__version__) -> None:
    """Raise UsageError if Spark is older than 4.0, which has no sources in Python."""
    numbers = re.findall(r"\d+", version)
    if tuple(map(int, numbers[:2])) < SPARK_MIN:
        raise UsageError(
            f"this is Spark {version}, and the kinesis source needs {SPARK_MIN[0]}.{SPARK_MIN[1]} or later: before, Spark has no "
            "sources in Python. Spark 3.5 reads with penstock.spark.micro_batches and writes with write_kinesis"
        )


# --- how much to read -----------------------------------------------------------------------------------------


def limit_of(record_count_max: int | None, bytes_max: int | None) -> ReadLimit:
    """Return the limit of one batch, for a Spark that requests it. If both limits are set, it is the number of records.

    If none is set, it is a number that no batch reaches. `ReadAllAvailable` would mean that the batch is the query's only one.
    """
    if record_count_max is not None:
        return ReadMaxRows(record_count_max)
    if bytes_max is not None:
        return ReadMaxBytes(bytes_max)
    return ReadMaxRows(_ROW_COUNT_MAX)


def is_only_batch(limit: ReadLimit | None) -> bool:
    """Return whether a batch is the query's only one (`trigger(once=True)`): it ignores the options' limits."""
    return limit is not None and isinstance(limit, ReadAllAvailable)


# --- where a batch starts -------------------------------------------------------------------------------------


class BatchStarts:
    """Start of the next batch, for a Spark that does not pass it.

    Spark 4.0 and 4.1 begin every start from a checkpoint with `partitions(last, last)`, the last offset of the log, for
    each source; only a new query requests an offset first. From then on batches follow each other, so when Spark requests
    another offset, the batch of the last offset is done.

    Args:
        initial: The offset before the first batch.
    """

    def __init__(self, initial: dict[str, Any]) -> None:
        self.next_start = initial
        """The offset from which the next batch starts."""
        # Start and end of the batch that Spark got last.
        self._planned: tuple[dict[str, Any], dict[str, Any]] | None = None
        self.planned_count = 0
        """Batches that were planned here; 0 if Spark passes their starts, as 4.2 and later do."""

    @property
    def is_first(self) -> bool:
        """Whether Spark has not requested an offset here yet."""
        return self._planned is None

    def on_plan(self, end: dict[str, Any]) -> None:
        """Handle the offset that Spark gets as an answer: the previous one if there is nothing to read."""
        self.planned_count += end != self.next_start
        self._planned, self.next_start = (self.next_start, end), end

    def on_partitions(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Handle the start and end of a batch that Spark runs. They are equal for an empty batch, and for the last one of a restart's log.

        Raises:
            UsageError: It is not the planned batch, so the plan had another start than Spark.
        """
        if self._planned is None:
            self.next_start = end
        elif end != self._planned[1] or start not in self._planned:
            raise UsageError(
                "Spark asked for the end of a batch before it named the query's last offset, as it does with "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled=true. Set that to false, its default; "
                "trigger(availableNow=True) then runs one batch with everything that has arrived"
            )


# --- partitions by number -------------------------------------------------------------------------------------

_BITS: Final = 2**32 - 1


def repartition_by_id(df: DataFrame, count: int, place: Column) -> DataFrame:
    """Repartition rows by a column that holds the number of each row's partition."""
    if hasattr(df, "repartitionById"):
        return df.repartitionById(count, place)
    from pyspark.sql import functions as f

    # Spark 4.0 places rows by the hash of a column only: each number is replaced by one that hashes to it.
    salts = f.array(*[f.lit(salt) for salt in _salts(count)])
    return df.repartition(count, f.element_at(salts, place + 1))


def _salts(count: int) -> list[int]:
    """Return for each partition an integer that Spark's hash sends there."""
    found: dict[int, int] = {}
    salt = 0
    while len(found) < count:
        found.setdefault(_spark_hash(salt) % count, salt)
        salt += 1
    return [found[number] for number in range(count)]


def _spark_hash(value: int) -> int:
    """Return Spark's `hash` of a non-negative integer: Murmur3, 32 bits, seed 42."""
    mixed = _rotate(value * 0xCC9E2D51, 15) * 0x1B873593
    state = _rotate(42 ^ (mixed & _BITS), 13) * 5 + 0xE6546B64
    state = (state & _BITS) ^ 4
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _BITS
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _BITS
    state ^= state >> 16
    return state - 2**32 if state & 2**31 else state


def _rotate(value: int, by: int) -> int:
    value &= _BITS
    return (value << by | value >> (32 - by)) & _BITS
