"""The effects of the lease coordinator: plain values. An effect whose docstring names no answer has none.

Every call but `WriteLease` and `LeaveFleet` is answered by `CallFailed` if it fails.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.core.leases.coordinator_events import ListingPurpose
from penstock.core.leases.kcl3_fleet import FleetRefusal
from penstock.core.leases.lease import Lease, TablePart, WorkerRun
from penstock.core.leases.lease_writes import LeaseWrite
from penstock.core.position import Position


class EnsureTable(Struct, frozen=True):
    """Create the lease table if it is missing; answer `TableReady`."""


class ScanTable(Struct, frozen=True):
    """Scan the table; answer `ScanDone`.

    Args:
        part: The part to scan, eventually consistent; None for every row, strongly consistent.
    """

    part: TablePart | None = None


class WriteLease(Struct, frozen=True):
    """Send one conditional write; answer `WriteDone` with the same id.

    Args:
        is_of_held_lease: Whether it is a write of a held lease, such as a renewal, which goes before others, on threads of its own.
        retry_until_s: Monotonic moment after which the write is not sent any more; None for no limit.
    """

    write_id: int
    write: LeaseWrite
    is_of_held_lease: bool = False
    retry_until_s: float | None = None


class FetchLease(Struct, frozen=True):
    """Read one row, strongly consistent; answer `LeaseFetched`."""

    key: str


class FetchFleet(Struct, frozen=True):
    """Read the rows that KCL 3 workers keep beside the leases; answer `FleetFetched`.

    Args:
        workers: Workers whose metrics are read beside the leader's.
    """

    workers: frozenset[str] = frozenset()


class ReportWorker(Struct, frozen=True):
    """Write this worker's metrics for the leader of KCL 3 workers; answer `WorkerReported`.

    Args:
        measures_cpu: Whether to report this worker's processor use, as the Java workers report theirs.
        is_full: This worker has no room for further leases.
    """

    measures_cpu: bool
    is_full: bool


class LeaveFleet(Struct, frozen=True):
    """Delete this worker's metrics; answer `FleetLeft`."""


class FindOwnLeases(Struct, frozen=True):
    """Read the rows that the index lists under this worker's name; answer `OwnLeasesFound`.

    Args:
        known_keys: Leases whose rows are not read, because this worker holds or has requested them.
    """

    known_keys: frozenset[str]


class ListShards(Struct, frozen=True):
    """List shards, every page; answer `ListingDone`.

    Args:
        filter_type: AT_LATEST, AT_TRIM_HORIZON, AT_TIMESTAMP or FROM_TIMESTAMP; None for every shard.
        timestamp_ms: With the last two.
        stream_id: The stream, if several share the table: the shard ids in the answer then have its id as a prefix, as lease
            keys have.
    """

    purpose: ListingPurpose
    filter_type: str | None = None
    timestamp_ms: int | None = None
    stream_id: str = ""


class StartReader(Struct, frozen=True):
    """Read a shard and deliver its records; answer `CheckpointRequested` and `ReaderProgress` any number of times.

    The last answer is exactly one of `ShardDrained`, `ReaderFailed`, or `ReaderStopped` after a `StopReader`.

    Args:
        epoch: Identifies this period of ownership; every event about the reader carries it.
        position: The last record that is done, with everything before it; or a starting sentinel.
        deliver_until_s: No delivery begins at or after this monotonic moment, until `ExtendDelivery` moves it.
            The delivering thread must check the clock itself: a worker that was paused gets no message in time.
    """

    key: str
    epoch: int
    position: Position
    lease: Lease
    deliver_until_s: float


class ExtendDelivery(Struct, frozen=True):
    """Move the deadline of a reader's deliveries, because its lease was renewed."""

    key: str
    epoch: int
    deliver_until_s: float


class StopWhy(Enum):
    """Why a reader stops."""

    LOST = "another worker has the lease, or its row is gone"
    EXPIRED = "the lease could not be renewed in time"
    HANDOVER = "another worker asked for it"
    SHUTDOWN = "the worker stops"
    SURPLUS = "the worker has more leases than max_leases"


class StopReader(Struct, frozen=True):
    """Deliver nothing new, finish deliveries in progress, answer `ReaderStopped`.

    After LOST and EXPIRED the reader should stop as soon as it can: another worker may read now.
    """

    key: str
    epoch: int
    why: StopWhy


class CheckpointWritten(Struct, frozen=True):
    """Report that a requested checkpoint is durable."""

    key: str
    epoch: int
    position: Position


