"""Pull style for asyncio: `async for item in consumer`. Passes items from handler calls to the tasks that iterate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from penstock.runtime.thread_pull import lost_error, unfinished_error

_T = TypeVar("_T")


class AsyncPull(Generic[_T]):
    """Offers items to tasks that iterate. An item is done when its task asks for the next one.

    Args:
        is_owned: Returns whether an item may still be taken.
    """

    def __init__(self, is_owned: Callable[[_T], bool] = lambda _: True) -> None:
        self._offers: asyncio.Queue[tuple[_T, asyncio.Future[None]] | None] = asyncio.Queue()
        self._unsettled: set[asyncio.Future[None]] = set()
        self._is_closed = False
        self._is_owned = is_owned

    async def offer(self, item: _T) -> None:
        """Pass an item to a task that iterates, and wait until it is done. This is the consumer's handler.

        Raises:
            IterationEnded: The iteration ended first, or the item may not be taken any more.
        """
        if self._is_closed:
            raise unfinished_error()
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsettled.add(settled)
        self._offers.put_nowait((item, settled))
        try:
            await settled
        finally:
            self._unsettled.discard(settled)

    def close(self) -> None:
        """End all iterations; items that are not done fail."""
        self._is_closed = True
        self._offers.put_nowait(None)
        for settled in self._unsettled:
            if not settled.done():
                settled.set_exception(unfinished_error())

    async def items(self) -> AsyncIterator[_T]:
        """Yield items until this is closed."""
        while True:
            offer = await self._offers.get()
            if offer is None:
                self._offers.put_nowait(None)  # ends the other iterating tasks too
                return
            item, settled = offer
            if settled.done():
                continue
            if not self._is_owned(item):
                settled.set_exception(lost_error())
                continue
            is_done = False
            try:
                yield item
                is_done = True
            finally:
                if not settled.done():
                    if is_done:
                        settled.set_result(None)
                    else:
                        settled.set_exception(unfinished_error())
