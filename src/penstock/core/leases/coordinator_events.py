"""What goes into the lease coordinator and what comes out: events and effects, all plain values.

The machine itself is `penstock.core.leases.coordinator.Coordinator`; its module docstring has the table of events and
effects. The consumer's runtime and the simulator speak this language; no machine state is visible in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from penstock.core.leases.foreign_lease import ForeignLease
from penstock.core.leases.kcl3_fleet import Kcl3Rows
from penstock.core.leases.lease import Lease, TipMark
from penstock.core.leases.lease_writes import Applied, LeaseWrite, Refused
from penstock.core.leases.table_part import TablePart
from penstock.core.position import Position
from penstock.core.shard import ChildShard, Shard

# --- events: what happened ------------------------------------------------------------------------------


class Problem(Enum):
    """Why a call gave no answer, when it is certain that nothing happened."""

    THROTTLED = "throttled"
    UNAVAILABLE = "unavailable"
    TABLE_MISSING = "the lease table does not exist"
    REFUSED = "refused for good (access, or a wrong request)"


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Due at `Coordinator.next_wake_s` at the latest; more often does no harm."""


@dataclass(frozen=True, slots=True)
class TableReady:
    """The lease table exists and is usable.

    Args:
        row_count: How many rows it has, as far as is known without reading it.
    """

    row_count: int = 0


@dataclass(frozen=True, slots=True)
class TableFailed:
    """The lease table could not be made ready."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class ScanDone:
    """Every row of the table, or of a part of it.

    Args:
        leases: As read.
        skipped: (key, reason) of rows that are no leases, or broken ones.
        began_s: Monotonic seconds when the scan began, on the clock of `handle`.
        part: The part that was asked for.
    """

    leases: tuple[Lease, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    began_s: float | None = None
    part: TablePart | None = None

    @property
    def is_whole(self) -> bool:
        """Whether every row of the table is here."""
        return self.part is None or self.part.is_whole


@dataclass(frozen=True, slots=True)
class ScanFailed:
    """The table could not be read."""

    problem: Problem
    detail: str = ""


class Unknown(Enum):
    """The third outcome of a write."""

    UNKNOWN = "sent, no answer"


UNKNOWN: Final = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class NotDone:
    """The write certainly did not happen."""

    problem: Problem
    detail: str = ""


WriteOutcome: TypeAlias = Applied | Refused | NotDone | Unknown


def row_of(outcome: WriteOutcome) -> Lease | None:
    """Return the row that an answer shows, if it shows one."""
    if isinstance(outcome, Applied):
        return outcome.lease
    return outcome.row if isinstance(outcome, Refused) else None


@dataclass(frozen=True, slots=True)
class WriteDone:
    """The answer to a `WriteLease`."""

    write_id: int
    write: LeaseWrite
    outcome: WriteOutcome


@dataclass(frozen=True, slots=True)
class LeaseFetched:
    """The answer to a `FetchLease`; None when the row does not exist."""

    key: str
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A `FetchLease` gave no answer."""

    key: str
    problem: Problem
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FleetSeen:
    """The answer to a `LookAtFleet`.

    Args:
        rows: As read.
        wall_s: Seconds since the epoch when they were read: KCL 3 workers date their reports.
    """

    rows: Kcl3Rows
    wall_s: float


@dataclass(frozen=True, slots=True)
class FleetNotSeen:
    """A `LookAtFleet` gave no answer."""

    problem: Problem
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """The answer to a `ReportWorker`; a problem where it was not written."""

    problem: Problem | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FleetLeft:
    """The answer to a `LeaveFleet`, however it ended."""


@dataclass(frozen=True, slots=True)
class OwnLeasesFound:
    """The answer to a `FindOwnLeases`: rows that name this worker as owner and were not known to."""

    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class OwnLeasesNotFound:
    """A `FindOwnLeases` gave no answer."""

    problem: Problem
    detail: str = ""


class ListingPurpose(Enum):
    """What a listing is for."""

    FIRST_LEASES = "the table is empty"
    FILL_HOLE = "a part of the hash range has no unfinished lease"
    COMPARE = "leases that do not name their stream are compared with its shards"
    FIND_VANISHED = "ended leases wait for their shards to vanish"


@dataclass(frozen=True, slots=True)
class ListingDone:
    """Every page of a `ListShards`.

    Args:
        moment_ms: The service's clock at the answer; the local wall clock where the answer has none.
    """

    purpose: ListingPurpose
    shards: tuple[Shard, ...]
    moment_ms: int


