"""The lease writes of one worker in flight and in the queue: never two for one key at a time.

Writes of held leases, such as renewals, are sent at once. Other writes wait in a queue while many are in flight, so that a
worker that acquires a thousand leases does not delay its renewals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Hashable
from itertools import chain
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.leases.coordinator_effects import Turn, WriteLease
from penstock.core.leases.fleet_view import Reason
from penstock.core.leases.lease_writes import Create, LateCheckpoint, LeaseWrite, Renew, Take
from penstock.core.leases.required_leases import CreationReason, DeletionReason
from penstock.core.leases.row_checks import LaterRuns

# --- the purpose of a write: it decides which part gets the answer ---------------------------------------


class ForHeldLease(Struct, frozen=True):
    """A write that renews, checkpoints, releases or ends a held lease.

    Args:
        epoch: Identifies this worker's ownership of the lease; an answer that arrives after its end is ignored.
    """

    epoch: int


class ForAcquisition(Struct, frozen=True):
    """A write that acquires a lease, or requests its hand-over."""

    reason: Reason


class ForChildOf(Struct, frozen=True):
    """A write that creates the lease of a finished shard's child.

    Args:
        parent: Key of the finished shard's lease.
        epoch: Identifies this worker's ownership of that lease.
    """

    parent: str
    epoch: int


class ForFirstLease(Struct, frozen=True):
    """A write that creates the first lease: its success decides which of several workers starts the application."""


class ForMissingLease(Struct, frozen=True):
    """A write that creates a lease which should exist and does not."""

    reason: CreationReason


class ForCleanup(Struct, frozen=True):
    """A write that deletes a finished lease."""

    reason: DeletionReason


class ForLateCheckpoint(Struct, frozen=True):
    """A write of the last position of a reader whose lease was lost."""

    write: LateCheckpoint


OtherPurpose: TypeAlias = (
    ForAcquisition | ForChildOf | ForFirstLease | ForMissingLease | ForCleanup | ForLateCheckpoint
)
"""The purpose of a write that is not a held lease's own."""

WritePurpose: TypeAlias = ForHeldLease | OtherPurpose


# --- the writes in flight --------------------------------------------------------------------------------


class PendingWrite(Struct, frozen=True):
    """A write in flight, and its purpose."""

    write: LeaseWrite
    purpose: WritePurpose
    sent_s: float


class PendingWrites:
    """Sends writes and keeps them until they are answered. Not thread-safe.

    Args:
        in_flight_max: The most writes in flight at once, those of held leases not counted.
        later_runs: Has this process's run, which takes and renewals write on their leases; None: they write no run.
    """

    def __init__(self, turn: Turn, in_flight_max: int, later_runs: LaterRuns | None = None) -> None:
        self._turn = turn
        self._in_flight_max = in_flight_max
        self._later_runs = later_runs
        self._in_flight: dict[int, PendingWrite] = {}  # by id, in the order in which they were sent
        self._keys_in_flight: set[str] = set()
        self._queue: deque[tuple[LeaseWrite, OtherPurpose]] = deque()
        self._queued_keys: set[str] = set()
        self._limited_count = 0  # writes in flight, except those of held leases, which have no limit
        self._last_id = 0

    def is_busy(self, key: str) -> bool:
        """Return whether a write for the key is in flight or queued."""
        return key in self._keys_in_flight or key in self._queued_keys

    def sent_s(self, write_id: int) -> float | None:
        """Return when a write was sent; None if it is not in flight."""
        pending = self._in_flight.get(write_id)
        return None if pending is None else pending.sent_s

    def oldest_of_each(self, kind: Callable[[LeaseWrite], Hashable]) -> list[PendingWrite]:
        """Return the oldest write in flight of each kind: two writes for which `kind` returns the same are of one kind."""
        oldest: dict[Hashable, PendingWrite] = {}
        for pending in self._in_flight.values():
            oldest.setdefault(kind(pending.write), pending)
        return list(oldest.values())

    def is_idle(self, except_renewals_of: Container[str] = ()) -> bool:
        """Return whether no write is in flight or queued, apart from renewals of some leases."""
        return not self._queue and all(
            isinstance(pending.write, Renew) and pending.write.key in except_renewals_of
            for pending in self._in_flight.values()
        )

    def has_creations(self, keys: Container[str] | None = None) -> bool:
        """Return whether the creation of a lease is in flight or queued; with keys, of one of these leases."""
        queued = (write for write, _ in self._queue)
        in_flight = (pending.write for pending in self._in_flight.values())
        return any(
            isinstance(write, Create) and (keys is None or write.key in keys)
            for write in chain(in_flight, queued)
        )

    def send(self, write: LeaseWrite, purpose: ForHeldLease, now_s: float, retry_until_s: float) -> None:
        """Send a write of a held lease now, and not again after `retry_until_s`. The key must not be busy."""
        self._emit_write(PendingWrite(write, purpose, now_s), retry_until_s)

    def enqueue(self, write: LeaseWrite, purpose: OtherPurpose) -> bool:
        """Queue a write of another purpose; return False, without effect, while the key is busy."""
        if self.is_busy(write.key):
            return False
        self._queue.append((write, purpose))
        self._queued_keys.add(write.key)
        return True

    def drop_queue(self) -> None:
        """Forget the queued writes."""
        self._queue.clear()
        self._queued_keys.clear()

    def send_queued(self, now_s: float) -> None:
        """Send queued writes, up to `in_flight_max`."""
        while self._queue and self._limited_count < self._in_flight_max:
            write, purpose = self._queue.popleft()
            self._queued_keys.discard(write.key)
            self._emit_write(PendingWrite(write, purpose, now_s))

    def settle(self, write_id: int) -> PendingWrite | None:
        """Return and forget the write that was answered; None if no such write is in flight."""
        pending = self._in_flight.pop(write_id, None)
        if pending is None:
            return None
        self._keys_in_flight.remove(pending.write.key)
        if not isinstance(pending.purpose, ForHeldLease):
            self._limited_count -= 1
        assert 0 <= self._limited_count <= self._in_flight_max
        return pending

    def _emit_write(self, pending: PendingWrite, retry_until_s: float | None = None) -> None:
        key = pending.write.key
        assert key not in self._keys_in_flight, f"two writes for lease {key} at once: {pending.write}"
        if self._later_runs is not None and isinstance(pending.write, Take | Renew):
            pending = replace(pending, write=replace(pending.write, run=self._later_runs.run))
        self._last_id += 1
        self._in_flight[self._last_id] = pending
        self._keys_in_flight.add(key)
        is_of_held_lease = isinstance(pending.purpose, ForHeldLease)
        self._limited_count += not is_of_held_lease
        self._turn.emit(WriteLease(self._last_id, pending.write, is_of_held_lease, retry_until_s))
