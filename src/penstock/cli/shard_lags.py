"""How far behind an application's checkpoints are, asked of the stream itself: a small read or two for each shard."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.backoff import Backoff
from penstock.core.reading.lag import age_ms, find_oldest_unread
from penstock.core.reading.resume import plan_iterator
from penstock.core.reading.service_clock import service_now_ms
from penstock.errors import PositionError, ServiceError, Throttled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.leases.lease import Lease
    from penstock.core.position import Position
    from penstock.ports.clock import Clock
    from penstock.ports.kinesis import Kinesis, RecordPage

_RECORDS: Final = 2  # the one at the checkpoint, and the next
_PAGES_MAX: Final = 10
_ATTEMPTS_MAX: Final = (
    5  # the workers read the same shards, and five reads a second are all that a shard gives
)
_SPACING: Final = Backoff(base_s=0.5, cap_s=2.0)
_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class ShardLag:
    """How far behind one checkpoint is.

    Args:
        shard_id: Which.
        lag_ms: The age of the oldest record that is not done; 0 when there is none; None when unknown.
        why_unknown: What the service said instead.
    """

    shard_id: str
    lag_ms: int | None
    why_unknown: str = ""


def measure_lags(kinesis: Kinesis, stream: str, leases: Sequence[Lease], clock: Clock) -> list[ShardLag]:
    """Measure the lag of every lease that is not ended.

    Raises:
        NotFound, AccessDenied: The stream itself cannot be used.
    """
    kinesis.fetch_summary(stream)

    def measure(lease: Lease) -> ShardLag:
        try:
            return ShardLag(lease.key, _measure(kinesis, stream, lease.key, lease.checkpoint, clock))
        except (ServiceError, PositionError) as error:
            return ShardLag(lease.key, None, str(error))

    unfinished = [lease for lease in leases if not lease.is_ended]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-lag") as pool:
        return list(pool.map(measure, unfinished))


def _measure(kinesis: Kinesis, stream: str, shard_id: str, position: Position, clock: Clock) -> int:
    iterator = kinesis.fetch_iterator(stream, shard_id, plan_iterator(position))
    behind_ms = 0
    for _ in range(_PAGES_MAX):
        page = _fetch(kinesis, stream, iterator, clock)
        oldest = find_oldest_unread(page.records, position)
        if oldest is not None:
            return age_ms(oldest.arrival_s, service_now_ms(clock.wall_ms(), page.server_ms))
        if page.next_iterator is None or page.millis_behind_latest == 0:
            return 0
        # An empty page, or one of done records: its own figure is about the record that comes next.
        behind_ms, iterator = page.millis_behind_latest, page.next_iterator
    return behind_ms


def _fetch(kinesis: Kinesis, stream: str, iterator: str, clock: Clock) -> RecordPage:
    attempt = 1
    while True:
        try:
            return kinesis.fetch_records(stream, iterator, _RECORDS)
        except Throttled:
            if attempt >= _ATTEMPTS_MAX:
                raise
            clock.sleep(0.2 + _SPACING.delay_s(attempt, random.random()))
            attempt += 1
