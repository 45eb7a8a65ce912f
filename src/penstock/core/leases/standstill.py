"""Detects a standstill: every lease of a worker has stopped, or waits for one that has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from penstock.core.leases.held_lease import HeldLease, LeasePhase
from penstock.core.safe_text import describe_error
from penstock.errors import (
    AccessDenied,
    DataLossError,
    HandlerFailed,
    NotFound,
    PenstockError,
    StreamChanged,
)

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
