"""Pull style: `for batch in consumer`. A small hand-over between the handler threads and the thread that iterates.

A batch counts as done when the loop asks for the next one. At most one batch per handler thread
waits, so nothing grows while the iterating thread is busy.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Final

from penstock.consumer.records import Batch, ShardRecords
from penstock.errors import HandlerFailed

_POLL_S: Final = 0.2  # how soon the iterating thread sees that the consumer has ended


class IterationEnded(HandlerFailed):
    """The loop over the consumer ended before a batch that it had taken, or was about to take, was done."""


def not_done() -> IterationEnded:
    """Return the failure of batches that are taken or waiting when the loop ends."""
    return IterationEnded("the iteration ended before this batch was done")


def not_taken() -> IterationEnded:
    """Return the failure of a batch whose lease was lost while it waited."""
    return IterationEnded("the lease was lost before this batch was taken")


def refuse_lost(batch: ShardRecords) -> IterationEnded | None:
    """Return the failure of a batch whose lease was lost, None for another one."""
    return None if batch.is_owned else not_taken()


class _Offer:
    __slots__ = ("batch", "error", "settled")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.settled = threading.Event()
        self.error: BaseException | None = None

    def settle(self, error: BaseException | None = None) -> None:
        self.error = error
        self.settled.set()


class PullQueue:
    """Offers batches to one iterating thread."""

    def __init__(self) -> None:
        self._offers: queue.SimpleQueue[_Offer] = queue.SimpleQueue()
        self._is_closed = threading.Event()

    def offer(self, batch: Batch) -> None:
        """Pass a batch to the iterating thread and wait until it is done. This is the consumer's handler.

        Raises:
            IterationEnded: The iteration ended before the batch was done.
        """
        offer = _Offer(batch)
        self._offers.put(offer)
        while not offer.settled.wait(_POLL_S):
            if self._is_closed.is_set():
                offer.settle(not_done())
        if offer.error is not None:
            raise offer.error

    def close(self) -> None:
        """End the iteration; batches that are not done fail."""
        self._is_closed.set()

    def batches(self, has_ended: threading.Event) -> Iterator[Batch]:
        """Yield batches until the consumer has ended.

        Args:
            has_ended: Set when no batch can follow.
        """
        while not has_ended.is_set():
            try:
                offer = self._offers.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if not offer.batch.is_owned:
                offer.settle(not_taken())
                continue
            is_done = False
            try:
                yield offer.batch
                is_done = True
            finally:
                offer.settle(None if is_done else not_done())