class AuditReaders(Struct, frozen=True):
    """List the readers that have not stopped; answer `ReadersFound` at once, before any other event."""


class Level(Enum):
    """The log level of a report."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Topic(Enum):
    """The subject of a report; a bounded set, so it can be a metric's label."""

    TAKEN = "lease taken"
    LOST = "lease lost"
    RELEASED = "lease released"
    HANDED_OVER = "lease handed over"
    ENDED = "shard ended"
    CREATED = "lease created"
    DELETED = "lease deleted"
    LATE_RENEWALS = "leases renewed late"
    READ_BACK = "an answer was lost and read back"
    HOLE = "hole in the hash range"
    ROW_SKIPPED = "row skipped"
    ROW_DAMAGED = "row damaged"
    ROW_GONE = "row deleted while held"
    TABLE_GONE = "lease table deleted"
    STALLED = "no progress"
    STOPPED_SHARD = "shard stopped"
    AUDIT = "held leases and readers disagree"
    CALL_FAILED = "call failed"
    CALLS_WORK = "calls work again"
    SHARD_VANISHED = "shard vanished"
    FLEET = "who assigns leases"
    CHECKPOINT_BEHIND = "checkpoint behind the table's"
    SHUTDOWN = "shutdown"


class Report(Struct, frozen=True):
    """A message for the log, counted as a metric.

    Args:
        key: The lease it is about, or None.
        reason: The decision's reason as a short bounded word, for metrics (`expired`, `unowned`, ...).
    """

    topic: Topic
    level: Level
    message: str
    key: str | None = None
    reason: str = ""


class ForeignLease(Struct, frozen=True):
    """A row of a lease table that belongs to another stream.

    Args:
        why: The evidence, as a clause for a message.
        is_of_other_mode: The row is of an application that reads several streams while this one reads one, or the other way
            round.
    """

    key: str
    why: str
    is_of_other_mode: bool = False


class TableRefused(Struct, frozen=True):
    """The lease table belongs to another stream: this worker takes no more leases, and stops."""

    foreign_lease: ForeignLease


class LaterRun(Struct, frozen=True):
    """A living process that began later than this one, under the same worker id.

    Args:
        key: A lease that the later process renews.
    """

    key: str
    run: WorkerRun
    own_run: WorkerRun


class WorkerIdTaken(Struct, frozen=True):
    """Another living process runs under this worker's id and began later: this worker stops."""

    later_run: LaterRun


class FleetRefused(Struct, frozen=True):
    """This worker cannot work beside the KCL 3 workers of the table: it stops.

    Args:
        detail: The unknown state, or the service's message.
    """

    why: FleetRefusal
    detail: str


class Stopped(Struct, frozen=True):
    """The machine has stopped: every reader has stopped, and every lease is released as far as possible."""


Effect: TypeAlias = (
    EnsureTable
    | ScanTable
    | WriteLease
    | FetchLease
    | FetchFleet
    | ReportWorker
    | LeaveFleet
    | FindOwnLeases
    | ListShards
    | StartReader
    | ExtendDelivery
    | StopReader
    | CheckpointWritten
    | AuditReaders
    | Report
    | TableRefused
    | FleetRefused
    | WorkerIdTaken
    | Stopped
)


_GOLDEN: Final = 0.6180339887498949  # steps by it spread evenly over [0, 1)


class Turn:
    """The effects and the random numbers of one `Coordinator.handle`, shared by the coordinator's parts. Not thread-safe."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self._chance = 0.5

    def begin(self, chance: float) -> None:
        """Drop the effects of the last turn, and begin the next one with a fresh number in [0, 1)."""
        self.effects = []
        self._chance = chance

    def draw(self) -> float:
        """Return the turn's next random number in [0, 1); all are derived from the first one."""
        self._chance = (self._chance + _GOLDEN) % 1.0
        return self._chance

    def jittered(self, mean_s: float, share: float) -> float:
        """Return a random duration within `share` (0.1: a tenth) of the mean, so that workers do not act together."""
        return mean_s * (1 - share + 2 * share * self.draw())

    def emit(self, effect: Effect) -> None:
        """Add an effect to those that this turn returns."""
        self.effects.append(effect)

    def report(
        self, topic: Topic, level: Level, message: str, key: str | None = None, reason: str = ""
    ) -> None:
        """Emit a report for the log and the metrics."""
        self.emit(Report(topic, level, message, key, reason))
