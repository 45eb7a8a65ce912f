"""The shell of the lease coordinator: runs the machine's effects and feeds their results back as events.

The machine (`penstock.core.leases.coordinator`) decides; this loop owns it. Renewals run on threads of their own, so that
neither user code nor a long scan can delay them. Readers are started and stopped through `Readers`, which the delivery loop
implements.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, assert_never

from msgspec import Struct

from penstock.core.leases.coordinator import Coordinator
from penstock.core.leases.coordinator_effects import (
    AuditReaders,
    CheckpointWritten,
    Effect,
    EnsureTable,
    ExtendDelivery,
    FetchFleet,
    FetchLease,
    FindOwnLeases,
    FleetRefused,
    LeaveFleet,
    Level,
    ListShards,
    Report,
    ReportWorker,
    ScanTable,
    StartReader,
    Stopped,
    StopReader,
    TableRefused,
    WorkerIdTaken,
    WriteLease,
)
from penstock.core.leases.coordinator_events import (
    UNKNOWN,
    CallFailed,
    Event,
    LeaseCall,
    LeaseFetched,
    NotDone,
    OwnLeasesFound,
    Problem,
    ReaderFailed,
    ReadersFound,
    ReaderStopped,
    ScanDone,
    ShardDrained,
    TableReady,
    Tick,
    WriteDone,
)
from penstock.core.leases.held_lease import statuses_of
from penstock.core.leases.held_lease_phases import HeldLeaseStatus
from penstock.core.leases.kcl3_fleet import describe_refusal
from penstock.core.leases.lease import TablePart
from penstock.core.leases.lease_writes import (
    Checkpoint,
    End,
    LateCheckpoint,
    Release,
)
from penstock.core.leases.row_checks import describe_foreign_table, describe_later_run
from penstock.core.position import Position
from penstock.core.safe_text import describe_error
from penstock.errors import (
    AccessDenied,
    NotFound,
    OptionError,
    PenstockError,
    Rejected,
    ServiceError,
    UnknownOutcome,
    UnknownRefusal,
    WorkerIdInUse,
)
from penstock.runtime.lease_calls import Kcl3Calls, list_shards, problem_of
from penstock.runtime.loop import Condition, Loop, Pool
from penstock.runtime.stream_name_check import StreamNameCheck
from penstock.runtime.worker_ports import WorkerPorts

log: logging.Logger = logging.getLogger("penstock.leases")

_LEVELS = {
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
}


class Readers(Protocol):
    """The readers of shards. Every method returns at once and may be called from the lease loop's thread."""

    def start_reader(self, effect: StartReader) -> None:
        """Read a shard and deliver its records."""

    def extend_delivery(self, effect: ExtendDelivery) -> None:
        """Move the moment at which delivery must end."""

    def stop_reader(self, effect: StopReader) -> None:
        """Stop a reader; the answer is an event."""

    def on_checkpoint_written(self, key: str, epoch: int, position: Position) -> None:
        """Handle that a checkpoint is stored."""

    def live_readers(self) -> frozenset[tuple[str, int]]:
        """Return (key, epoch) of every reader that has not posted its last event yet."""


class LeaseSnapshot(Struct, frozen=True):
    """The leases that the coordinator holds at one moment.

    Args:
        held_leases: Every lease that this worker holds.
        table_scanned_s: When the table, or the watched part of it, was last scanned, monotonic; None before the first scan.
        round_s: Mean time between two such scans.
        failing_calls: The calls about leases that keep failing, a sentence each.
        damaged_leases: The leases whose rows cannot be read, a sentence each.
    """

    held_leases: tuple[HeldLeaseStatus, ...]
    table_scanned_s: float | None
    round_s: float
    failing_calls: tuple[str, ...] = ()
    damaged_leases: tuple[str, ...] = ()


_READER_ENDS = (ShardDrained, ReaderStopped, ReaderFailed)

Answer: TypeAlias = Callable[[], Event]


