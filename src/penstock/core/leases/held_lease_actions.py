"""What a held lease may want done: values that `penstock.core.leases.held_leases` carries out in order."""

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
    """Send this write now; no other one is under way for the lease."""

    write: LeaseWrite


class CreateChild(Struct, frozen=True):
    """Create the lease of a child; the answer goes to `on_child_answer`."""

    lease: Lease


class Released(Struct, frozen=True):
    """The lease was given up."""


class Ended(Struct, frozen=True):
    """The shard is done and its lease finished."""

    children: tuple[ChildShard, ...]


class Lost(Struct, frozen=True):
    """The lease is not this worker's any more.

    Args:
        why: LOST to another worker, or EXPIRED.
        has_reader: Whether a reader is still to stop.
        done: What is done beyond the last checkpoint and nobody else will tell, or None.
    """

    why: StopWhy
    has_reader: bool
    done: Position | None


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
