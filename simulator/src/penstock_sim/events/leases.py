"""Events of the lease table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import (
    Checkpoint,
    Claim,
    Create,
    Delete,
    End,
    LateCheckpoint,
    LeaseWrite,
    Promote,
    Release,
    RequestHandover,
    Reset,
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

    def shards(self) -> set[str]:
        return {self.write.key}

    def describe(self) -> str:
        """Return the write in plain words; renewals have none."""
        describe = _DESCRIPTIONS.get(type(self.write))
        return "" if describe is None else describe(self.who, self.write, self.before, self.after)

    def __str__(self) -> str:
        after = self.after
        row = (
            ""
            if after is None
            else f"{after.owner} {after.checkpoint_owner} {after.counter} {after.checkpoint}"
        )
        return f"LeaseWritten|{self.who}|{self.kind}|{self.write.key}|{row}"


_DESCRIPTIONS: Final[dict[type, Callable[[str, Any, Any, Any], str]]] = {
    Take: lambda who, write, before, after: (
        f"{who} takes {write.key} from {before.reader or 'no owner'} at {after.checkpoint}"
    ),
    RequestHandover: lambda who, write, before, _: f"{who} requests {write.key} from {before.reader}",
    Checkpoint: lambda who, write, *_: f"{who} moves the checkpoint of {write.key} to {write.position}",
    LateCheckpoint: lambda who, write, *_: (
        f"{who} moves the checkpoint of {write.key} late to {write.position}"
    ),
    Release: lambda who, write, _, after: f"{who} releases {write.key} at {after.checkpoint}",
    Create: lambda who, write, _, after: f"{who} creates the lease of {write.key} at {after.checkpoint}",
    End: lambda who, write, *_: f"{who} ends {write.key}",
    Delete: lambda who, write, *_: f"{who} deletes the finished lease of {write.key}",
    Reset: lambda who, write, *_: f"{who} resets {write.key} to {write.position}",
    Claim: lambda who, write, *_: (
        f"{who} claims {write.key} for batch {write.claim.batch}, from {write.claim.start} to {write.claim.end}"
    ),
    Promote: lambda who, write, *_: (
        f"{who} makes the claim of batch {write.batch} the checkpoint of {write.key}, {write.position}"
    ),
}


class LeaseDeleted(Event, frozen=True):
    story: ClassVar = "a user deletes the lease of {key}, read by {reader}"
    key: str
    reader: str | None
    meets: ClassVar = "fault: row_deletions_per_min"


class TableDropped(Event, frozen=True):
    story: ClassVar = "a user deletes the lease table"
    meets: ClassVar = "fault: table_drops_per_min"
    concerns_all: ClassVar = True


class LeaseSituations(SituationFinder):
    """Finds moves of leases that workers of several kinds make."""

    def _on_lease_written(self, event: LeaseWritten) -> None:
        write, before = event.write, event.before
        is_move = isinstance(write, Take) and before is not None and before.reader != write.worker
        self.met[FOREIGN_TAKE] += is_move and name_of(event.who) in self.scenario.foreign

    def _on_process_exited(self, event: ProcessExited) -> None:
        name = name_of(event.who)
        rows = self.history.rows.values()
        requested = any(row.owner == name and row.checkpoint_owner is not None for row in rows)
        self.met[REQUESTER_GONE] += requested and name in self.scenario.leavers