class LeaseLoop(Loop[Event]):
    """Owns the coordinator machine.

    Args:
        streams: Name or ARN of each stream by its id; the id is empty if the table has only one stream.
        renewal_pool: The threads for renewals and nothing else.
        call_pool: The threads for every other call.
        table_option: The user's option that names the lease table.
        condition: The condition on which the loop's thread waits; None makes one.
        name_checks: By stream id: checks whether the stream's name still means it. Other streams are not checked.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        streams: Mapping[str, str],
        ports: WorkerPorts,
        *,
        renewal_pool: Pool,
        call_pool: Pool,
        name_checks: Mapping[str, StreamNameCheck],
        table_option: str = "application",
        condition: Condition | None = None,
    ) -> None:
        super().__init__(condition)
        self._coordinator = coordinator
        self._streams = streams
        self._name_checks = name_checks
        self._ports = ports
        self._table, self._clock, self._metrics = ports.table, ports.clock, ports.metrics
        self._renewal_pool = renewal_pool
        self._call_pool = call_pool
        self._table_option = table_option
        kcl3 = ports.kcl3
        self._kcl3 = None if kcl3 is None else Kcl3Calls(coordinator.worker, ports.table, kcl3, ports.clock)
        self._counted_takes: dict[str, int] = {}  # by reason; counted in the metrics, as are the lost leases
        self._counted_losses = 0
        # (key, epoch) of readers whose last event is in the inbox.
        self._unhandled_ends: set[tuple[str, int]] = set()
        # Held while events are handled, and for a snapshot from another thread.
        self._machine_lock = threading.RLock()
        self._table_scanned_s: float | None = None
        self.readers: Readers | None = None
        self.trace: Callable[[Event | Effect], None] | None = None
        """Called with every event before the machine gets it, and with every effect before it begins; for traces."""
        self.on_unusable_table: Callable[[PenstockError], None] | None = None
        """Called if the table cannot be used: it is not a lease table, belongs to another stream, is denied before the first scan, or its
        location cannot hold leases. Also called if another living process has the worker's id."""

    # --- the loop ---

    def handle_events(self, events: list[Event], now_s: float) -> None:
        """Feed events to the machine and begin the effects that it returns."""
        with self._machine_lock:
            for event in events:
                self._handle(event)
                if isinstance(event, ScanDone | OwnLeasesFound):
                    self._table_scanned_s = now_s
                    self._send_metrics()
            if not events or self._coordinator.next_wake_s <= now_s:
                self._handle(Tick())

    def snapshot(self) -> LeaseSnapshot:
        """Return a snapshot of the held leases; from any thread."""
        with self._machine_lock:
            machine, now_s = self._coordinator, self._clock.monotonic_s()
            failing = tuple(call.describe(now_s) for call in machine.failing_calls)
            held = statuses_of(machine.held_leases)
            damaged = machine.describe_damaged_leases()
            return LeaseSnapshot(held, self._table_scanned_s, machine.round_s, failing, damaged)

    def describe_unread_part(self) -> str | None:
        """Return why some part of the stream may have no living reader, or None; from any thread."""
        with self._machine_lock:
            return self._coordinator.describe_unread_part(self._clock.monotonic_s())

    def next_wake_s(self) -> float | None:
        """Return when the machine must be called next without an event."""
        return self._coordinator.next_wake_s

    def _handle(self, event: Event) -> None:
        """Feed one event to the machine, and begin the effects that it returns."""
        if isinstance(event, _READER_ENDS):
            self._unhandled_ends.discard((event.key, event.epoch))
        is_audit = False
        if self.trace is not None:
            self.trace(event)
        now_s, chance = self._clock.monotonic_s(), self._ports.chance.random()
        for effect in self._coordinator.handle(event, now_s, chance):
            if self.trace is not None:
                self.trace(effect)
            if isinstance(effect, AuditReaders):
                is_audit = True
            else:
                self._begin(effect)
        if is_audit and self.readers is not None:
            # A reader whose last event is still in the inbox has not stopped as far as the machine knows.
            live_readers = self.readers.live_readers()
            with self._condition:
                live_readers |= self._unhandled_ends
            self._handle(ReadersFound(live_readers))

    def post(self, event: Event) -> None:
        """Post an event, from any thread."""
        if isinstance(event, _READER_ENDS):
            with self._condition:
                self._unhandled_ends.add((event.key, event.epoch))
        super().post(event)

    def _begin(self, effect: Effect) -> None:  # noqa: C901, PLR0912 - one case per effect
        """Begin an effect: a call on a pool, a command to the readers, or a report."""
        match effect:
            case AuditReaders():
                raise AssertionError("an audit is answered at once, by the caller")
            case EnsureTable():
                self._call(self._ensure_table)
            case ScanTable(part):
                self._call(lambda: self._scan(part))
            case WriteLease():
                pool = self._renewal_pool if effect.is_of_held_lease else self._call_pool
                self._call(lambda: self._write(effect), pool)
            case FetchLease():
                self._call(lambda: self._fetch(effect))
            case ListShards():
                self._call(lambda: self._list(effect))
            case FetchFleet() | ReportWorker() | LeaveFleet() | FindOwnLeases():
                calls = self._kcl3
                if calls is None:
                    raise RuntimeError(
                        "the coordinator needs the rows of KCL 3 workers, and the lease loop has no kcl3"
                    )
                self._call(lambda: calls.answer(effect))
            case Report():
                self._report(effect)
            case TableRefused(foreign_lease):
                why = describe_foreign_table(
                    self._table.name, ", ".join(self._streams.values()), foreign_lease, self._table_option
                )
                self._report_unusable_table(OptionError(why))
            case FleetRefused(why, detail):
                self._report_unusable_table(OptionError(describe_refusal(why, self._table.name, detail)))
            case WorkerIdTaken(later_run):
                self._report_unusable_table(
                    WorkerIdInUse(describe_later_run(self._coordinator.worker, self._table.name, later_run))
                )
            case Stopped():
                self.is_finished = True
            case _:
                self._run_reader_effect(effect)

    def _report_unusable_table(self, error: PenstockError) -> None:
        log.error(str(error))
        if self.on_unusable_table is not None:
            self.on_unusable_table(error)

    def _run_reader_effect(
        self, effect: StartReader | ExtendDelivery | StopReader | CheckpointWritten
    ) -> None:
        if self.readers is None:
            raise RuntimeError("the lease loop was started without readers")
        match effect:
            case StartReader():
                self.readers.start_reader(effect)
            case ExtendDelivery():
                self.readers.extend_delivery(effect)
            case StopReader():
                self.readers.stop_reader(effect)
            case CheckpointWritten():
                self.readers.on_checkpoint_written(effect.key, effect.epoch, effect.position)
            case _:
                assert_never(effect)

    def _call(self, answer: Answer, pool: Pool | None = None) -> None:
        (pool or self._call_pool).submit(lambda: self.post(answer()))

    # --- the calls: each gives exactly one event, however it ends ---

    def _ensure_table(self) -> Event:
        try:
            if self._table.ensure_exists():
                log.info("lease table %s was created", self._table.name)
        except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
            # A table that was scanned before may be denied only for a while. An OptionError lasts: the location cannot hold leases.
            if isinstance(error, OptionError) or (
                isinstance(error, Rejected | AccessDenied | NotFound | UnknownRefusal)
                and self._table_scanned_s is None
            ):
                self._report_unusable_table(error)
            return CallFailed(LeaseCall.ENSURE, problem_of(error), describe_error(error))
        return TableReady(self._table.row_count)

    def _scan(self, part: TablePart | None) -> Event:
        began_s = self._clock.monotonic_s()
        try:
            scan = self._table.scan(part)
        except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
            return CallFailed(LeaseCall.SCAN, problem_of(error), describe_error(error))
        self._metrics.observe("lease_scan_s", self._clock.monotonic_s() - began_s)
        skipped = tuple((row.key, row.reason) for row in scan.skipped_rows)
        return ScanDone(scan.leases, skipped, began_s, part)

    def _write(self, effect: WriteLease) -> Event:
        began_s = self._clock.monotonic_s()
        if effect.retry_until_s is not None and began_s >= effect.retry_until_s:
            # The write waited too long for a thread. Sent now, it would do harm or nothing.
            late = NotDone(Problem.UNAVAILABLE, "it waited too long to be sent")
            return WriteDone(effect.write_id, effect.write, late)
        try:
            outcome = self._table.write(effect.write)
        except UnknownOutcome as error:
            last = error.__cause__ if isinstance(error.__cause__, ServiceError) else error
            return WriteDone(effect.write_id, effect.write, UNKNOWN, describe_error(last))
        except PenstockError as error:
            return WriteDone(effect.write_id, effect.write, NotDone(problem_of(error), describe_error(error)))
        except Exception as error:
            # Not one of the port's errors: the outcome of the write is unknown.
            log.exception("a lease write failed in an unexpected way: %r", effect.write)
            return WriteDone(effect.write_id, effect.write, UNKNOWN, describe_error(error))
        name = "renewal_latency_s" if effect.is_of_held_lease else "lease_write_latency_s"
        if isinstance(effect.write, Checkpoint | LateCheckpoint | End | Release):
            name = "checkpoint_latency_s"
        self._metrics.observe(name, self._clock.monotonic_s() - began_s)
        return WriteDone(effect.write_id, effect.write, outcome)

    def _fetch(self, effect: FetchLease) -> Event:
        try:
            return LeaseFetched(effect.key, self._table.fetch(effect.key))
        except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
            return CallFailed(LeaseCall.FETCH, problem_of(error), describe_error(error), effect.key)

    def _list(self, effect: ListShards) -> Event:
        stream_id = effect.stream_id
        name_check = self._name_checks.get(stream_id)
        return list_shards(
            effect, self._streams[stream_id], self._ports.kinesis, name_check, self._clock.wall_ms
        )

    # --- logs and metrics ---

    def _report(self, report: Report) -> None:
        log.log(_LEVELS[report.level], report.message)
        if report.level is not Level.INFO:
            self._metrics.count("reports", 1, {"topic": report.topic.name.lower()})

    def _send_metrics(self) -> None:
        stats = self._coordinator.stats
        self._metrics.gauge("total_leases", stats.total_leases)
        self._metrics.gauge("ended_leases", stats.ended_leases)
        self._metrics.gauge("unclaimed_leases", stats.unclaimed_leases)
        self._metrics.gauge("worker_leases", stats.held_leases)
        self._metrics.gauge("workers", stats.worker_count)
        for reason, total in stats.take_counts:
            new = total - self._counted_takes.get(reason, 0)
            if new:
                self._metrics.count("takes", new, {"reason": reason})
                self._counted_takes[reason] = total
        if stats.lost_leases > self._counted_losses:
            self._metrics.count("lost_leases", stats.lost_leases - self._counted_losses)
            self._counted_losses = stats.lost_leases
