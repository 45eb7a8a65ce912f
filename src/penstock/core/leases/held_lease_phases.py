"""The phases of a held lease and its actions, as values that `penstock.core.leases.held_leases` carries out in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.core.leases.coordinator_effects import (
    CheckpointWritten,
    ExtendDelivery,
    FetchLease,
    Level,
    Report,
    StartReader,
    StopReader,
    Topic,
)
from penstock.core.leases.coordinator_events import ReaderFailed
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Checkpoint, End, Release, Renew
from penstock.core.position import Position
from penstock.core.safe_text import describe_error
from penstock.core.shard import ChildShard
from penstock.errors import (
    AccessDenied,
    DataLossError,
    HandlerFailed,
    NotFound,
    PenstockError,
    StreamChanged,
)


class LeasePhase(Enum):
    """The phase of a held lease."""

    WAITING = "held and not read yet: parents are unfinished, or an earlier reader has not stopped"
    READING = "a reader delivers records"
    STOPPING = "the reader was asked to stop"
    STOPPED = "the reader has stopped; the release follows"
    DRAINED = "read to its end; the children's leases are created, then the end is written"
    PARKED = (
        "the reader has failed for good; the lease is kept, so that no other worker fails on the same record"
    )
    GONE = "released, ended or lost; nothing follows"


class Trigger(Enum):
    """An event that moves a held lease from one phase to another."""

    START = "parents are finished and no earlier reader is left"
    STOP = "the lease is to be released"
    READER_STOPPED = "the reader has stopped"
    READER_DRAINED = "the reader has reached the shard's end"
    READER_FAILED = "the reader has failed for good"
    READER_FREED = "the reader has failed, and the lease is to be released"
    TIME_IS_UP = "a graceful stop has waited for the reader long enough"
    RELEASED = "the release is written"
    ENDED = "the end is written"
    LOST = "another worker has the lease, or it could not be renewed in time"


TRANSITIONS: Final[Mapping[LeasePhase, Mapping[Trigger, LeasePhase]]] = {
    LeasePhase.WAITING: {
        Trigger.START: LeasePhase.READING,
        Trigger.STOP: LeasePhase.STOPPED,
        Trigger.LOST: LeasePhase.GONE,
    },
    LeasePhase.READING: {
        Trigger.STOP: LeasePhase.STOPPING,
        Trigger.READER_STOPPED: LeasePhase.STOPPED,
        Trigger.READER_DRAINED: LeasePhase.DRAINED,
        Trigger.READER_FAILED: LeasePhase.PARKED,
        Trigger.READER_FREED: LeasePhase.STOPPED,
        Trigger.LOST: LeasePhase.GONE,
    },
    LeasePhase.STOPPING: {
        Trigger.STOP: LeasePhase.STOPPING,
        Trigger.READER_STOPPED: LeasePhase.STOPPED,
        Trigger.READER_DRAINED: LeasePhase.DRAINED,
        Trigger.READER_FAILED: LeasePhase.STOPPED,
        Trigger.READER_FREED: LeasePhase.STOPPED,
        Trigger.TIME_IS_UP: LeasePhase.STOPPED,
        Trigger.LOST: LeasePhase.GONE,
    },
    LeasePhase.STOPPED: {
        Trigger.STOP: LeasePhase.STOPPED,
        Trigger.RELEASED: LeasePhase.GONE,
        Trigger.LOST: LeasePhase.GONE,
    },
    LeasePhase.DRAINED: {
        Trigger.STOP: LeasePhase.DRAINED,
        Trigger.ENDED: LeasePhase.GONE,
        Trigger.LOST: LeasePhase.GONE,
    },
    LeasePhase.PARKED: {
        Trigger.STOP: LeasePhase.STOPPED,
        Trigger.LOST: LeasePhase.GONE,
    },
    LeasePhase.GONE: {},
}


# --- actions -----------------------------------------------------------------------------------------------


HeldLeaseWrite: TypeAlias = Renew | Checkpoint | Release | End
"""A write of a held lease: conditional on the counter that the previous one left."""


class SendWrite(Struct, frozen=True):
    """Send this write now; no other write of the lease is in flight."""

    write: HeldLeaseWrite


class CreateChild(Struct, frozen=True):
    """Create the lease of a child; the answer goes to `HeldLeases.on_child_answer`."""

    lease: Lease


class LeaseReleased(Struct, frozen=True):
    """Drop the lease: its release is written."""


class LeaseEnded(Struct, frozen=True):
    """Drop the lease: SHARD_END is written. Take the children's leases."""

    children: tuple[ChildShard, ...]


