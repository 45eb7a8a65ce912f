"""The records of a queue in the form that user code gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, overload

from penstock.core.aggregation import MAGIC, DecodeCounts, user_records
from penstock.core.queueing.queue_events import RecordResult
from penstock.errors import UsageError
from penstock.ports.queues import ReceivedRecord
from penstock.runtime.home_process import InOneProcess

RECORD_MEMORY_BYTES = 600
"""Bytes that a user record is assumed to take in memory, beside its data."""


class QueueRecord(NamedTuple):
    """One user record; records of an aggregate are extracted.

    Args:
        data: The payload.
        partition_key: None on streams whose record distribution the service manages.
        record_id: Id of the Kinesis record, the same in every delivery and every queue of its stream. User records of one aggregate
            have the same.
        sub_sequence_number: Place inside the aggregate, from 0; 0 for a plain record.
        explicit_hash_key: The hash key that the producer set inside an aggregate; None otherwise.
        approximate_arrival_timestamp: When the record arrived in the stream; aware, UTC.
        first_receive_timestamp: When the record was first received from the queue; aware, UTC.
        receive_count: How often the Kinesis record was received, including this delivery: 1 at the first one.
        queue: Name of the queue.
    """

    data: bytes
    partition_key: str | None
    record_id: str
    sub_sequence_number: int
    explicit_hash_key: str | None
    approximate_arrival_timestamp: datetime
    first_receive_timestamp: datetime
    receive_count: int
    queue: str


def records_of(received: ReceivedRecord, queue: str, counts: DecodeCounts) -> list[QueueRecord]:
    """Return the user records of a delivery, at least one. A delivered aggregate is added to `counts`."""
    arrival = datetime.fromtimestamp(received.arrival_s, UTC)
    first = datetime.fromtimestamp(received.first_receive_s, UTC)
    name, count = received.record_id, received.receive_count
    if not received.data.startswith(MAGIC):
        return [
            QueueRecord(received.data, received.partition_key, name, 0, None, arrival, first, count, queue)
        ]
    return [
        QueueRecord(
            each.data,
            each.partition_key,
            name,
            each.sub_sequence_number,
            each.explicit_hash_key,
            arrival,
            first,
            count,
            queue,
        )
        for each in user_records(received.data, received.partition_key, counts)
    ]


class QueueBatch(InOneProcess, Sequence[QueueRecord]):
    """Records of a queue, in no order.

    When the handler returns, the records that are neither acknowledged nor rejected are acknowledged. When it raises, they are
    returned and delivered again.

    Args:
        records: The records, at least one.
        settle: Called with a record's place and result; callable from any thread.
    """

    _to_send = "send its records, list(batch)"

    def __init__(self, records: Sequence[QueueRecord], settle: Callable[[int, RecordResult], None]) -> None:
        self.records: tuple[QueueRecord, ...] = tuple(records)
        self._settle = settle

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self.records[0].queue

    def acknowledge(self, *records: QueueRecord) -> None:
        """Mark records as done while the handler works on the others; without arguments, all records.

        Raises:
            UsageError: A record is not of this batch.
        """
        for place in self._places(records):
            self._settle(place, RecordResult.DONE)

    def reject(self, *records: QueueRecord) -> None:
        """Make records dead letters as soon as the service allows; without arguments, all that are not acknowledged.

        Raises:
            UsageError: A record is not of this batch.
        """
        for place in self._places(records):
            self._settle(place, RecordResult.REJECTED)

    def _places(self, records: Sequence[QueueRecord]) -> Sequence[int]:
        return [self._place(record) for record in records] if records else range(len(self.records))

    def _place(self, record: QueueRecord) -> int:
        for place, mine in enumerate(self.records):
            if mine is record:
                return place
        for place, mine in enumerate(self.records):
            if mine == record:
                return place
        named = getattr(record, "record_id", f"{record!r:.60}")
        raise UsageError(f"the record {named} is not of this batch of queue {self.queue}")

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[QueueRecord]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> QueueRecord: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[QueueRecord, ...]: ...

    def __getitem__(self, index: int | slice) -> QueueRecord | tuple[QueueRecord, ...]:
        return self.records[index]

    def __repr__(self) -> str:
        return f"QueueBatch(queue={self.queue!r}, {len(self.records)} records)"
