"""The records that an application reads next in a shard: those after its checkpoint."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.core.aggregation import UserRecord, deaggregate
from penstock.core.position import parse_position
from penstock.core.reading.resume import count_done_records, plan_iterator
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.position import Position
    from penstock.ports.clock import Clock
    from penstock.ports.kinesis import Kinesis, RawRecord

RECORDS_MAX: Final = 10
_PAGES_MAX: Final = 3
_DATA_BYTES_MAX: Final = 2000
_SHARDS_KEPT_MAX: Final = 64
_READ_EVERY_S: Final = 5.0
_ASK_FOR_MORE_EVERY_S: Final = 30.0  # if the checkpoint has not moved, but there were fewer than RECORDS_MAX


@dataclass(frozen=True, slots=True)
class NextRecord:
    """One user record after a checkpoint.

    Args:
        place: Its sequence number, then a point and its place in the aggregate.
        partition_key: None if the service places records.
        data: The beginning of the payload.
        byte_count: Bytes of the whole payload.
    """

    place: str
    arrival_ms: int
    partition_key: str | None
    data: bytes
    byte_count: int

    @property
    def is_cut(self) -> bool:
        """Whether `data` is not the whole payload."""
        return len(self.data) < self.byte_count


@dataclass(frozen=True, slots=True)
class NextRecords:
    """Records after a checkpoint.

    Args:
        checkpoint: The checkpoint that they follow; the application may have moved it since.
        records: In their order, at most `RECORDS_MAX`.
    """

    checkpoint: str
    records: tuple[NextRecord, ...]


@dataclass(slots=True)
class _CachedRecords:
    """The result of the last read of one shard, None before the first; `lock` is held during a read."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    result: NextRecords | PenstockError | None = None
    checkpoint: str = ""
    read_s: float = 0.0


class NextRecordReader:
    """Reads the records after checkpoints. Caches them, since an open page requests them at each reload. Thread-safe.

    A shard is read at its first request. Once its checkpoint has moved, it is read again, at most once in five seconds.
    If there were fewer than `RECORDS_MAX` records, or an error, it is also read again after half a minute.
    """

    def __init__(self, kinesis: Kinesis, clock: Clock) -> None:
        self._kinesis = kinesis
        self._clock = clock
        self._lock = threading.Lock()
        self._shards: OrderedDict[tuple[str, str], _CachedRecords] = OrderedDict()

    def fetch(self, stream: str, shard: str, checkpoint: str) -> NextRecords:
        """Return the records after a checkpoint, cached or read now.

        Args:
            stream: Name or ARN.
            checkpoint: As a snapshot shows it.

        Raises:
            ServiceError, PositionError: The shard cannot be read from there.
        """
        with self._lock:
            cached = self._shards.setdefault((stream, shard), _CachedRecords())
            self._shards.move_to_end((stream, shard))
            if len(self._shards) > _SHARDS_KEPT_MAX:
                self._shards.popitem(last=False)
        with cached.lock:
            found = cached.result
            if found is None or self._is_read_due(cached, checkpoint):
                try:
                    records = fetch_next_records(self._kinesis, stream, shard, checkpoint)
                    found = NextRecords(checkpoint, records)
                except PenstockError as error:
                    found = error
                cached.result, cached.checkpoint, cached.read_s = found, checkpoint, self._clock.monotonic_s()
        if isinstance(found, PenstockError):
            raise found.with_traceback(None)  # otherwise the traceback grows with each raise
        return found

    def _is_read_due(self, cached: _CachedRecords, checkpoint: str) -> bool:
        age_s = self._clock.monotonic_s() - cached.read_s
        if checkpoint != cached.checkpoint:
            return age_s >= _READ_EVERY_S
        is_full = isinstance(cached.result, NextRecords) and len(cached.result.records) == RECORDS_MAX
        return not is_full and age_s >= _ASK_FOR_MORE_EVERY_S


def fetch_next_records(kinesis: Kinesis, stream: str, shard: str, checkpoint: str) -> tuple[NextRecord, ...]:
    """Read the records after a checkpoint: at most `RECORDS_MAX`, by at most three reads.

    Args:
        stream: Name or ARN.
        checkpoint: As a snapshot shows it.

    Raises:
        ServiceError, PositionError: The shard cannot be read from there.
    """
    position = parse_position(checkpoint)
    iterator: str | None = kinesis.fetch_iterator(stream, shard, plan_iterator(position))
    found: list[NextRecord] = []
    for _ in range(_PAGES_MAX):
        if iterator is None or len(found) >= RECORDS_MAX:
            break
        # One more, since the first record may be the one at the checkpoint.
        page = kinesis.fetch_records(stream, iterator, RECORDS_MAX + 1)
        for record in page.records:
            found += _records_after(record, position)
        iterator = page.next_iterator if page.millis_behind_latest else None
    return tuple(found[:RECORDS_MAX])


def _records_after(record: RawRecord, position: Position) -> Iterator[NextRecord]:
    inside = deaggregate(record.data)
    if inside is None:
        inside = [UserRecord(record.partition_key, None, record.data, 0)]
    for each in inside[count_done_records(position, record.sequence_number, len(inside)) :]:
        place = f"{record.sequence_number}.{each.sub_sequence_number}"
        yield NextRecord(
            place,
            round(record.arrival_s * 1000),
            each.partition_key,
            each.data[:_DATA_BYTES_MAX],
            len(each.data),
        )
