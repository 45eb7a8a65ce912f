"""The write load of a stream over its hash keys, measured on samples of its records."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from msgspec import Struct

from penstock.core.hash_key import HashRange
from penstock.core.limits import SHARD_WRITE_BYTES_PER_S_MAX, SHARD_WRITE_RECORDS_PER_S_MAX

_SPREAD_COUNT: Final = 16
"""Load of unknown keys is spread evenly over this many points of its shard."""


class KeyLoad(Struct, frozen=True):
    """The load of one hash key."""

    hash_key: int
    bytes_per_s: float
    records_per_s: float


class Cut(Struct, frozen=True):
    """The best place to split a range.

    Args:
        at: The first hash key of the second half.
        larger_use: Which part of a shard's write quota the busier half uses.
    """

    at: int
    larger_use: float


def use_of(bytes_per_s: float, records_per_s: float) -> float:
    """Return which part of one shard's write quota a load uses: of its bytes or its records, whichever is more."""
    return max(bytes_per_s / SHARD_WRITE_BYTES_PER_S_MAX, records_per_s / SHARD_WRITE_RECORDS_PER_S_MAX)


def spread(hash_range: HashRange, bytes_per_s: float, records_per_s: float) -> list[KeyLoad]:
    """Return a load of unknown keys, spread evenly over a range."""
    count = min(_SPREAD_COUNT, hash_range.size)
    return [
        KeyLoad(
            hash_range.start + (2 * place + 1) * hash_range.size // (2 * count),
            bytes_per_s / count,
            records_per_s / count,
        )
        for place in range(count)
    ]


class LoadMap:
    """Loads by hash key, with the sum of any range in logarithmic time.

    Args:
        loads: In any order; a hash key may be there more than once.
    """

    def __init__(self, loads: Iterable[KeyLoad]) -> None:
        by_key: dict[int, list[float]] = {}
        for each in loads:
            sums = by_key.setdefault(each.hash_key, [0.0, 0.0])
            sums[0] += each.bytes_per_s
            sums[1] += each.records_per_s
        self._keys = sorted(by_key)
        self._bytes = [0.0, *accumulate(by_key[key][0] for key in self._keys)]
        self._records = [0.0, *accumulate(by_key[key][1] for key in self._keys)]

    @property
    def bytes_per_s(self) -> float:
        """Written bytes of all keys."""
        return self._bytes[-1]

    @property
    def records_per_s(self) -> float:
        """Written records of all keys."""
        return self._records[-1]

    def scaled(self, bytes_factor: float, records_factor: float) -> LoadMap:
        """Return the same distribution with other totals."""
        other = LoadMap(())
        other._keys = self._keys
        other._bytes = [each * bytes_factor for each in self._bytes]
        other._records = [each * records_factor for each in self._records]
        return other

    def _places_in(self, hash_range: HashRange) -> tuple[int, int]:
        """Return the places of the measured keys in a range: from the first up to the second."""
        return bisect_left(self._keys, hash_range.start), bisect_right(self._keys, hash_range.end)

    def load_in(self, hash_range: HashRange) -> tuple[float, float]:
        """Return the bytes and records a second in a range."""
        low, high = self._places_in(hash_range)
        sums = self._bytes[high] - self._bytes[low], self._records[high] - self._records[low]
        return max(0.0, sums[0]), max(0.0, sums[1])

    def use(self, hash_range: HashRange) -> float:
        """Return which part of one shard's write quota a range uses."""
        return use_of(*self.load_in(hash_range))

    def cut(self, hash_range: HashRange, share: float = 0.5) -> Cut | None:
        """Return the split whose first half has about `share` of the load; None if the range has one hash key.

        The cut lies half way between two measured keys: a key that was not measured is then as likely on either side.
        """
        if hash_range.size < 2:
            return None
        low, high = self._places_in(hash_range)
        bytes_per_s, records_per_s = self.load_in(hash_range)
        # The load is counted in the unit whose quota it uses more of.
        sums = self._bytes if use_of(bytes_per_s, 0.0) >= use_of(0.0, records_per_s) else self._records
        if sums[high] <= sums[low]:  # nothing was measured in the range
            return self._cut_at(hash_range, hash_range.start + round(hash_range.size * share))
        wanted_sum = sums[low] + (sums[high] - sums[low]) * share
        place = bisect_left(sums, wanted_sum, low, high)
        candidate_keys = [
            self._key_between(hash_range, each, low, high)
            for each in (place - 1, place)
            if low <= each <= high
        ]
        return min(
            (self._cut_at(hash_range, at) for at in candidate_keys),
            key=lambda cut: abs(sums[bisect_left(self._keys, cut.at)] - wanted_sum),
        )

    def _key_between(self, hash_range: HashRange, place: int, low: int, high: int) -> int:
        """Return the hash key half way between the keys before and at a place."""
        before = self._keys[place - 1] if place > low else hash_range.start
        after = self._keys[place] if place < high else hash_range.end
        return (before + after) // 2 + 1

    def _cut_at(self, hash_range: HashRange, at: int) -> Cut:
        at = min(max(at, hash_range.start + 1), hash_range.end)
        halves = HashRange(hash_range.start, at - 1), HashRange(at, hash_range.end)
        return Cut(at, max(self.use(half) for half in halves))

    def hottest_key(self, hash_range: HashRange) -> tuple[int, float] | None:
        """Return the hash key with the largest use in a range, and its use; None if no key was measured there."""
        low, high = self._places_in(hash_range)
        uses = [
            (
                use_of(
                    self._bytes[place + 1] - self._bytes[place],
                    self._records[place + 1] - self._records[place],
                ),
                self._keys[place],
            )
            for place in range(low, high)
        ]
        if not uses:
            return None
        use, key = max(uses)
        return key, use
