"""What a coordinator wants done, in order: effects, with an id for every write and never two writes for one key.

Heartbeats go out at once. Other writes wait in a queue while many are under way, so that a worker that gains a
thousand leases does not drown its own renewals.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from penstock.core.leases.coordinator_events import Effect, Level, Report, Topic, WriteLease
from penstock.core.leases.lease import Create, LeaseWrite

_GOLDEN: Final = 0.6180339887498949  # steps by it spread evenly over [0, 1)


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """A write under way, and what for.

    Args:
        purpose: A value of whoever asked for the write; it comes back with the answer.
    """

    write: LeaseWrite
    purpose: Any
    sent_s: float
    is_heartbeat: bool


@dataclass(slots=True)
class PendingWrites:
    """Collects effects; knows which writes are under way."""

    in_flight_max: int
    effects: list[Effect] = field(default_factory=list)
    _under_way: dict[int, PendingWrite] = field(default_factory=dict)
    _busy: set[str] = field(default_factory=set)
    _queue: deque[tuple[LeaseWrite, Any]] = field(default_factory=deque)
    _queued: set[str] = field(default_factory=set)
    _in_flight: int = 0
    _last_id: int = 0
    _chance: float = 0.5

    def begin(self, chance: float) -> None:
        """Start a new turn with a new number from chance."""
        self.effects = []
        self._chance = chance

    def draw(self) -> float:
        """Give a number in [0, 1): several per turn, all from the turn's one."""
        self._chance = (self._chance + _GOLDEN) % 1.0
        return self._chance

    def emit(self, effect: Effect) -> None:
        """Have something done."""
        self.effects.append(effect)

    def report(
        self, topic: Topic, level: Level, message: str, key: str | None = None, reason: str = ""
    ) -> None:
        """Say something to people, logs and metrics."""
        self.effects.append(Report(topic, level, message, key, reason))

    def is_busy(self, key: str) -> bool:
        """Whether a write for the key is under way or waits for its turn."""
        return key in self._busy or key in self._queued

    def is_idle(self) -> bool:
        """Whether no write is under way or waits."""
        return not self._under_way and not self._queue

    def has_creations(self) -> bool:
        """Whether the creation of a lease is under way or waits."""
        waiting = (write for write, _ in self._queue)
        under_way = (pending.write for pending in self._under_way.values())
        return any(isinstance(write, Create) for write in chain(under_way, waiting))

    def send(self, write: LeaseWrite, purpose: Any, now_s: float, give_up_s: float | None = None) -> None:
        """Write a heartbeat now. The key must not be busy."""
        self._start(write, purpose, now_s, is_heartbeat=True, give_up_s=give_up_s)

    def enqueue(self, write: LeaseWrite, purpose: Any) -> bool:
        """Write when there is room; False, and nothing happens, while the key is busy."""
        if self.is_busy(write.key):
            return False
        self._queue.append((write, purpose))
        self._queued.add(write.key)
        return True

    def drop_queue(self) -> None:
        """Forget what has not begun."""
        self._queue.clear()
        self._queued.clear()

    def pump(self, now_s: float) -> None:
        """Begin what waits, as far as there is room."""
        while self._queue and self._in_flight < self.in_flight_max:
            write, purpose = self._queue.popleft()
            self._queued.discard(write.key)
            self._start(write, purpose, now_s, is_heartbeat=False)

    def settle(self, write_id: int) -> PendingWrite | None:
        """Take an answer in; None when no such write is under way."""
        pending = self._under_way.pop(write_id, None)
        if pending is None:
            return None
        self._busy.remove(pending.write.key)
        if not pending.is_heartbeat:
            self._in_flight -= 1
        return pending

    def _start(
        self,
        write: LeaseWrite,
        purpose: Any,
        now_s: float,
        *,
        is_heartbeat: bool,
        give_up_s: float | None = None,
    ) -> None:
        if write.key in self._busy:
            raise AssertionError(f"two writes for lease {write.key} at once: {write}")
        self._last_id += 1
        self._under_way[self._last_id] = PendingWrite(write, purpose, now_s, is_heartbeat)
        self._busy.add(write.key)
        if not is_heartbeat:
            self._in_flight += 1
        self.effects.append(WriteLease(self._last_id, write, is_heartbeat, give_up_s))
