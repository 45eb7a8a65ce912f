"""Kinesis records that wait for their deaggregation, and the deaggregation itself.

The user records of an aggregate can take a hundred times its size, so it is deaggregated only when there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.core.aggregation import MAGIC, DecodeCounts, MisplacedRule, deaggregate, user_records
from penstock.core.position import Position, at_record
from penstock.core.reading.record import RECORD_MEMORY_BYTES, Record
from penstock.core.record_page import end_of_kinesis_record
from penstock.errors import PenstockError
from penstock.ports.kinesis import RawRecord


def records_after(records: Sequence[RawRecord], done_position: Position | None) -> Sequence[RawRecord]:
    """Return the records after a position. If the position lies inside an aggregate, the whole aggregate is included."""
    if done_position is None or done_position.sequence_number is None:
        return records
    for index, record in enumerate(records):
        if end_of_kinesis_record(record) > done_position:
            return records[index:] if index else records
    return ()


def raw_bytes(records: Sequence[RawRecord]) -> int:
    """Return the bytes that Kinesis records count against the memory limits until they are deaggregated."""
    return len(records) * RECORD_MEMORY_BYTES + sum([len(record.data) for record in records])


class DeaggregatedPage(NamedTuple):
    """The user records of some Kinesis records.

    Args:
        records: The user records, in order.
        counts: The number of user records in each Kinesis record.
        failure: Why the next Kinesis record could not be deaggregated now; None if nothing failed.
        skipped_through: The end of the last Kinesis record, if it has no user records; else None.
    """

    records: list[Record]
    counts: list[int]
    failure: PenstockError | None
    skipped_through: Position | None = None


def deaggregate_page(
    raw_records: Sequence[RawRecord],
    room_bytes: int,
    shard_id: str,
    counts: DecodeCounts,
    rule: MisplacedRule | None,
    *,
    stream: str = "",
) -> DeaggregatedPage:
    """Deaggregate Kinesis records until their user records fill the room, and at least one.

    Args:
        raw_records: In order.
        room_bytes: Memory for the user records; those of the last Kinesis record may exceed it.
        shard_id: The shard that they were read from.
        counts: Counters to add to.
        rule: Which misplaced aggregates are left out; None: all are kept. The rule may call the service. If that call
            fails, the aggregate is left for a later call of this function.
        stream: Name or ARN of the shard's stream.
    """
    whole = _plain_records(raw_records, room_bytes, shard_id, stream)
    if whole is not None:
        return DeaggregatedPage(whole, [1] * len(whole), None)
    records: list[Record] = []
    held_counts: list[int] = []
    arrival_s, arrival = 0.0, datetime.fromtimestamp(0, UTC)
    new = tuple.__new__  # saves half the time of Record(...), and nearly all records are plain
    for raw in raw_records:
        data = raw.data
        if raw.arrival_s != arrival_s:
            arrival_s = raw.arrival_s
            arrival = datetime.fromtimestamp(arrival_s, UTC)
        count = 1
        if data[:4] != MAGIC:
            records.append(
                new(
                    Record, (data, raw.partition_key, raw.sequence_number, 0, None, arrival, shard_id, stream)
                )
            )
        else:
            try:
                found = user_records(data, raw.partition_key, counts, rule)
            except PenstockError as error:
                return DeaggregatedPage(
                    records, held_counts, error, _skipped_through(raw_records, held_counts)
                )
            count = len(found)
            number = raw.sequence_number
            records += [
                new(Record, (payload, key, number, sub, hash_key, arrival, shard_id, stream))
                for key, hash_key, payload, sub in found
            ]
        held_counts.append(count)
        room_bytes -= count * RECORD_MEMORY_BYTES + len(data)
        if room_bytes <= 0:
            break
    return DeaggregatedPage(records, held_counts, None, _skipped_through(raw_records, held_counts))


def _skipped_through(raw_records: Sequence[RawRecord], counts: Sequence[int]) -> Position | None:
    if not counts or counts[-1]:
        return None
    last = raw_records[len(counts) - 1]
    return at_record(last.sequence_number, max(0, len(deaggregate(last.data) or ()) - 1))


def _plain_records(
    raw_records: Sequence[RawRecord], room_bytes: int, shard_id: str, stream: str
) -> list[Record] | None:
    """Return the records if there is room for all of them and none is an aggregate; else None.

    This is nearly always so, and takes half the time of the loop in `deaggregate_page`.
    """
    if raw_bytes(raw_records) > room_bytes or MAGIC in [raw.data[:4] for raw in raw_records]:
        return None
    moments = {
        arrival_s: datetime.fromtimestamp(arrival_s, UTC)
        for arrival_s in {raw.arrival_s for raw in raw_records}
    }
    new = tuple.__new__  # saves half the time of Record(...)
    return [
        new(
            Record,
            (
                raw.data,
                raw.partition_key,
                raw.sequence_number,
                0,
                None,
                moments[raw.arrival_s],
                shard_id,
                stream,
            ),
        )
        for raw in raw_records
    ]
