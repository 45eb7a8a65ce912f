"""Long polls: receives that wait until a record is visible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from penstock_local.queues.queue import Queue
from penstock_local.queues.registry import Queues
from penstock_local.virtual_clock import VirtualClock

Answer = TypeVar("Answer")


class LongPolls:
    """The waiting receives of one server; its loop owns them.

    A record wakes one of them. If further records are visible after its receive, that wakes the next.

    Args:
        queues: The queues; this object becomes their listener.
        clock: The server's clock.
    """

    def __init__(self, queues: Queues, clock: VirtualClock) -> None:
        self._clock = clock
        self._waiting: dict[tuple[str, bool], dict[asyncio.Event, None]] = {}
        queues.on_visible = self.wake_one
        queues.on_change = self._wake_queue

    def wake_one(self, queue: Queue) -> None:
        """Wake the longest-waiting receive of a queue, and the longest-waiting one of its dead letters."""
        for dead in (False, True):
            waiting = self._waiting.get((queue.id, dead), {})
            first = next((event for event in waiting if not event.is_set()), None)
            if first is not None:
                first.set()

    def count(self, queue: Queue) -> int:
        """Return the number of waiting receives of a queue."""
        return sum(len(self._waiting.get((queue.id, dead), {})) for dead in (False, True))

    def _wake_queue(self, queue: Queue) -> None:
        for dead in (False, True):
            for event in self._waiting.get((queue.id, dead), {}):
                event.set()

    def wake_all(self) -> None:
        """Wake all receives, because the clock was moved."""
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()

    async def wait(
        self, queue: Queue, until_ms: int, attempt: Callable[[int], Answer | None], *, dead: bool
    ) -> Answer | None:
        """Repeat an attempt until it returns records. It is repeated when its result may have changed.

        Args:
            queue: The queue to receive from.
            until_ms: When to stop waiting.
            attempt: Takes a reading of the clock; returns None if no record is visible.
            dead: Whether it receives dead letters.

        Returns:
            The attempt's result; None when the time is over.
        """
        wake = asyncio.Event()
        waiting = self._waiting.setdefault((queue.id, dead), {})
        waiting[wake] = None
        try:
            while True:
                wake.clear()
                now_ms = self._clock.now_ms()
                found = attempt(now_ms)
                if found is not None or now_ms >= until_ms:
                    return found
                visible_ms = queue.deliveries.next_visible_ms()
                await self._clock.wait(wake, until_ms if visible_ms is None else min(visible_ms, until_ms))
        finally:
            del waiting[wake]
            if not waiting:
                self._waiting.pop((queue.id, dead), None)
            if wake.is_set():
                # this receive was woken for a record and ends without it: another one takes it
                self.wake_one(queue)
