"""The records and batches that user code receives, and the acknowledgement of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, Self, overload

from penstock.consumer.pending_checkpoint import PendingCheckpoint
from penstock.core.position import Position
from penstock.core.reading.record import Record
from penstock.errors import UsageError
from penstock.runtime.home_process import InOneProcess


class ShardCheckpointer(Protocol):
    """Checkpoints a shard for a batch, or for a processor with a lifecycle; implemented by the consumer's loop."""

    @property
    def may_deliver(self) -> bool:
        """Whether the shard is still this worker's."""

    @property
    def last_delivered(self) -> Position:
        """The newest record that was delivered."""

    def acknowledge(self, records: Sequence[Record], ordinals: Sequence[int]) -> None:
        """Mark records as done."""

    def acknowledge_through(self, position: Position, ordinal: int | None = None) -> None:
        """Mark everything up to and including a position as done."""

    def begin_checkpoint(self) -> PendingCheckpoint:
        """Request a checkpoint of the acknowledged records, and return it for waiting."""

    def store_checkpoint(self) -> None:
        """Checkpoint the acknowledged records, and wait until that is durable.

        Raises:
            LeaseLost: The shard is another worker's now.
            Unavailable: The lease table gave no answer in time; the checkpoint is stored later.
        """


class ShardRecords(InOneProcess, Sequence[Record]):
    """Records of one shard, in order: the common part of `Batch` and `AsyncBatch`."""

    _to_send = "send its records, list(batch)"

    def __init__(
        self,
        shard_id: str,
        records: Sequence[Record],
        *,
        stream: str,
        millis_behind_latest: int,
        attempt: int,
        ordinals: Sequence[int],
        shard: ShardCheckpointer,
        is_keyed: bool = False,
    ) -> None:
        self.shard_id = shard_id
        self.stream = stream
        self.records: tuple[Record, ...] = tuple(records)
        self.millis_behind_latest = millis_behind_latest
        self.attempt = attempt
        self._ordinals = ordinals
        self._shard = shard
        self._is_keyed = is_keyed

    @classmethod
    def of(cls, other: ShardRecords) -> Self:
        """Return the same records of the same shard as this class."""
        return cls(
            other.shard_id,
            other.records,
            stream=other.stream,
            millis_behind_latest=other.millis_behind_latest,
            attempt=other.attempt,
            ordinals=other._ordinals,
            shard=other._shard,
            is_keyed=other._is_keyed,
        )

    @property
    def is_owned(self) -> bool:
        """Whether this worker still owns the shard. A long handler can check it, and end early when it does not."""
        return self._shard.may_deliver

    def acknowledge(self, *records: Record) -> None:
        """Mark single records of this batch as done; without arguments, the whole batch.

        The shard's checkpoint becomes the highest position up to which every record is acknowledged.

        Raises:
            UsageError: A record is not of this batch.
        """
        if not records:
            self._shard.acknowledge(self.records, self._ordinals)
            return
        places = [self._place(record) for record in records]
        self._shard.acknowledge(records, [self._ordinals[place] for place in places])

    def _acknowledge_through(self, record: Record | None) -> None:
        """Mark the batch up to and including a record, or all of it, as done."""
        last = len(self.records) - 1 if record is None else self._place(record)
        if self._is_keyed:
            self._shard.acknowledge(self.records[: last + 1], self._ordinals[: last + 1])
        else:
            self._shard.acknowledge_through(self.records[last].position, self._ordinals[last])

    def _place(self, record: Record) -> int:
        for place, mine in enumerate(self.records):
            if mine is record:
                return place
        position = getattr(record, "position", None)
        if position is None:
            raise UsageError(
                f"{record!r:.60} is not a record: give one of this batch of shard {self.shard_id}, for instance batch[-1]"
            )
        for place, mine in enumerate(self.records):
            if mine.position == position:
                return place
        raise UsageError(
            f"the record at {position} is not of this batch of shard {self.shard_id} "
            f"({self.records[0].position} to {self.records[-1].position})"
        )

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Record, ...]: ...

    def __getitem__(self, index: int | slice) -> Record | tuple[Record, ...]:
        return self.records[index]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(shard_id={self.shard_id!r}, {len(self.records)} records from {self.records[0].position} "
            f"to {self.records[-1].position}, millis_behind_latest={self.millis_behind_latest})"
        )


class Batch(ShardRecords):
    """Records of one shard, in order.

    With automatic checkpoints (the default) the records count as done when the handler returns. With
    `checkpointing="manual"` they count as done when `acknowledge` or `checkpoint` is called, during the handler's call or
    later, from any thread.

    Args:
        shard_id: The shard of the records.
        stream: Name or ARN of the stream, as the consumer was given it.
        records: At least one. With `concurrency` > 1 all have one partition key.
        millis_behind_latest: How far reading is behind the tip of the shard, by the service's last answer.
        attempt: 1, or more when the handler failed on these records before.
    """

    @property
    def shard(self) -> ShardCheckpointer:
        """The shard, to checkpoint it by position."""
        return self._shard

    def checkpoint(self, record: Record | None = None) -> None:
        """Mark the batch up to and including a record as done, and store that now.

        Returns when the checkpoint is durable. With `concurrency` > 1 the stored position may be lower: the highest
        one below which every record of every key is done.

        Args:
            record: Of this batch; without it, the whole batch.

        Raises:
            UsageError: The record is not of this batch, or lies before the checkpoint.
            LeaseLost: The shard is another worker's now: nothing was stored by this call.
            Unavailable: The lease table gave no answer in time; the checkpoint is stored with a later renewal.
        """
        self._acknowledge_through(record)
        self._shard.store_checkpoint()