class Expiry(Struct, frozen=True):
    """Why a lease could not be renewed in time.

    Args:
        error: The error of its last failed write; None if none failed.
        since_write_s: Seconds since the write was sent that should have kept the lease and has no answer; None if none was sent.
    """

    key: str
    error: str | None
    since_write_s: float | None


class LeaseLoss(Struct, frozen=True):
    """Drop the lease: another worker has it, its row was deleted, or it could not be renewed in time.

    Args:
        has_reader: Whether a reader is still to stop.
        done_through: The last position that is done, for a late checkpoint; None without one, or if the reader will report it.
        expiry: Why the lease could not be renewed in time; None if the row shows the loss.
    """

    has_reader: bool
    done_through: Position | None
    expiry: Expiry | None = None


LeaseAction: TypeAlias = (
    SendWrite
    | CreateChild
    | LeaseReleased
    | LeaseEnded
    | LeaseLoss
    | StartReader
    | StopReader
    | ExtendDelivery
    | CheckpointWritten
    | FetchLease
    | Report
)


_SHOWN_KEYS_MAX: Final = 5


def report_release(row: Lease) -> Report:
    """Return the report that a lease was released, and its next owner, from the row after the release."""
    return Report(
        Topic.RELEASED if row.owner is None else Topic.HANDED_OVER,
        Level.INFO,
        f"lease {row.key} released at {row.checkpoint} for {row.owner or 'any worker'}",
        row.key,
    )


def report_end(key: str, children: Iterable[ChildShard]) -> Report:
    """Return the report that a shard is done, and name its children."""
    names = ", ".join(child.shard_id for child in children) or "no children"
    return Report(Topic.ENDED, Level.INFO, f"shard {key} is done; {names} follow", key)


def report_read_back(key: str) -> Report:
    """Return the report that a write was applied although its answer was lost."""
    message = f"lease {key}: the answer to a write was lost, the write was not"
    return Report(Topic.READ_BACK, Level.INFO, message, key)


def report_checkpoint_behind(row: Lease, own_position: Position | None) -> Report:
    """Return the report that the row's checkpoint is ahead of this worker's own position, and stays."""
    message = f"lease {row.key}: the table's checkpoint {row.checkpoint} is ahead of {own_position}; it stays"
    return Report(Topic.CHECKPOINT_BEHIND, Level.INFO, message, row.key)


def report_failed_reader(event: ReaderFailed, *, is_freed: bool) -> Report:
    """Return the report that a shard is not delivered any more, and whether its lease is released for other workers."""
    state = "freed" if is_freed else "kept, and nothing of it is read until a restart"
    message = f"shard {event.key} has stopped: {event.reason}. Its lease is {state}."
    return Report(Topic.STOPPED_SHARD, Level.ERROR, message, event.key)


def report_stall(key: str, behind_ms: int | None, no_progress_s: float) -> Report:
    """Return the report that a shard is behind and makes no progress; `behind_ms` is None if its reader has not reported that yet."""
    lag = "has not reported how far it is behind" if behind_ms is None else f"is {behind_ms} ms behind"
    message = f"shard {key} {lag} and has not moved for {no_progress_s:.0f} s"
    return Report(Topic.STALLED, Level.ERROR, message, key)


def report_still_stopped(key: str) -> Report:
    """Return the repeated report that a shard has stopped."""
    return Report(Topic.STOPPED_SHARD, Level.ERROR, f"shard {key} is still stopped after a failure", key)


