"""The actions of a held lease, as values that `penstock.core.leases.held_leases` carries out in order."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from penstock.core.leases.coordinator_effects import (
    CheckpointWritten,
    ExtendDelivery,
    FetchLease,
    Report,
    StartReader,
    StopReader,
    StopWhy,
)
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import LeaseWrite
from penstock.core.position import Position
from penstock.core.shard import ChildShard


class SendWrite(Struct, frozen=True):
    """Send this write now; no other write of the lease is in flight."""

    write: LeaseWrite


class CreateChild(Struct, frozen=True):
    """Create the lease of a child; the answer goes to `HeldLeases.on_child_created`."""

    lease: Lease


class Released(Struct, frozen=True):
    """The lease was released."""


class Ended(Struct, frozen=True):
    """The shard is done and its lease finished."""

    children: tuple[ChildShard, ...]


class Expiry(Struct, frozen=True):
    """Why a lease could not be renewed in time.

    Args:
        key: The lease.
        error: The error of its last failed write; None if none failed.
        unanswered_s: Time since the write was sent that should have kept the lease; None if none was sent.
    """

    key: str
    error: str | None
    unanswered_s: float | None


class Lost(Struct, frozen=True):
    """This worker does not hold the lease any more.

    Args:
        why: LOST to another worker, or EXPIRED.
        has_reader: Whether a reader is still to stop.
        done: The position that was done but not checkpointed, or None; with a reader left, the reader reports it.
        expiry: With EXPIRED: why it could not be renewed.
    """

    why: StopWhy
    has_reader: bool
    done: Position | None
    expiry: Expiry | None = None


LeaseAction: TypeAlias = (
    SendWrite
    | CreateChild
    | Released
    | Ended
    | Lost
    | StartReader
    | StopReader
    | ExtendDelivery
    | CheckpointWritten
    | FetchLease
    | Report
)
