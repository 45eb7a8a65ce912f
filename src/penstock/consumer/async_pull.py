"""Pull style on an event loop: `async for batch in consumer`. As `penstock.consumer.pull`, without a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from penstock.consumer.async_batch import AsyncBatch
from penstock.consumer.pull import not_done, not_taken


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