def report_expiries(expiries: Sequence[Expiry]) -> Report:
    """Return the report of leases that were lost because no renewal succeeded in time, and why none did."""
    keys = [each.key for each in expiries]
    is_one = len(keys) == 1
    leases, them = (
        (f"lease {keys[0]}", "it") if is_one else (f"{len(keys)} leases ({_first_keys(keys)})", "them")
    )
    error = next((expiry.error for expiry in expiries if expiry.error is not None), None)
    times_s = [expiry.since_write_s for expiry in expiries if expiry.since_write_s is not None]
    if error is not None:
        why = f"Renewing {them} fails: {error}"
    elif times_s:
        why = f"The renewal was sent {max(times_s):.1f} s ago and the lease table has not answered: see renewal_latency_s"
    else:
        why = f"This process was too slow to renew {them}, or did not run: see renewal_latency_s"
    message = (
        f"{leases} could not be renewed in time; delivery has stopped before another worker may begin. {why}"
    )
    return Report(Topic.LOST, Level.WARNING, message, keys[0] if is_one else None, "expired")


def report_late_renewals(late_count: int, held_count: int, longest_s: float, error: str | None) -> Report:
    """Return the report of leases that are kept although others may take them by now.

    Args:
        late_count: Number of these leases, of the `held_count` that this worker holds.
        longest_s: Longest time since a renewal.
        error: The error of the last failed renewal; None if none failed.
    """
    why = (
        "The lease table or this process is too slow for so many: see renewal_latency_s"
        if error is None
        else f"Renewing them fails: {error}"
    )
    message = (
        f"{late_count} of {held_count} leases have not been renewed within their duration, one of them for {longest_s:.0f} s: "
        f"other workers may take them. {why}"
    )
    return Report(Topic.LATE_RENEWALS, Level.WARNING, message)


def _first_keys(keys: Sequence[str]) -> str:
    shown = ", ".join(sorted(keys)[:_SHOWN_KEYS_MAX])
    return shown if len(keys) <= _SHOWN_KEYS_MAX else f"{shown}, ..."


def report_loss(worker: str, key: str, row: Lease | None) -> Report:
    """Return the report that a lease was lost to another worker or to another process of this worker, or that its row was deleted (None)."""
    if row is None:
        return Report(
            Topic.ROW_GONE,
            Level.ERROR,
            f"lease {key} was deleted while this worker held it. If its part of the hash range stays without a lease, the shard "
            "is started again from its beginning",
            key,
        )
    if row.reader == worker:
        run = "" if row.run is None else f" (run {row.run})"
        message = (
            f"lease {key} was renewed under this worker's id, {worker}, but not by this process{run}: is another process running "
            "under the same worker id? It must be unique among the living workers of an application"
        )
        return Report(Topic.LOST, Level.ERROR, message, key, "same_name")
    return Report(Topic.LOST, Level.WARNING, f"lease {key} belongs to {row.owner} now", key, "taken")


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
    """Return why a shard has stopped as a word of a small fixed set, for metrics."""
    return next((word for kind, word in _REASONS if isinstance(error, kind)), "read_failed")


def describe_stop(error: PenstockError) -> str:
    """Return why a shard has stopped, with the cause, short enough for its lease."""
    cause = error.__cause__
    text = f"{stop_reason(error)}: {error if cause is None else describe_error(cause)}"
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."


class HeldLeaseStatus(Struct, frozen=True):
    """A snapshot of one held lease, for other threads.

    Args:
        epoch: Identifies this ownership.
        renewed_s: When the last write that kept it was sent, monotonic.
        parents: Shards that must be finished before this one is read.
    """

    key: str
    epoch: int
    phase: LeasePhase
    renewed_s: float
    parents: frozenset[str] = frozenset()


def is_standstill(statuses: Iterable[HeldLeaseStatus]) -> bool:
    """Return whether some held leases have stopped after a failure, and every other one waits for those."""
    leases = tuple(statuses)
    stuck = {lease.key for lease in leases if lease.phase is LeasePhase.PARKED}
    others = [lease for lease in leases if lease.phase is not LeasePhase.PARKED]
    if not stuck or any(lease.phase is not LeasePhase.WAITING for lease in others):
        return False
    while descendants := {lease.key for lease in others if lease.parents & stuck} - stuck:
        stuck |= descendants
    return all(lease.key in stuck for lease in others)
