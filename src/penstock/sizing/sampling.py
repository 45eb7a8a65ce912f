"""Read a bounded sample of recent records from every open shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.limits import KIB, MIB
from penstock.core.shard import Shard
from penstock.core.sizing.samples import ShardSample, sample_of
from penstock.errors import ServiceError, Throttled
from penstock.ports.clock import Clock
from penstock.ports.kinesis import IteratorStart, IteratorType, Kinesis, RawRecord, RecordPage, ShardFilter
from penstock.runtime.threads import map_on_daemons

_THREADS: Final = 32
_MOMENTS: Final = 3
_SLICE_MS: Final = (500.0, 1000.0)
"""The shortest and the longest slice of time that is read at each moment. More shards make the slice shorter."""
_FULL_SLICE_SHARDS_MAX: Final = 100
"""Up to this many shards are read with the longest slice."""
_LONG_READ_SLICES: Final = 5
_FIRST_PAGE_RECORDS: Final = 50
_PAGE_RECORDS_MAX: Final = 1000
_PAGE_BYTES: Final = 512 * KIB
_PAGES_MAX: Final = 8
_BYTES_PER_S: Final = MIB
"""Half of a shard's read quota: the other half is left to its readers."""
_ATTEMPTS_MAX: Final = 5


def sample_shards(
    kinesis: Kinesis, stream: str, shards: Sequence[Shard], clock: Clock, *, window_s: float, now_ms: int
) -> tuple[list[ShardSample], list[str]]:
    """Sample every shard at some moments of the `window_s` seconds before `now_ms`, by the service's clock.

    Returns:
        The samples, in the order of the shards. One sentence for each shard that could not be read, or that was read at some
        moments only because its read quota was used up.
    """
    low_ms, high_ms = _SLICE_MS
    slice_ms = max(low_ms, min(high_ms, high_ms * _FULL_SLICE_SHARDS_MAX / max(1, len(shards))))

    def sample(shard: Shard) -> tuple[ShardSample | None, str]:
        try:
            return _ShardSampler(kinesis, stream, shard, clock).sample(now_ms, window_s, slice_ms)
        except ServiceError as error:
            return None, f"{shard.shard_id} could not be sampled: {error}"

    found = map_on_daemons("penstock-sample", _THREADS, sample, shards)
    return [each for each, _ in found if each is not None], [problem for _, problem in found if problem]


def choose_window_s(
    kinesis: Kinesis,
    stream: str,
    shards: Sequence[Shard],
    *,
    now_ms: int,
    created_ms: int,
    windows_s: Sequence[float],
) -> float | None:
    """Return the longest of `windows_s` in which the open shards did not change; None if they changed in all of them.

    Over a longer time, records of the parents would be missing and the rate of a young shard too low.
    """
    open_ids = {each.shard_id for each in shards}
    for window_s in sorted(windows_s, reverse=True):
        began_ms = round(now_ms - window_s * 1000)
        if began_ms < created_ms:
            continue
        before = kinesis.fetch_shards(stream, ShardFilter("AT_TIMESTAMP", timestamp_ms=began_ms)).shards
        if {each.shard_id for each in before} == open_ids:
            return window_s
    return None


class _ShardSampler:
    """Reads one shard at some moments."""

    def __init__(self, kinesis: Kinesis, stream: str, shard: Shard, clock: Clock) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._shard = shard
        self._clock = clock

    def sample(self, now_ms: int, window_s: float, slice_ms: float) -> tuple[ShardSample, str]:
        """Read a slice of time at each moment; a quiet shard is read on to the tip.

        Returns:
            The sample, and the reason why moments are missing; empty if none is missing.

        Raises:
            ServiceError: No moment could be read.
        """
        records: list[RawRecord] = []
        covered_ms, reached_ms = 0.0, 0.0
        problem = ""
        for number in range(_MOMENTS):
            began_ms = max(reached_ms, now_ms - window_s * 1000 * (_MOMENTS - number) / _MOMENTS)
            try:
                found, is_at_tip = self._read(round(began_ms), began_ms + slice_ms)
            except Throttled as error:
                # Other readers may use up the read quota for long. The slices so far are complete, and a sample of
                # fewer slices is far better than none: without one, a full shard would look idle.
                if number == 0:
                    raise
                problem = f"{self._shard.shard_id} was sampled at {number} of {_MOMENTS} moments: {error}"
                break
            slice_end_ms = began_ms + slice_ms
            last_ms = found[-1].arrival_s * 1000 if found else slice_end_ms
            # Records often arrive in bursts. A whole slice has all of its bursts; of a longer read only the last one may be cut.
            is_whole = slice_end_ms <= last_ms < began_ms + _LONG_READ_SLICES * slice_ms
            whole_ms = slice_end_ms if is_whole else last_ms
            reached_ms = now_ms if is_at_tip else min(whole_ms, now_ms)
            records += [each for each in found if each.arrival_s * 1000 < reached_ms]
            covered_ms += max(1.0, reached_ms - began_ms)
            if reached_ms >= now_ms:
                break
        return sample_of(self._shard, records, covered_ms / 1000), problem

    def _read(self, began_ms: int, end_ms: float) -> tuple[list[RawRecord], bool]:
        """Return the records from one moment to another, with the rest of the last page; and whether the tip is reached."""
        start = IteratorStart(IteratorType.AT_TIMESTAMP, timestamp_ms=began_ms)
        iterator = self._kinesis.fetch_iterator(self._stream, self._shard.shard_id, start)
        records: list[RawRecord] = []
        limit = _FIRST_PAGE_RECORDS
        for _ in range(_PAGES_MAX):
            page = self._fetch_page(iterator, limit)
            records += page.records
            size = sum(len(each.data) for each in page.records)
            if page.records:
                mean = max(1, size // len(page.records))
                limit = max(1, min(_PAGE_RECORDS_MAX, _PAGE_BYTES // mean))
            self._clock.sleep(size / _BYTES_PER_S)
            if page.next_iterator is None or page.millis_behind_latest == 0:
                return records, True
            if records and records[-1].arrival_s * 1000 >= end_ms:
                break
            iterator = page.next_iterator
        return records, False

    def _fetch_page(self, iterator: str, limit: int) -> RecordPage:
        attempt = 1
        while True:
            try:
                return self._kinesis.fetch_records(self._stream, iterator, limit)
            except Throttled:
                if attempt >= _ATTEMPTS_MAX:
                    raise
                self._clock.sleep(0.3 * attempt)
                attempt += 1
