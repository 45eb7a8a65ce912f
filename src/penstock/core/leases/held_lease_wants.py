"""What a held lease may want done: values that `penstock.core.leases.held_leases` carries out in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.leases.coordinator_effects import (
    CheckpointStands,
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


@dataclass(frozen=True, slots=True)
class SendWrite:
    """Send this write now; no other one is under way for the lease."""

    write: LeaseWrite


@dataclass(frozen=True, slots=True)
class CreateChild:
    """Create the lease of a child; the answer goes to `on_child_answer`."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Released:
    """The lease was given up."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The shard is done and its lease finished."""

    children: tuple[ChildShard, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease is not this worker's any more.

    Args:
        why: LOST to another worker, or EXPIRED.
        leaves_reader: Whether a reader is still to stop.
        done: What is done beyond the last checkpoint and nobody else will tell, or None.
    """

    why: StopWhy
    leaves_reader: bool
    done: Position | None


Want: TypeAlias = (
    SendWrite
    | CreateChild
    | Released
    | Ended
    | Lost
    | StartReader
    | StopReader
    | ExtendDelivery
    | CheckpointStands
    | FetchLease
    | Report
)
