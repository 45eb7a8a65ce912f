"""What comes out of the lease coordinator: effects, all plain values, to be done in the order in which they are returned.

The table in the docstring of `penstock.core.leases.coordinator` says which event answers each.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from penstock.core.leases.coordinator_events import ListingPurpose
from penstock.core.leases.foreign_lease import ForeignLease
from penstock.core.leases.kcl3_fleet import FleetRefusal
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import LeaseWrite
from penstock.core.leases.table_part import TablePart
from penstock.core.leases.twin_watch import Twin
from penstock.core.position import Position


class EnsureTable(Struct, frozen=True):
    """Create the lease table where it is missing; answer `TableReady` or `TableFailed`."""


class ScanTable(Struct, frozen=True):
    """Read rows; answer `ScanDone` or `ScanFailed`.

    Args:
        part: Which, eventually consistent; None for every row, strongly consistent.
    """

    part: TablePart | None = None


class WriteLease(Struct, frozen=True):
    """Do one conditional write; answer `WriteDone` with the same id.

    Args:
        is_heartbeat: Renewals and what else keeps a lease alive: before all other writes, on threads of its own.
        retry_until_s: Monotonic moment after which retrying this write inside the adapter makes no sense.
    """

    write_id: int
    write: LeaseWrite
    is_heartbeat: bool = False
    retry_until_s: float | None = None


class FetchLease(Struct, frozen=True):
    """Read one row, strongly consistent; answer `LeaseFetched` or `FetchFailed`."""

    key: str


class FetchFleet(Struct, frozen=True):
    """Read what KCL 3 workers keep beside the leases; answer `FleetFetched` or `FleetFetchFailed`.

    Args:
        workers: Whose reports are wanted beside the leader's.
    """

    workers: frozenset[str] = frozenset()


class ReportWorker(Struct, frozen=True):
    """Report this worker's metrics to the leader of KCL 3 workers; answer `WorkerReported`.

    Args:
        measures_cpu: Whether the others report how busy their processors are.
        is_full: This worker wants no more leases.
    """

    measures_cpu: bool
    is_full: bool


class LeaveFleet(Struct, frozen=True):
    """Take this worker's report back; answer `FleetLeft`."""


class FindOwnLeases(Struct, frozen=True):
    """Find the leases of this worker by the index, and read those that it does not know of.

    Answer `OwnLeasesFound` or `OwnLeasesNotFound`.

    Args:
        known: Keys that need not be read.
    """

    known: frozenset[str]


class ListShards(Struct, frozen=True):
    """List shards, every page; answer `ListingDone` or `ListingFailed`.

    Args:
        filter_type: AT_LATEST, AT_TRIM_HORIZON, AT_TIMESTAMP, or None for everything.
        timestamp_ms: With AT_TIMESTAMP.
        stream_id: Whose, where several streams share the table: the answer's ids are lease keys then.
    """

    purpose: ListingPurpose
    filter_type: str | None = None
    timestamp_ms: int | None = None
    stream_id: str = ""


class StartReader(Struct, frozen=True):
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


class ExtendDelivery(Struct, frozen=True):
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


class StopReader(Struct, frozen=True):
    """Deliver nothing new, finish what is in hand, answer `ReaderStopped`.

    For LOST and EXPIRED nothing in hand should be waited for longer than needed: another worker may read now.
    """

    key: str
    epoch: int
    why: StopWhy


class CheckpointWritten(Struct, frozen=True):
    """A requested checkpoint is durable."""

    key: str
    epoch: int
    position: Position


class AuditReaders(Struct, frozen=True):
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


class Report(Struct, frozen=True):
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


class TableRefused(Struct, frozen=True):
    """The lease table belongs to another stream: this worker stops, and has taken nothing since it saw that."""

    foreign: ForeignLease


class WorkerIdTaken(Struct, frozen=True):
    """Another living process works under this worker's id and began later: this worker stops."""

    twin: Twin


class FleetRefused(Struct, frozen=True):
    """This worker may not stand beside the KCL 3 workers of the table: it stops.

    Args:
        why: What is in the way.
        detail: The state that is not known, or what the service said.
    """

    why: FleetRefusal
    detail: str


class Stopped(Struct, frozen=True):
    """The machine has stopped: every reader has, and what could be released is."""


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
