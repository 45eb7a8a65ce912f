"""The batch and the shard that coroutines of user code work with; checkpoints are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from penstock.consumer.pending_checkpoint import PendingCheckpoint
from penstock.consumer.pull import not_done, not_taken
from penstock.consumer.records import Record, ShardCheckpointer, ShardRecords
from penstock.core.position import Position


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
        await _until_stored(self._shard.begin_checkpoint())


class AsyncShardCheckpointer:
    """Checkpoints a shard for a processor of coroutines.

    Args:
        shard: As the consumer's threads gave it.
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
        await _until_stored(self._shard.begin_checkpoint())


async def _until_stored(pending: PendingCheckpoint) -> None:
    try:
        async with asyncio.timeout(pending.timeout_s):
            await asyncio.wrap_future(pending.outcome)
    except TimeoutError:
        raise pending.unanswered() from None


class AsyncPullQueue:
    """Offers batches to tasks that iterate. At most `concurrency` batches for each shard wait in it."""

    def __init__(self) -> None:
        self._offers: asyncio.Queue[tuple[AsyncBatch, asyncio.Future[None]] | None] = asyncio.Queue()
        self._unsettled: set[asyncio.Future[None]] = set()
        self._is_closed = False

    async def offer(self, batch: AsyncBatch) -> None:
        """Pass a batch to a task that iterates, and wait until it is done. This is the consumer's handler.

        Raises:
            IterationEnded: The iteration ended before the batch was done.
        """
        if self._is_closed:
            raise not_done()
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsettled.add(settled)
        self._offers.put_nowait((batch, settled))
        try:
            await settled
        finally:
            self._unsettled.discard(settled)

    def close(self) -> None:
        """End all iterations; batches that are not done fail."""
        self._is_closed = True
        self._offers.put_nowait(None)
        for settled in self._unsettled:
            if not settled.done():
                settled.set_exception(not_done())

    async def batches(self) -> AsyncIterator[AsyncBatch]:
        """Yield batches until the queue is closed. Asking for the next one settles the one before."""
        while True:
            offer = await self._offers.get()
            if offer is None:
                self._offers.put_nowait(None)  # for the other iterating tasks
                return
            batch, settled = offer
            if settled.done():
                continue
            if not batch.is_owned:
                settled.set_exception(not_taken())
                continue
            is_done = False
            try:
                yield batch
                is_done = True
            finally:
                if not settled.done():
                    if is_done:
                        settled.set_result(None)
                    else:
                        settled.set_exception(not_done())
