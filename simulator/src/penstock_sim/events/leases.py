"""Events of the lease table."""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import (
    LeaseWrite,
    Take,
)
from penstock_sim.events.base import Event, ProcessEvent, SituationFinder, name_of
from penstock_sim.events.processes import ProcessExited
from penstock_sim.kinds import SeedKind, situation

FOREIGN_TAKE: Final = situation("a worker that has only the KCL's attributes takes a lease", SeedKind.QUERIES)
REQUESTER_GONE: Final = situation(
    "a worker leaves for ever during a hand-over that it has requested", SeedKind.CONSUMERS, SeedKind.STREAMS
)


class LeaseWritten(ProcessEvent, frozen=True):
    """A conditional write was applied to a row."""

    write: LeaseWrite
    before: Lease | None
    after: Lease | None

    @property
    def kind(self) -> str:
        """The name of the write's type."""
        return type(self.write).__name__

    def __str__(self) -> str:
        after = self.after
        row = (
            ""
            if after is None
            else f"{after.owner} {after.checkpoint_owner} {after.counter} {after.checkpoint}"
        )
        return f"LeaseWritten|{self.who}|{self.kind}|{self.write.key}|{row}"


class LeaseDeleted(Event, frozen=True):
    key: str  # of a row that a user deletes
    reader: str | None
    meets: ClassVar = "fault: row_deletions_per_min"


class TableDropped(Event, frozen=True):
    meets: ClassVar = "fault: table_drops_per_min"


class LeaseSituations(SituationFinder):
    def _on_lease_written(self, event: LeaseWritten) -> None:
        write, before = event.write, event.before
        is_move = isinstance(write, Take) and before is not None and before.reader != write.worker
        self.met[FOREIGN_TAKE] += is_move and name_of(event.who) in self.scenario.foreign

    def _on_process_exited(self, event: ProcessExited) -> None:
        name = name_of(event.who)
        rows = self.history.rows.values()
        requested = any(row.owner == name and row.checkpoint_owner is not None for row in rows)
        self.met[REQUESTER_GONE] += requested and name in self.scenario.leavers
