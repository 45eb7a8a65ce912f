"""What a lease write is for: kept while the write is under way, it decides who learns of the answer."""

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
        epoch: Names the ownership; an answer that comes after it is nobody's.
    """

    epoch: int


class ForAcquisition(Struct, frozen=True):
    """Get a lease, or ask for it."""

    reason: Reason


class ForChildOf(Struct, frozen=True):
    """Create the lease of a finished shard's child.

    Args:
        parent: The finished shard.
        epoch: Names this worker's ownership of it.
    """

    parent: str
    epoch: int


class ForFirstLease(Struct, frozen=True):
    """Create the lease that decides which of several workers starts the application."""


class CreationReason(Enum):
    """Why a lease is created that no held lease asked for."""

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
    """Write what a reader had done when its lease was gone already."""

    position: Position


OtherPurpose: TypeAlias = (
    ForAcquisition | ForChildOf | ForFirstLease | ForMissingLease | ForCleanup | ForLateCheckpoint
)
"""What a write is for that is not a held lease's own."""

WritePurpose: TypeAlias = ForHeldLease | OtherPurpose
