"""The events of the lease coordinator: plain values."""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.core.leases.kcl3_fleet import Kcl3Rows
from penstock.core.leases.lease import Lease, SeenClaim, TablePart, TipMark
from penstock.core.leases.lease_writes import Applied, LeaseWrite, Refused
from penstock.core.position import Position
from penstock.core.shard import ChildShard, Shard


class Problem(Enum):
    """The failure of a call that certainly had no effect."""

    THROTTLED = "throttled"
    UNAVAILABLE = "unavailable"
    TABLE_MISSING = "the lease table does not exist"
    STREAM_MISSING = "the stream does not exist"
    REFUSED = "refused for good (access, or a wrong request)"


class LeaseCall(Enum):
    """A kind of call about leases, as messages name it."""

    ENSURE = "creating or finding the lease table"
    SCAN = "scanning the lease table"
    FETCH = "reading leases"
    LIST = "listing the shards"
    CREATE = "creating leases"
    TAKE = "taking leases"
    ASK = "asking for leases"
    RENEW = "renewing leases"
    CHECKPOINT = "writing checkpoints"
    END = "finishing leases"
    RELEASE = "releasing leases"
    DELETE = "deleting leases"
    FETCH_FLEET = "reading the rows of KCL 3 workers"
    REPORT = "reporting this worker's metrics to the leader"
    FIND_OWN = "finding this worker's leases by the index"


class CallFailed(Struct, frozen=True):
    """The answer to a call that failed. A failed `WriteLease` is answered by `WriteDone` instead.

    Args:
        detail: The error's text, if there is one.
        key: The call's lease; None if the call was not about one lease.
        stream_id: The stream of a listing, if the table has several streams; else empty.
    """

    call: LeaseCall
    problem: Problem
    detail: str = ""
    key: str | None = None
    stream_id: str = ""

    @property
    def kind(self) -> tuple[LeaseCall, str]:
        """The call and its stream: the failures of one kind are counted together."""
        return (self.call, self.stream_id)


class Tick(Struct, frozen=True):
    """Time has passed. The shell sends one at `Coordinator.next_wake_s`; further ones do no harm."""


class TableReady(Struct, frozen=True):
    """The lease table exists and is usable.

    Args:
        row_count: Its number of rows, as the service estimates it.
    """

    row_count: int = 0


class ScanDone(Struct, frozen=True):
    """Every row of the table, or of a part of it.

    Args:
        skipped_rows: Key and reason of each row that is not a lease, or cannot be read as one.
        began_s: Monotonic seconds when the scan began, on the clock of `handle`.
    """

    leases: tuple[Lease, ...]
    skipped_rows: tuple[tuple[str, str], ...] = ()
    began_s: float | None = None
    part: TablePart | None = None

    @property
    def is_whole_table(self) -> bool:
        """Whether every row of the table is here."""
        return self.part is None or self.part.is_whole_table


class Unknown(Enum):
    """The outcome of a write that was sent and not answered: it may have been applied, or may be applied later."""

    UNKNOWN = "sent, no answer"


UNKNOWN: Final = Unknown.UNKNOWN


class NotDone(Struct, frozen=True):
    """The write certainly did not happen."""

    problem: Problem
    detail: str = ""


WriteOutcome: TypeAlias = Applied | Refused | NotDone | Unknown


def row_of(outcome: WriteOutcome) -> Lease | None:
    """Return the row in an answer, or None if it has none."""
    if isinstance(outcome, Applied):
        return outcome.lease
    return outcome.row if isinstance(outcome, Refused) else None


class WriteDone(Struct, frozen=True):
    """The answer to a `WriteLease`.

    Args:
        detail: With `UNKNOWN`: the last error.
    """

    write_id: int
    write: LeaseWrite
    outcome: WriteOutcome
    detail: str = ""


class LeaseFetched(Struct, frozen=True):
    """The answer to a `FetchLease`; `lease` is None if the row does not exist."""

    key: str
    lease: Lease | None


class FleetFetched(Struct, frozen=True):
    """The answer to a `FetchFleet`.

    Args:
        wall_s: When the rows were read, by the service's clock in seconds since the epoch: the metrics in them have such times.
    """

    rows: Kcl3Rows
    wall_s: float


