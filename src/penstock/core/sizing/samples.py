"""A sample of a shard's records: its rate, its hash keys, and how the service counts its records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from penstock.core.aggregation import deaggregate
from penstock.core.hash_key import effective_hash_key
from penstock.core.shard import Shard
from penstock.core.sizing.load_map import KeyLoad, LoadMap, spread

PUT_UNIT_BYTES: Final = 25 * 1024
"""A PUT payload unit: this much of one record, rounded up (pricing page)."""
_ROUNDED_BYTES: Final = 1024


class SampledRecord(Protocol):
    """The part of a record that a sample needs."""

    @property
    def data(self) -> bytes:
        """The blob."""

    @property
    def partition_key(self) -> str | None:
        """None if the service places records itself."""


class ShardSample(Struct, frozen=True):
    """Records of one shard.

    Args:
        covered_s: Duration of their arrival.
        record_count: Records, an aggregate being one.
        written_bytes: Data and partition keys.
        rounded_bytes: Each record rounded up to a KB.
        aggregate_count: Records that are aggregates.
        user_record_count: Records, each user record of an aggregate being one.
        by_hash_key: Bytes and records of each hash key in the shard's range.
    """

    shard: Shard
    covered_s: float
    record_count: int = 0
    written_bytes: int = 0
    put_units: int = 0
    rounded_bytes: int = 0
    aggregate_count: int = 0
    user_record_count: int = 0
    by_hash_key: Sequence[tuple[int, float, float]] = ()

    @property
    def bytes_per_s(self) -> float:
        """Written bytes a second."""
        return self.written_bytes / self.covered_s

    @property
    def records_per_s(self) -> float:
        """Written records a second."""
        return self.record_count / self.covered_s


def sample_of(shard: Shard, records: Iterable[SampledRecord], covered_s: float) -> ShardSample:
    """Return the sample of some records of a shard.

    An aggregate counts at the hash keys of its user records. Records whose hash key lies outside the shard have an explicit
    hash key, which the service does not return; they count in the totals alone.
    """
    count = written = units = rounded = aggregates = user_count = 0
    by_key: dict[int, list[float]] = {}
    for record in records:
        key = record.partition_key or ""
        size = len(record.data) + len(key.encode(errors="surrogatepass"))
        count, written = count + 1, written + size
        units += max(1, -(-size // PUT_UNIT_BYTES))
        rounded += max(1, -(-size // _ROUNDED_BYTES)) * _ROUNDED_BYTES
        inner = deaggregate(record.data)
        if inner is None:
            placed = [(effective_hash_key(key, None), size)] if key else []
        else:
            aggregates += 1
            placed = [
                (
                    effective_hash_key(each.partition_key or "", each.explicit_hash_key),
                    len(each.data) + len((each.partition_key or "").encode(errors="surrogatepass")),
                )
                for each in inner
            ]
        user_count += 1 if inner is None else len(inner)
        whole = sum(part for _, part in placed) or 1
        for hash_key, part in placed:
            if hash_key in shard.hash_range:
                sums = by_key.setdefault(hash_key, [0.0, 0.0])
                sums[0] += size * part / whole
                sums[1] += part / whole
    return ShardSample(
        shard,
        max(covered_s, 0.001),
        count,
        written,
        units,
        rounded,
        aggregates,
        user_count,
        tuple((hash_key, sums[0], sums[1]) for hash_key, sums in by_key.items()),
    )


def load_map_of(samples: Iterable[ShardSample]) -> LoadMap:
    """Return the load of sampled shards by hash key; records of unknown keys are spread over their shard."""
    loads: list[KeyLoad] = []
    for each in samples:
        loads += [
            KeyLoad(hash_key, size / each.covered_s, count / each.covered_s)
            for hash_key, size, count in each.by_hash_key
        ]
        unknown_bytes = each.written_bytes - sum(size for _, size, _ in each.by_hash_key)
        unknown_count = each.record_count - sum(count for _, _, count in each.by_hash_key)
        if unknown_count > 0.01 * each.record_count:
            loads += spread(
                each.shard.hash_range, unknown_bytes / each.covered_s, unknown_count / each.covered_s
            )
    return LoadMap(loads)
