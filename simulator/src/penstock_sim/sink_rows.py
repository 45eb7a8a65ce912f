"""The rows that a simulated query writes: their unique names, and the faults for which the service refuses some."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock_sim.plan import STREAM_NAME, SinkPlan

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("data", "partitionKey", "explicitHashKey", "streamName")
OTHER_STREAM: Final = "other"
_LARGE_BYTES: Final = 2**20 + 1
_BAD: Final = ("too large", "empty key", "long key", "no data", "no key", "bad hash key", "no stream")
_BATCH_ROWS: Final = 7


class SinkRow(NamedTuple):
    """One row."""

    text: str
    key: str  # rows of one key have an order; a part of its partition key
    partition_key: str | None
    explicit_hash_key: str | None
    stream: str | None
    size_bytes: int  # of its data; -1 if it has none
    bad: str = ""  # why the service can never accept it, or an empty text

    @property
    def data(self) -> bytes | None:
        return None if self.size_bytes < 0 else f"{self.text}|".encode().ljust(self.size_bytes, b".")


def text_of(data: bytes) -> str:
    """Return the name of the row that has this data."""
    return data[: data.index(b"|")].decode()


def draw_rows(plan: SinkPlan, query: str, batch: int, chance: random.Random) -> list[list[SinkRow]]:
    """Draw a batch: the rows of each partition, some of which may be empty."""
    partitions: list[list[SinkRow]] = [[] for _ in range(chance.randint(1, plan.task_count_max))]
    total = chance.randint(1, plan.row_count_max * len(partitions))
    for _ in range(total):
        key_number = chance.randrange(plan.key_count)
        part = key_number % len(partitions) if plan.keys_stay else chance.randrange(len(partitions))
        rows = partitions[part]
        rows.append(_draw_row(plan, f"{query}:{batch}.{part}.{len(rows)}", f"{query}/{key_number}", chance))
    return partitions


def _draw_row(plan: SinkPlan, text: str, key: str, chance: random.Random) -> SinkRow:
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    hash_key = str(int.from_bytes(digest[::-1])) if plan.hash_keys else None
    stream = (OTHER_STREAM if digest[0] % 2 else STREAM_NAME) if plan.routes else None
    row = SinkRow(text, key, key, hash_key, stream, len(text) + 1 + plan.padding_bytes)
    if chance.random() < plan.large_row:
        return row._replace(size_bytes=_LARGE_BYTES)
    if chance.random() >= plan.bad_row:
        return row
    bad = chance.choice(_BAD if plan.routes else _BAD[:-1])
    columns: dict[str, dict[str, Any]] = {
        "too large": {"size_bytes": plan.record_bytes_max},
        "empty key": {"partition_key": ""},
        "long key": {"partition_key": key + "y" * 300},
        "no data": {"size_bytes": -1},
        "no key": {"partition_key": None},
        "bad hash key": {"explicit_hash_key": "-1"},
        "no stream": {"stream": None},
    }
    return row._replace(bad=bad, **columns[bad])


def in_batches(rows: list[SinkRow]) -> list[pa.RecordBatch]:
    """Return rows in the form of Spark's Arrow batches."""
    import pyarrow as pa

    types = dict(zip(COLUMNS, (pa.binary(), pa.string(), pa.string(), pa.string()), strict=True))
    found = []
    for begin in range(0, len(rows), _BATCH_ROWS):
        columns = zip(*map(_columns_of, rows[begin : begin + _BATCH_ROWS]), strict=True)
        arrays = [pa.array(values, types[name]) for name, values in zip(COLUMNS, columns, strict=True)]
        found.append(pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS)))
    return found


def _columns_of(row: SinkRow) -> tuple[bytes | None, str | None, str | None, str | None]:
    return (row.data, row.partition_key, row.explicit_hash_key, row.stream)