@dataclass(frozen=True, slots=True)
class ListingFailed:
    """A listing gave no answer."""

    purpose: ListingPurpose
    problem: Problem
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """Everything up to and including `position` is done.

    Args:
        urgent: Write it now; else with the next heartbeat.
    """

    key: str
    epoch: int
    position: Position
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class ReaderProgress:
    """How reading goes; feeds the watchdog and `throughputKBps`.

    Args:
        read_through: Anything that changes when reading or delivering moves on.
        millis_behind_latest: As last known, or None.
        throughput_kbps: Kilobytes per second delivered since the last one of these.
        tip: Where nothing was left to read behind what is done, and when; goes to the lease with the next heartbeat.
    """

    key: str
    epoch: int
    read_through: str
    millis_behind_latest: int | None = None
    throughput_kbps: float | None = None
    tip: TipMark | None = None


@dataclass(frozen=True, slots=True)
class ShardDrained:
    """The shard is closed, read to its end, and everything in it is done. The reader has stopped by itself."""

    key: str
    epoch: int
    children: tuple[ChildShard, ...]


@dataclass(frozen=True, slots=True)
class ReaderStopped:
    """The answer to `StopReader`: nothing is delivered any more.

    Args:
        position: Everything up to and including it is done; None when nothing was done beyond the start.
        tip: Where nothing was left to read behind what is done, and when, or None.
    """

    key: str
    epoch: int
    position: Position | None
    tip: TipMark | None = None


@dataclass(frozen=True, slots=True)
class ReaderFailed:
    """Reading or handling failed for good, and the reader has stopped by itself.

    Args:
        position: As in `ReaderStopped`.
        release: True frees the lease for another worker; False keeps it, stopped and reported, so that a
            poisonous record does not travel through the fleet.
        short_reason: What the lease says of it meanwhile: one short line.
    """

    key: str
    epoch: int
    position: Position | None
    reason: str
    release: bool = False
    short_reason: str = "failed"


@dataclass(frozen=True, slots=True)
class ReadersFound:
    """The answer to `AuditReaders`: (key, epoch) of every reader that has not stopped."""

    alive: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Finish what is in hand, checkpoint, release everything, within `shutdown_timeout_s`."""


FleetEvent: TypeAlias = (
    FleetSeen | FleetNotSeen | WorkerReported | FleetLeft | OwnLeasesFound | OwnLeasesNotFound
)
"""What is answered about KCL 3 workers."""
Event: TypeAlias = (
    Tick
    | TableReady
    | TableFailed
    | ScanDone
    | ScanFailed
    | WriteDone
    | LeaseFetched
    | FetchFailed
    | FleetEvent
    | ListingDone
    | ListingFailed
    | CheckpointRequested
    | ReaderProgress
    | ShardDrained
    | ReaderStopped
    | ReaderFailed
    | ReadersFound
    | StopRequested
)


# --- effects: what to do --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnsureTable:
    """Create the lease table where it is missing; answer `TableReady` or `TableFailed`."""


@dataclass(frozen=True, slots=True)
class ScanTable:
    """Read rows; answer `ScanDone` or `ScanFailed`.

    Args:
        part: Which, eventually consistent; None for every row, strongly consistent.
    """

    part: TablePart | None = None


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Do one conditional write; answer `WriteDone` with the same id.

    Args:
        is_heartbeat: Renewals and what else keeps a lease alive: before all other writes, on threads of its own.
        give_up_s: Monotonic moment after which retrying this write inside the adapter makes no sense.
    """

    write_id: int
    write: LeaseWrite
    is_heartbeat: bool = False
    give_up_s: float | None = None


@dataclass(frozen=True, slots=True)
class FetchLease:
    """Read one row, strongly consistent; answer `LeaseFetched` or `FetchFailed`."""

    key: str


@dataclass(frozen=True, slots=True)
class LookAtFleet:
    """Read what KCL 3 workers keep beside the leases; answer `FleetSeen` or `FleetNotSeen`.

    Args:
        workers: Whose reports are wanted beside the leader's.
    """

    workers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReportWorker:
    """Report this worker's metrics to the leader of KCL 3 workers; answer `WorkerReported`.

    Args:
        measures_cpu: Whether the others report how busy their processors are.
        is_full: This worker wants no more leases.
    """

    measures_cpu: bool
    is_full: bool


@dataclass(frozen=True, slots=True)
class LeaveFleet:
    """Take this worker's report back; answer `FleetLeft`."""


