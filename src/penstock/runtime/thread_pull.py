"""Pull style: `for item in consumer`. Passes items from handler threads to the threads that iterate."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from penstock.errors import HandlerFailed

_T = TypeVar("_T")
_POLL_S: Final = 0.2
"""An iterating thread checks at this interval whether the consumer has ended."""


class IterationEnded(HandlerFailed):
    """The iteration over the consumer ended before an item was done, or before it was taken."""


def unfinished_error() -> IterationEnded:
    """Return the failure of an item that is taken or waits when the iteration ends."""
    return IterationEnded("the iteration ended before this was done")


def lost_error() -> IterationEnded:
    """Return the failure of an item that is not this worker's any more."""
    return IterationEnded("the lease was lost before this was taken")


class _Offer(Generic[_T]):
    __slots__ = ("_lock", "error", "item", "settled")

    def __init__(self, item: _T) -> None:
        self._lock = threading.Lock()
        self.item = item
        self.settled = threading.Event()
        self.error: Exception | None = None

    def settle(self, error: Exception | None) -> None:
        """Set the result; the first one counts."""
        with self._lock:
            if not self.settled.is_set():
                self.error = error
                self.settled.set()


class ThreadPull(Generic[_T]):
    """Offers items to threads that iterate. An item is done when its thread requests the next one.

    Args:
        is_owned: Returns whether an item may still be taken.
    """

    def __init__(self, is_owned: Callable[[_T], bool] = lambda _: True) -> None:
        self._offers: queue.SimpleQueue[_Offer[_T]] = queue.SimpleQueue()
        self._unsettled: set[_Offer[_T]] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_owned = is_owned

    def offer(self, item: _T) -> None:
        """Pass an item to a thread that iterates, and wait until it is done. This is the consumer's handler.

        Raises:
            IterationEnded: The iteration ended first, or the item may not be taken any more.
        """
        offer = _Offer(item)
        with self._lock:
            if self._is_closed:
                raise unfinished_error()
            self._unsettled.add(offer)
        self._offers.put(offer)
        offer.settled.wait()
        with self._lock:
            self._unsettled.discard(offer)
        if offer.error is not None:
            raise offer.error

    def close(self) -> None:
        """End all iterations; items that are not done fail."""
        with self._lock:
            self._is_closed = True
            unsettled = list(self._unsettled)
        for offer in unsettled:
            offer.settle(unfinished_error())

    def items(self, has_ended: threading.Event) -> Iterator[_T]:
        """Yield items until this is closed.

        Args:
            has_ended: Set when no item can follow.
        """
        while not has_ended.is_set() and not self._is_closed:
            try:
                offer = self._offers.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if offer.settled.is_set():
                continue
            if not self._is_owned(offer.item):
                offer.settle(lost_error())
                continue
            is_done = False
            try:
                yield offer.item
                is_done = True
            finally:
                offer.settle(None if is_done else unfinished_error())
