"""The records that an application reads next in a shard: what stands behind its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.aggregation import UserRecord, deaggregate
from penstock.core.position import parse_position
from penstock.core.reading.resume import count_done, plan_iterator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.position import Position
    from penstock.ports.kinesis import Kinesis, RawRecord

RECORDS_MAX: Final = 10
_PAGES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class NextRecord:
    """One user record behind a checkpoint.

    Args:
        place: Its sequence number, and behind a point its place in the aggregate.
        arrival_ms: Milliseconds since the epoch.
        partition_key: None where the service places records.
        data: The payload.
    """

    place: str
    arrival_ms: int
    partition_key: str | None
    data: bytes


def fetch_next_records(kinesis: Kinesis, stream: str, shard: str, checkpoint: str) -> tuple[NextRecord, ...]:
    """Read what follows a checkpoint: at most `RECORDS_MAX` records, by at most three reads.

    Args:
        kinesis: The stream service.
        stream: Name or ARN.
        shard: Its id.
        checkpoint: As a look shows it.

    Raises:
        ServiceError, PositionError: The shard cannot be read from there.
    """
    position = parse_position(checkpoint)
    iterator: str | None = kinesis.fetch_iterator(stream, shard, plan_iterator(position))
    found: list[NextRecord] = []
    for _ in range(_PAGES_MAX):
        if iterator is None or len(found) >= RECORDS_MAX:
            break
        page = kinesis.fetch_records(
            stream, iterator, RECORDS_MAX + 1
        )  # the first may be the checkpoint's own
        for record in page.records:
            found += _undone(record, position)
        iterator = page.next_iterator if page.millis_behind_latest else None
    return tuple(found[:RECORDS_MAX])


def _undone(record: RawRecord, position: Position) -> Iterator[NextRecord]:
    inside = deaggregate(record.data)
    if inside is None:
        inside = [UserRecord(record.partition_key, None, record.data, 0)]
    for each in inside[count_done(position, record.sequence_number, len(inside)) :]:
        place = f"{record.sequence_number}.{each.sub_sequence_number}"
        yield NextRecord(place, round(record.arrival_s * 1000), each.partition_key, each.data)
