"""Pull style for asyncio: `async for item in consumer`. Passes items from handler calls to the tasks that iterate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class AsyncPull(Generic[_T]):
    """Offers items to tasks that iterate. An item is done when its task asks for the next one.

    Args:
        unfinished: Returns the failure of an item that is taken or waits when the iteration ends.
        refusal: Returns the failure of an item that may not be taken any more, or None.
    """

    def __init__(
        self, unfinished: Callable[[], Exception], refusal: Callable[[_T], Exception | None] | None = None
    ) -> None:
        self._offers: asyncio.Queue[tuple[_T, asyncio.Future[None]] | None] = asyncio.Queue()
        self._unsettled: set[asyncio.Future[None]] = set()
        self._is_closed = False
        self._unfinished = unfinished
        self._refusal = refusal

    async def offer(self, item: _T) -> None:
        """Pass an item to a task that iterates, and wait until it is done. This is the consumer's handler.

        Raises:
            Exception: The failure from `unfinished` or `refusal`: the iteration ended first, or the item may not be taken.
        """
        if self._is_closed:
            raise self._unfinished()
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
                settled.set_exception(self._unfinished())

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
            refusal = None if self._refusal is None else self._refusal(item)
            if refusal is not None:
                settled.set_exception(refusal)
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
                        settled.set_exception(self._unfinished())
