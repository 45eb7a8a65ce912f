"""Figures of the fleet and of one worker's leases, for metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from penstock.core.leases.fleet_view import FleetLease
from penstock.core.leases.held_lease import HeldLease, LeasePhase
from penstock.core.leases.lease_view import OwnerState
from penstock.core.safe_text import describe_error
from penstock.errors import (
    AccessDenied,
    DataLossError,
    HandlerFailed,
    NotFound,
    PenstockError,
    StreamChanged,
)


class CoordinatorStats(Struct, frozen=True):
    """Figures for metrics.

    Args:
        total_leases: Unfinished leases in the table.
        ended_leases: Finished ones that are not deleted yet.
        unclaimed_leases: Unfinished ones without a live owner.
        worker_count: Live owners, this worker included.
        held_leases: Held by this worker.
        lost_leases: Lost since the start.
        takes: By reason, since the start.
    """

    total_leases: int = 0
    ended_leases: int = 0
    unclaimed_leases: int = 0
    worker_count: int = 1
    held_leases: int = 0
    lost_leases: int = 0
    takes: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of_fleet(cls, fleet: Sequence[FleetLease], lease_count: int, worker_count: int) -> CoordinatorStats:
        """Count the leases of a table.

        Args:
            fleet: Every unfinished lease with its owner's state.
            lease_count: All leases.
            worker_count: Live owners, this worker included.
        """
        return cls(
            total_leases=len(fleet),
            ended_leases=lease_count - len(fleet),
            unclaimed_leases=sum(1 for entry in fleet if entry.owner_state is not OwnerState.ALIVE),
            worker_count=worker_count,
        )

    @property
    def table_leases(self) -> int:
        """Every lease in the table."""
        return self.total_leases + self.ended_leases


# --- a standstill: every lease of a worker has stopped, or waits for one that has ------------------------

_REASONS: Final[tuple[tuple[type[PenstockError], str], ...]] = (
    (HandlerFailed, "handler_failed"),
    (DataLossError, "data_loss"),
    (StreamChanged, "stream_changed"),
    (NotFound, "not_found"),
    (AccessDenied, "access_denied"),
)
_TEXT_MAX: Final = 200  # a row is read by every worker in every round


def stop_reason(error: PenstockError) -> str:
    """Return why a shard has stopped, as one word of a bounded set, for metrics."""
    return next((word for kind, word in _REASONS if isinstance(error, kind)), "read_failed")


def describe_stop(error: PenstockError) -> str:
    """Return why a shard has stopped, with the cause, short enough for its lease."""
    cause = error.__cause__
    what = str(error) if cause is None else describe_error(cause)
    text = f"{stop_reason(error)}: {what}"
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."


class HeldLeaseStatus(Struct, frozen=True):
    """A snapshot of one held lease, for other threads.

    Args:
        key: The shard's id.
        epoch: Identifies this ownership.
        phase: Its phase.
        renewed_s: When the last write that kept it was sent, monotonic.
        parents: Shards that must be finished before this one is read.
    """

    key: str
    epoch: int
    phase: LeasePhase
    renewed_s: float
    parents: frozenset[str] = frozenset()


def statuses_of(held_leases: Iterable[HeldLease]) -> tuple[HeldLeaseStatus, ...]:
    """Return snapshots of held leases."""
    return tuple(
        HeldLeaseStatus(held.key, held.epoch, held.phase, held.renewed_s, held.lease.parents)
        for held in held_leases
    )


def is_standstill(held: Iterable[HeldLeaseStatus]) -> bool:
    """Return whether some leases have stopped after a failure, and every other one waits for those."""
    leases = tuple(held)
    still = {lease.key for lease in leases if lease.phase is LeasePhase.PARKED}
    if not still:
        return False
    waiting = [lease for lease in leases if lease.phase is not LeasePhase.PARKED]
    while waiting:
        blocked = [lease for lease in waiting if lease.phase is LeasePhase.WAITING and lease.parents & still]
        if not blocked:
            return False
        still.update(lease.key for lease in blocked)
        waiting = [lease for lease in waiting if lease.key not in still]
    return True