class WorkerReported(Struct, frozen=True):
    """The answer to a `ReportWorker`: the metrics are written."""


class FleetLeft(Struct, frozen=True):
    """The answer to a `LeaveFleet`, however it ended."""


class OwnLeasesFound(Struct, frozen=True):
    """The answer to a `FindOwnLeases`: the rows of this worker's leases that are not among its `known_keys`."""

    leases: tuple[Lease, ...]


class ListingPurpose(Enum):
    """The purpose of a listing."""

    FIRST_LEASES = "the table is empty"
    FILL_HOLE = "a part of the hash range has no unfinished lease"
    COMPARE = "leases that do not name their stream are compared with its shards"
    FIND_VANISHED = "ended leases wait for their shards to vanish"


class ListingDone(Struct, frozen=True):
    """Every page of a `ListShards`.

    Args:
        moment_ms: The service's clock at the answer; the local wall clock if the answer has none.
    """

    purpose: ListingPurpose
    shards: tuple[Shard, ...]
    moment_ms: int
    stream_id: str = ""


class CheckpointRequested(Struct, frozen=True):
    """Everything up to and including `position` is done.

    Args:
        urgent: True writes the checkpoint now, False with the next renewal.
    """

    key: str
    epoch: int
    position: Position
    urgent: bool = False


class ReaderProgress(Struct, frozen=True):
    """The progress of a reader, for the stall watchdog and `throughputKBps`.

    Args:
        progress_text: A text that changes when the shard advances: reading, or delivery while it has records.
        millis_behind_latest: The last known lag, or None.
        throughput_kbps: Kilobytes per second delivered since the previous event of this kind.
        tip: The last position at which the reader was at the tip, and when; written with the next renewal.
    """

    key: str
    epoch: int
    progress_text: str
    millis_behind_latest: int | None = None
    throughput_kbps: float | None = None
    tip: TipMark | None = None


class ShardDrained(Struct, frozen=True):
    """The shard is closed, read to its end, and everything in it is done. The reader has stopped by itself.

    Args:
        position: The last done record: the checkpoint until SHARD_END can be written. None if no record was read.
    """

    key: str
    epoch: int
    children: tuple[ChildShard, ...]
    position: Position | None = None


class ReaderStopped(Struct, frozen=True):
    """The answer to `StopReader`: nothing is delivered any more.

    Args:
        position: Everything up to and including it is done; None when nothing was done beyond the start.
        tip: As in `ReaderProgress`.
        seen_claim: The claim that a query's reader saw last. If the lease is lost, its last position is written only while
            the row has this claim.
    """

    key: str
    epoch: int
    position: Position | None
    tip: TipMark | None = None
    seen_claim: SeenClaim | None = None


class ReaderFailed(Struct, frozen=True):
    """Reading or handling failed for good, and the reader has stopped by itself.

    Args:
        position: As in `ReaderStopped`.
        release: True frees the lease for another worker; False keeps it, stopped and reported, so that a
            poisonous record does not travel through the fleet.
        short_reason: One short line that the lease shows while it is held and not read.
    """

    key: str
    epoch: int
    position: Position | None
    reason: str
    release: bool = False
    short_reason: str = "failed"


class ReadersFound(Struct, frozen=True):
    """The answer to `AuditReaders`: key and epoch of every reader that has not stopped."""

    readers: frozenset[tuple[str, int]]


class StopRequested(Struct, frozen=True):
    """Begin a graceful stop: finish deliveries, checkpoint and release every lease within `shutdown_timeout_s`."""


FleetEvent: TypeAlias = FleetFetched | WorkerReported | FleetLeft | OwnLeasesFound | CallFailed
"""Answers to the effects about KCL 3 workers."""
Event: TypeAlias = (
    Tick
    | TableReady
    | ScanDone
    | WriteDone
    | LeaseFetched
    | FleetEvent
    | ListingDone
    | CheckpointRequested
    | ReaderProgress
    | ShardDrained
    | ReaderStopped
    | ReaderFailed
    | ReadersFound
    | StopRequested
)
