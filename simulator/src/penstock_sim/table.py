"""A lease table for the simulator: the rules of `penstock.core.leases.lease_rules`, plus faults of calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import (
    Applied,
    Checkpoint,
    LateCheckpoint,
    LeaseWrite,
    Outcome,
    Refusal,
    Refused,
    Renew,
)

WriteListener: TypeAlias = Callable[[str, LeaseWrite, Lease | None, Lease | None], None]


class Fate(Enum):
    """The way of a write to the lease table, as only a simulator knows it."""

    ANSWERED = "applied, and the worker has the answer"
    SILENT = "applied, and the worker has no answer, or a refusal"
    SENT = "neither applied nor answered yet"
    ARRIVED = "applied after the worker gave up waiting for the answer"


class TableCall(NamedTuple):
    """One write at the lease table."""

    place: int  # entries of the history before it
    at_s: float  # when the table decided it
    who: str
    write: LeaseWrite
    fate: Fate
    before: Lease | None = None  # the row before it; None without a row
    after: Lease | None = None  # the row after it; None without a row, and for a write that is only sent


class SimTable:
    """Rows by key. The listener gets every applied write, with the row before and after.

    Args:
        met: Refusals are counted in it, by write and reason.
    """

    def __init__(self, listener: WriteListener, met: Counter[str]) -> None:
        self.rows: dict[str, Lease] = {}
        self.exists = False
        self.foreign: set[str] = set()
        """Workers that do not write Penstock's own attributes, such as Java KCL workers."""
        self.without_handover: set[str] = set()
        """Workers that neither request hand-overs nor answer such requests, such as Java KCL 2.x workers."""
        self._listener = listener
        self._met = met
        self._snapshots: list[tuple[float, tuple[Lease, ...]]] = []

    def write(self, who: str, write: LeaseWrite) -> Outcome:
        before = self.rows.get(write.key)
        name = who.partition("#")[0]
        if before is not None and name in self.without_handover:
            outcome = _keep_request(before, write, self.decide(without_request(before), write))
        else:
            outcome = self.decide(before, write)
        if isinstance(outcome, Refused):
            self._met[f"refusal: {outcome.reason.name} of {type(write).__name__}"] += 1
        elif name in self.foreign:
            outcome = _without_our_attributes(before, outcome)
        if isinstance(outcome, Applied):
            if outcome.lease is None:
                self.rows.pop(write.key, None)
            else:
                self.rows[write.key] = outcome.lease
            self._listener(who, write, before, outcome.lease)
        return outcome

    def decide(self, before: Lease | None, write: LeaseWrite) -> Outcome:
        """Apply the rule; a planted bug replaces this."""
        return apply_write(before, write)

    def refuse(self, write: LeaseWrite) -> Refused:
        """Refuse a write without a reason, as a service may after one of its answers was lost."""
        return Refused(Refusal.COUNTER, self.rows.get(write.key))

    def remember(self, now_s: float) -> None:
        """Keep the rows of this moment for stale reads."""
        self._snapshots.append((now_s, tuple(self.rows.values())))
        del self._snapshots[:-20]

    def stale_rows(self, now_s: float, choice: float) -> tuple[Lease, ...]:
        """Return rows as they were up to two seconds ago, as eventually consistent reads do."""
        recent = [rows for at_s, rows in self._snapshots if at_s >= now_s - 2.0]
        return recent[int(choice * len(recent))] if recent else tuple(self.rows.values())

    def drop(self) -> None:
        self.rows.clear()
        self._snapshots.clear()
        self.exists = False


def without_request(lease: Lease) -> Lease:
    """Return a row as a worker without hand-overs reads it: its owner is the worker that still reads the shard."""
    if lease.checkpoint_owner is None:
        return lease
    return replace(lease, owner=lease.checkpoint_owner, checkpoint_owner=None)


def _keep_request(before: Lease, write: LeaseWrite, outcome: Outcome) -> Outcome:
    """Return the outcome with the hand-over request still in the row, if the write does not touch it."""
    if not isinstance(outcome, Applied) or outcome.lease is None or before.checkpoint_owner is None:
        return outcome
    if not isinstance(write, Renew | Checkpoint | LateCheckpoint):
        return outcome
    return Applied(replace(outcome.lease, owner=before.owner, checkpoint_owner=before.checkpoint_owner))


def _without_our_attributes(before: Lease | None, outcome: Applied) -> Applied:
    """Return the row after a write of only the KCL's attributes; the others stay as they were."""
    lease = outcome.lease
    if lease is None:
        return outcome
    if before is None:
        return Applied(replace(lease, stream=None))
    return Applied(replace(lease, mark=before.mark, stream=before.stream, stop_note=before.stop_note))
