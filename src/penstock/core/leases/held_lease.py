"""One lease in a worker's hands, and where it stands. What is done with it is decided in `penstock.core.leases.held_leases`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.core.leases.lease import Lease, LeaseWrite, TipMark
from penstock.core.position import Position
from penstock.core.shard import ChildShard


class LeasePhase(Enum):
    """Where a held lease stands."""

    WAITING = "its parents are unfinished, or an earlier reader has not stopped yet"
    READING = "a reader delivers its records"
    STOPPING = "the reader is asked to stop"
    STOPPED = "the reader has stopped; to be released"
    DRAINED = "read to its end; children to be created, then the end written"
    PARKED = "its handler failed for good; held, so that nobody else fails on it"


@dataclass(slots=True)
class HeldLease:
    """One lease in this worker's hands."""

    key: str
    epoch: int
    lease: Lease
    renewed_s: float
    renew_due_s: float
    phase: LeasePhase = LeasePhase.WAITING
    wanted: Position | None = None
    urgent: bool = False
    doubtful: LeaseWrite | None = None  # what was sent, while it is read back
    fetching: bool = False
    first_sent_s: float | None = None  # when the first write with the present counter was sent
    retry_s: float = 0.0
    failures: int = 0
    children: tuple[ChildShard, ...] = ()
    to_create: dict[str, Lease] | None = None
    child_retry_s: float = 0.0
    progress: str = ""
    progress_s: float = 0.0
    behind_ms: int | None = None
    throughput_kbps: float | None = None
    unseen_audits: int = 0
    stopped_reason: str | None = None
    tip: TipMark | None = None
    due_s: float = float("inf")

    @property
    def ahead(self) -> Position | None:
        """What is done beyond the row's checkpoint, or None."""
        wanted = self.wanted
        if wanted is None or not wanted.is_record or wanted <= self.lease.checkpoint:
            return None
        return wanted

    def want(self, position: Position | None) -> None:
        """Take in that everything up to a position is done; the furthest word counts."""
        if position is not None and position.is_record and (self.wanted is None or self.wanted < position):
            self.wanted = position

    def is_written(self, row: Lease) -> bool:
        """Whether a row holds all that is done. A robber's take looks like a release, but for the last checkpoint."""
        return self.wanted is None or not self.wanted.is_record or self.wanted <= row.checkpoint

    def tip_at(self, position: Position) -> TipMark | None:
        """Return when nothing was left behind a position, as far as the reader has told.

        What came behind a position came later than the moment at which nothing was left there: the moment holds for
        every later position too.
        """
        tip = self.tip
        if tip is None or not position.is_record or position < tip.position:
            return None
        return TipMark(position, tip.tip_ms)

    @property
    def has_reader(self) -> bool:
        """Whether a reader was started and has not said that it stopped."""
        return self.phase in (LeasePhase.READING, LeasePhase.STOPPING)
