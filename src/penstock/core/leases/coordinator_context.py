"""The values and collaborators that the parts of one coordinator share."""

from __future__ import annotations

from msgspec import Struct

from penstock.core.leases.coordinator_effects import Turn
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.pending_writes import PendingWrites
from penstock.core.leases.table_scans import TableScans


class CoordinatorContext(Struct, frozen=True, eq=False):
    """The shared parts of one coordinator. In a table of several streams each stream has one, with the stream's options.

    Args:
        me: This worker's id.
        turn: Collects effects, and is the source of jitter.
    """

    me: str
    options: CoordinatorOptions
    view: LeaseView
    turn: Turn
    writes: PendingWrites
    scans: TableScans
