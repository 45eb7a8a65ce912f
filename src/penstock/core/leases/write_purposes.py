"""The purpose of a lease write: kept while the write is in flight, it decides which part gets the answer."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from penstock.core.leases.fleet_view import Reason
from penstock.core.leases.required_leases import DeletionReason
from penstock.core.position import Position


class ForHeldLease(Struct, frozen=True):
    """Renew, checkpoint, release or end a held lease.

    Args:
        epoch: Identifies the ownership; an answer that arrives after it has ended is ignored.
    """

    epoch: int


class ForAcquisition(Struct, frozen=True):
    """Acquire a lease, or request its hand-over."""

    reason: Reason


class ForChildOf(Struct, frozen=True):
    """Create the lease of a finished shard's child.

    Args:
        parent: The finished shard.
        epoch: Identifies this worker's ownership of it.
    """

    parent: str
    epoch: int


class ForFirstLease(Struct, frozen=True):
    """Create the lease that decides which of several workers starts the application."""


class CreationReason(Enum):
    """Why the shard syncer creates a lease."""

    FIRST = "first"
    CHILD = "child"
    UNEXPLAINED = "unexplained"
    RESTORED = "restored"


class ForMissingLease(Struct, frozen=True):
    """Create a lease that the table lacks."""

    reason: CreationReason


class ForCleanup(Struct, frozen=True):
    """Delete a finished lease."""

    reason: DeletionReason


class ForLateCheckpoint(Struct, frozen=True):
    """Write the last position of a reader whose lease was lost."""

    position: Position


OtherPurpose: TypeAlias = (
    ForAcquisition | ForChildOf | ForFirstLease | ForMissingLease | ForCleanup | ForLateCheckpoint
)
"""The purpose of a write that is not a held lease's own."""

WritePurpose: TypeAlias = ForHeldLease | OtherPurpose