@dataclass(frozen=True, slots=True)
class FindOwnLeases:
    """Find the leases of this worker by the index, and read those that it does not know of.

    Answer `OwnLeasesFound` or `OwnLeasesNotFound`.

    Args:
        known: Keys that need not be read.
    """

    known: frozenset[str]


@dataclass(frozen=True, slots=True)
class ListShards:
    """List shards, every page; answer `ListingDone` or `ListingFailed`.

    Args:
        filter_type: AT_LATEST, AT_TRIM_HORIZON, AT_TIMESTAMP, or None for everything.
        timestamp_ms: With AT_TIMESTAMP.
    """

    purpose: ListingPurpose
    filter_type: str | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StartReader:
    """Read a shard and deliver its records.

    Args:
        epoch: Names this ownership; every event about the reader carries it.
        position: Everything up to and including it is done, or a starting sentinel.
        lease: The row as it stands.
        deliver_until_s: No delivery begins at or after this monotonic moment, until `ExtendDelivery` moves it.
            The delivering thread must look itself: a worker that was paused gets no message in time.
    """

    key: str
    epoch: int
    position: Position
    lease: Lease
    deliver_until_s: float


@dataclass(frozen=True, slots=True)
class ExtendDelivery:
    """The lease was renewed: delivery may go on until then."""

    key: str
    epoch: int
    deliver_until_s: float


class StopWhy(Enum):
    """Why a reader stops."""

    LOST = "the lease is another worker's, or its row is gone"
    EXPIRED = "the lease could not be renewed in time"
    HANDOVER = "another worker asked for it"
    SHUTDOWN = "the worker stops"
    SURPLUS = "the worker has more leases than it may"


@dataclass(frozen=True, slots=True)
class StopReader:
    """Deliver nothing new, finish what is in hand, answer `ReaderStopped`.

    For LOST and EXPIRED nothing in hand should be waited for longer than needed: another worker may read now.
    """

    key: str
    epoch: int
    why: StopWhy


@dataclass(frozen=True, slots=True)
class CheckpointStands:
    """A requested checkpoint is durable."""

    key: str
    epoch: int
    position: Position


@dataclass(frozen=True, slots=True)
class AuditReaders:
    """Ask which readers live; answer `ReadersFound` at once, before any other event."""


class Level(Enum):
    """How loud a report is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Topic(Enum):
    """What a report is about; bounded, so it serves as a metric's label."""

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
    SHARD_VANISHED = "shard vanished"
    FLEET = "who assigns leases"
    CHECKPOINT_BEHIND = "checkpoint behind the table's"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class Report:
    """Something that a person, a log or a metric should know.

    Args:
        key: The lease it is about, or None.
        reason: The decision's reason as a short bounded word, for metrics (`expired`, `unowned`, ...).
    """

    topic: Topic
    level: Level
    message: str
    key: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TableRefused:
    """The lease table belongs to another stream: this worker stops, and has taken nothing since it saw that."""

    foreign: ForeignLease


@dataclass(frozen=True, slots=True)
class FleetRefused:
    """Nobody can say whether this worker may take leases beside the Java workers of the table: it stops.

    Args:
        version: Their state, which is not known; empty where it could not be read.
        detail: Why not.
    """

    version: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The machine has stopped: every reader has, and what could be released is."""


Effect: TypeAlias = (
    EnsureTable
    | ScanTable
    | WriteLease
    | FetchLease
    | LookAtFleet
    | ReportWorker
    | LeaveFleet
    | FindOwnLeases
    | ListShards
    | StartReader
    | ExtendDelivery
    | StopReader
    | CheckpointStands
    | AuditReaders
    | Report
    | TableRefused
    | FleetRefused
    | Stopped
)


@dataclass(frozen=True, slots=True)
class CoordinatorStats:
    """Figures for metrics, as of the last round.

    Args:
        total_leases: Unfinished leases in the table.
        ended_leases: Finished ones that are not deleted yet.
        unclaimed_leases: Unfinished ones without a live owner.
        worker_count: Live owners, this worker included.
        held_leases: Held by this worker.
        reading_leases: Held and being read.
        lost_leases: Lost since the start.
        takes: By reason, since the start.
    """

    total_leases: int = 0
    ended_leases: int = 0
    unclaimed_leases: int = 0
    worker_count: int = 1
    held_leases: int = 0
    reading_leases: int = 0
    lost_leases: int = 0
    takes: tuple[tuple[str, int], ...] = ()
