"""What goes into the lease coordinator and what comes out: events, effects and options, all plain values.

The machine itself is `penstock.core.leases.coordinator.Coordinator`; its module docstring has the table of events and
effects. The consumer's runtime and the simulator speak this language; no machine state is visible in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, TypeAlias

from penstock.core.leases.lease import Applied, Lease, LeaseWrite, Refused, TipMark
from penstock.core.position import LATEST, Position
from penstock.core.shard import ChildShard, Shard
from penstock.core.starting import StartingPosition
from penstock.core.stream_identity import ForeignLease, StreamIdentity
from penstock.errors import OptionError

# --- options --------------------------------------------------------------------------------------------


class BalancePolicy(Enum):
    """How leases are shared between workers."""

    EVEN = "even"
    """The same number of leases for every worker."""
    BY_THROUGHPUT = "by_throughput"
    """The same kilobytes per second, as far as whole shards allow."""
    BY_ZONE = "by_zone"
    """First the same number for every zone (`zone/name` worker ids), then even within each zone."""
    KCL2 = "kcl2"
    """The rule of the Java KCL 2.x lease taker, exactly."""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """How one worker coordinates.

    Args:
        lease_duration_s: A lease whose counter stands still for so long is free for anybody. The same for all
            workers of an application.
        delivery_margin_s: Delivery stops this long before others could see the lease as expired; it pays for
            clocks that run at different speeds. None: a tenth of the lease duration.
        round_interval_s: Mean time between two scans of the lease table. None: 0.8 of the lease duration. It is
            stretched in very large fleets, see `scanned_rows_per_s_max`.
        scanned_rows_per_s_max: Rows that all workers together may read per second by scanning; rounds become
            rarer rather than costs higher.
        policy: Who gets how many leases.
        max_leases: This worker holds at most so many unfinished leases. None: no limit.
        leases_to_acquire: At most so many takes and hand-overs are begun per round. None: the whole share.
        handover: Ask live owners to finish before their leases move; False takes them as KCL 2.x does.
        handover_timeout_s: How long a hand-over may last before the lease is taken.
        handover_poll_s: Mean time between two looks at a lease that is being handed over.
        keeps_claims: This worker's batches claim their ends on the leases, as a Spark query's do. A heartbeat then never
            writes a checkpoint, which would end a claim; and leases that were being handed over when the worker ended are
            taken up again, since the batch that was under way is repeated first.
        stream: The stream whose shards are shared: leases of another one are refused. None compares nothing.
        start: Where shards start when the application starts for the first time.
        cold_start_jitter_s: On an empty table each worker waits up to so long before it lists the shards.
        hole_confidence_rounds: A hole in the hash range must be seen in so many rounds in a row before it is
            filled.
        cleanup: Delete leases of finished shards whose children are all under way.
        garbage_interval_s: Time between two listings that look for leases of vanished shards.
        shutdown_timeout_s: How long a graceful stop may last.
        stall_after_s: A shard that is behind and makes no progress for so long is reported.
        writes_in_flight_max: Lease writes that may be under way at once, renewals not counted.

    Raises:
        OptionError: A value is out of its range; the message names it and the range.
    """

    lease_duration_s: float = 10.0
    delivery_margin_s: float | None = None
    round_interval_s: float | None = None
    scanned_rows_per_s_max: float = 100_000.0
    policy: BalancePolicy = BalancePolicy.EVEN
    max_leases: int | None = None
    leases_to_acquire: int | None = None
    handover: bool = True
    handover_timeout_s: float = 30.0
    handover_poll_s: float = 1.5
    keeps_claims: bool = False
    stream: StreamIdentity | None = None
    start: StartingPosition = field(default_factory=lambda: StartingPosition(default=LATEST))
    cold_start_jitter_s: float = 5.0
    hole_confidence_rounds: int = 3
    cleanup: bool = True
    garbage_interval_s: float = 1800.0
    shutdown_timeout_s: float = 30.0
    stall_after_s: float = 300.0
    writes_in_flight_max: int = 50

    def __post_init__(self) -> None:
        if not 1 <= self.lease_duration_s <= 3600:
            raise OptionError(f"lease_duration_s={self.lease_duration_s}: expected 1 to 3600")
        if not 0 < self.margin_s <= self.lease_duration_s / 3:
            raise OptionError(
                f"delivery_margin_s={self.delivery_margin_s}: expected more than 0 and at most a third of "
                f"lease_duration_s={self.lease_duration_s}"
            )
        if not 0 < self.interval_s <= 100 * self.lease_duration_s:
            raise OptionError(
                f"round_interval_s={self.round_interval_s}: expected more than 0 and at most 100 times "
                f"lease_duration_s={self.lease_duration_s}"
            )
        self._check_signs()

    def own(self, lease: Lease) -> Lease:
        """Return a lease that is to be created, marked as one of this stream's."""
        return lease if self.stream is None else replace(lease, stream=self.stream)

    def _check_signs(self) -> None:
        for name in (
            "scanned_rows_per_s_max",
            "handover_timeout_s",
            "handover_poll_s",
            "garbage_interval_s",
            "shutdown_timeout_s",
            "stall_after_s",
        ):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name}={getattr(self, name)}: expected more than 0")
        if self.cold_start_jitter_s < 0:
            raise OptionError(f"cold_start_jitter_s={self.cold_start_jitter_s}: expected 0 or more")
        for name in ("max_leases", "leases_to_acquire"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name}={value}: expected at least 1, or None for no limit")
        for name in ("hole_confidence_rounds", "writes_in_flight_max"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}={getattr(self, name)}: expected at least 1")

    @property
    def margin_s(self) -> float:
        """Seconds between the end of delivery and the earliest moment another worker may take."""
        return self.lease_duration_s / 10 if self.delivery_margin_s is None else self.delivery_margin_s

    @property
    def renew_interval_s(self) -> float:
        """Seconds between two renewals."""
        return self.lease_duration_s / 3

    @property
    def interval_s(self) -> float:
        """Mean seconds between two rounds in a fleet of ordinary size."""
        return 0.8 * self.lease_duration_s if self.round_interval_s is None else self.round_interval_s


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
    """The lease table exists and is usable."""


@dataclass(frozen=True, slots=True)
class TableFailed:
    """The lease table could not be made ready."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class ScanDone:
    """Every row of the table.

    Args:
        leases: As read.
        skipped: (key, reason) of rows that are no leases, or broken ones.
        began_s: Monotonic seconds when the scan began, on the clock of `handle`.
    """

    leases: tuple[Lease, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    began_s: float | None = None


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


@dataclass(frozen=True, slots=True)
class WriteDone:
    """The answer to a `WriteLease`."""

    write_id: int
    write: LeaseWrite
    outcome: Applied | Refused | NotDone | Unknown


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


Event: TypeAlias = (
    Tick
    | TableReady
    | TableFailed
    | ScanDone
    | ScanFailed
    | WriteDone
    | LeaseFetched
    | FetchFailed
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
    """Read every row; answer `ScanDone` or `ScanFailed`."""


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
    """Say which readers live; answer `ReadersFound` at once, before any other event."""


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
class Stopped:
    """The machine has stopped: every reader has, and what could be released is."""


Effect: TypeAlias = (
    EnsureTable
    | ScanTable
    | WriteLease
    | FetchLease
    | ListShards
    | StartReader
    | ExtendDelivery
    | StopReader
    | CheckpointStands
    | AuditReaders
    | Report
    | TableRefused
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
