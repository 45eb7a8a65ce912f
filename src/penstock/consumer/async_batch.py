"""The batch and the shard that coroutines of user code work with; checkpoints are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.consumer.pending_checkpoint import PendingCheckpoint
from penstock.consumer.records import ShardCheckpointer, ShardRecords
from penstock.core.position import Position
from penstock.core.reading.record import Record


class AsyncBatch(ShardRecords):
    """Records of one shard, in order, for a coroutine.

    With automatic checkpoints (the default) the records count as done when the handler returns. With
    `checkpointing="manual"` they count as done when `acknowledge` or `checkpoint` is called, during the handler's call or
    later.

    Args:
        shard_id: The shard of the records.
        stream: Name or ARN of the stream, as the consumer was given it.
        records: At least one. With `concurrency` > 1 all have one partition key.
        millis_behind_latest: How far reading is behind the tip of the shard, by the service's last answer.
        attempt: 1, or more when the handler failed on these records before.
    """

    @property
    def shard(self) -> AsyncShardCheckpointer:
        """The shard, to checkpoint it by position."""
        return AsyncShardCheckpointer(self._shard)

    async def checkpoint(self, record: Record | None = None) -> None:
        """Mark the batch up to and including a record as done, and store that now.

        Returns when the checkpoint is durable; other coroutines run meanwhile. If the wait is cancelled, the checkpoint is
        still stored. With `concurrency` > 1 the stored position may be lower: the highest one below which every record of
        every key is done.

        Args:
            record: Of this batch; without it, the whole batch.

        Raises:
            UsageError: The record is not of this batch, or lies before the checkpoint.
            LeaseLost: The shard is another worker's now: nothing was stored by this call.
            Unavailable: The lease table gave no answer in time; the checkpoint is stored with a later renewal.
        """
        self._acknowledge_through(record)
        await _wait_until_stored(self._shard.begin_checkpoint())


class AsyncShardCheckpointer:
    """Checkpoints a shard for a processor of coroutines.

    Args:
        shard: Checkpoints the shard for the consumer's threads.
    """

    def __init__(self, shard: ShardCheckpointer) -> None:
        self._shard = shard

    @property
    def may_deliver(self) -> bool:
        """Whether the shard is still this worker's."""
        return self._shard.may_deliver

    @property
    def last_delivered(self) -> Position:
        """The newest record that was delivered."""
        return self._shard.last_delivered

    def acknowledge(self, records: Sequence[Record], ordinals: Sequence[int]) -> None:
        """Mark records as done."""
        self._shard.acknowledge(records, ordinals)

    def acknowledge_through(self, position: Position, ordinal: int | None = None) -> None:
        """Mark everything up to and including a position as done."""
        self._shard.acknowledge_through(position, ordinal)

    async def store_checkpoint(self) -> None:
        """Checkpoint the acknowledged records, and return when that is durable.

        Raises:
            LeaseLost: The shard is another worker's now: nothing was stored by this call.
            Unavailable: The lease table gave no answer in time; the checkpoint is stored with a later renewal.
        """
        await _wait_until_stored(self._shard.begin_checkpoint())


async def _wait_until_stored(pending: PendingCheckpoint) -> None:
    try:
        async with asyncio.timeout(pending.timeout_s):
            await asyncio.wrap_future(pending.outcome)
    except TimeoutError:
        raise pending.timeout_error() from None
