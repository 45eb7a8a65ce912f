"""Pull style: `for record in consumer`. Passes records from the handler threads to the threads that iterate."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, Final

from penstock.queues.queue_loop import IterationEnded

_POLL_S: Final = 0.2


class _Offer:
    __slots__ = ("error", "item", "settled")

    def __init__(self, item: Any) -> None:
        self.item = item
        self.settled = threading.Event()
        self.error: BaseException | None = None

    def settle(self, error: BaseException | None) -> None:
        self.error = error
        self.settled.set()


class QueuePull:
    """Passes records or batches to the threads that iterate."""

    def __init__(self) -> None:
        self._offers: queue.SimpleQueue[_Offer] = queue.SimpleQueue()
        self._is_closed = threading.Event()

    def offer(self, item: Any) -> None:
        """Pass on a record or a batch, and wait until it is done. This is the consumer's handler.

        Raises:
            IterationEnded: The iteration ended first.
        """
        offer = _Offer(item)
        self._offers.put(offer)
        while not offer.settled.wait(_POLL_S):
            if self._is_closed.is_set():
                offer.settle(not_done())
        if offer.error is not None:
            raise offer.error

    def close(self) -> None:
        """End the iteration; records that are not done are returned."""
        self._is_closed.set()

    def items(self, has_ended: threading.Event) -> Iterator[Any]:
        """Yield records or batches until the consumer has ended."""
        while not has_ended.is_set() and not self._is_closed.is_set():
            try:
                offer = self._offers.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if offer.settled.is_set():
                continue
            is_done = False
            try:
                yield offer.item
                is_done = True
            finally:
                offer.settle(None if is_done else not_done())


def not_done() -> IterationEnded:
    """Return the error of a record that is taken or waits when the iteration ends."""
    return IterationEnded("the iteration ended before this was done")
