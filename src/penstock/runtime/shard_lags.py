"""Measures how far an application's checkpoints are behind the stream, usually by one or two small reads of each shard."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.backoff import Backoff
from penstock.core.leases.lease import shard_id_of, stream_id_of
from penstock.core.reading.lag import age_ms, find_oldest_unread
from penstock.core.reading.resume import plan_iterator
from penstock.core.reading.service_clock import service_now_ms
from penstock.errors import PositionError, ServiceError, Throttled
from penstock.runtime.threads import map_on_daemons

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.leases.lease import Lease
    from penstock.core.position import Position
    from penstock.ports.clock import Clock
    from penstock.ports.kinesis import Kinesis, RecordPage

_RECORDS_PER_READ: Final = 2  # the one at the checkpoint, and the next
_RETRY_PAUSES: Final = Backoff(base_s=0.5, cap_s=2.0)
_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class ReadEffort:
    """The reads that one measurement may cost. The workers read the same shards, and a shard allows five reads a second.

    Args:
        pages_max: Pages to read in search of an unread record. If none has one, the lag is the service's own figure.
        attempts_max: Attempts to read one page while the service refuses reads.
    """

    pages_max: int
    attempts_max: int


ONE_MEASUREMENT: Final = ReadEffort(pages_max=10, attempts_max=5)
"""For a user who waits for one answer."""
REPEATED_MEASUREMENT: Final = ReadEffort(pages_max=2, attempts_max=1)
"""For measurements that follow each other every few seconds."""


@dataclass(frozen=True, slots=True)
class ShardLag:
    """How far behind one checkpoint is.

    Args:
        key: Key of the shard's lease.
        lag_ms: The age of the oldest record that is not done; 0 when there is none; None when unknown.
        why_unknown: The service's error instead of a lag.
        refused_count: Reads that the service throttled, because others use up the shard's read rate.
    """

    key: str
    lag_ms: int | None
    why_unknown: str = ""
    refused_count: int = 0


def measure_lags(
    kinesis: Kinesis,
    streams: Mapping[str, str],
    leases: Sequence[Lease],
    clock: Clock,
    effort: ReadEffort = ONE_MEASUREMENT,
) -> list[ShardLag]:
    """Measure the lag of every lease that is not ended and whose stream is known.

    Args:
        streams: Names or ARNs by stream id, which is the prefix of a lease's key.
        leases: Leases of one table.
        effort: The reads that the lag of one lease may cost.
    """

    def measure(lease: Lease) -> ShardLag:
        reads = _LagReads(kinesis, streams[stream_id_of(lease.key)], clock, effort)
        try:
            lag_ms = reads.measure_ms(shard_id_of(lease.key), lease.checkpoint)
        except (ServiceError, PositionError) as error:
            return ShardLag(lease.key, None, str(error), reads.refused_count)
        return ShardLag(lease.key, lag_ms, refused_count=reads.refused_count)

    unfinished = [lease for lease in leases if not lease.is_ended and stream_id_of(lease.key) in streams]
    return map_on_daemons("penstock-lag", _THREADS, measure, unfinished)


class _LagReads:
    """Reads of one shard that measure its lag, and the count of those that the service has refused."""

    def __init__(self, kinesis: Kinesis, stream: str, clock: Clock, effort: ReadEffort) -> None:
        self.refused_count = 0
        self._kinesis = kinesis
        self._stream = stream
        self._clock = clock
        self._effort = effort

    def measure_ms(self, shard_id: str, position: Position) -> int:
        iterator = self._kinesis.fetch_iterator(self._stream, shard_id, plan_iterator(position))
        behind_ms = 0
        for _ in range(self._effort.pages_max):
            page = self._fetch(iterator)
            oldest = find_oldest_unread(page.records, position)
            if oldest is not None:
                return age_ms(oldest.arrival_s, service_now_ms(self._clock.wall_ms(), page.server_ms))
            if page.next_iterator is None or page.millis_behind_latest == 0:
                return 0
            # The page is empty or has only done records: `millis_behind_latest` is about the next record.
            behind_ms, iterator = page.millis_behind_latest, page.next_iterator
        return behind_ms

    def _fetch(self, iterator: str) -> RecordPage:
        attempt = 1
        while True:
            try:
                return self._kinesis.fetch_records(self._stream, iterator, _RECORDS_PER_READ)
            except Throttled:
                self.refused_count += 1
                if attempt >= self._effort.attempts_max:
                    raise
                self._clock.sleep(0.2 + _RETRY_PAUSES.delay_s(attempt, random.random()))
                attempt += 1
