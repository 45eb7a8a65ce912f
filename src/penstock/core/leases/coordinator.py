"""The lease coordinator: a pure machine that decides what one worker creates, takes, renews, reads and gives up.

`Coordinator.handle(event, now_s, chance)` takes one event and answers effects, in the order in which they are to
be begun. The shell (`penstock.consumer`, or the simulator) does them and answers with events. One event at a
time; time and chance are arguments; the machine never waits: `next_wake_s` says when it wants a `Tick`.

| effect (to do) | answered by |
|---|---|
| `EnsureTable()` | `TableReady` / `TableFailed` |
| `ScanTable()` | `ScanDone` / `ScanFailed` |
| `WriteLease(write_id, write)` | `WriteDone(write_id, write, Applied / Refused / NotDone / UNKNOWN)` |
| `FetchLease(key)` | `LeaseFetched(key, lease or None)` / `FetchFailed` |
| `ListShards(purpose, filter_type, timestamp_ms)` | `ListingDone` / `ListingFailed` |
| `StartReader(key, epoch, position, lease, deliver_until_s)` | later `CheckpointRequested`, `ReaderProgress`, and at last exactly one of `ShardDrained`, `ReaderFailed`, or `ReaderStopped` after a `StopReader` |
| `StopReader(key, epoch, why)` | `ReaderStopped` (unless `ShardDrained` or `ReaderFailed` is on its way already) |
| `ExtendDelivery(key, epoch, deliver_until_s)` | nothing: move the deadline of that reader |
| `AuditReaders()` | `ReadersFound(alive)`, at once |
| `CheckpointStands(key, epoch, position)` | nothing: tell whoever waits for that checkpoint |
| `Report(topic, level, message, key, reason)` | nothing: log it, count it |
| `TableRefused(foreign)` | nothing: the worker stops; say why to whoever runs it |
| `Stopped()` | nothing: the last effect of all |

Events that come on their own: `Tick` (due at `next_wake_s`), `StopRequested`. Every call is answered by exactly
one event, however it ends. Events about a reader carry the epoch of its `StartReader`; stale ones are ignored.

Writes on one lease are done one after the other (the machine never has two under way for one key). Writes of
different leases may run in parallel, heartbeats (`is_heartbeat`) first.
"""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias, assert_never

from penstock.core.leases.awaited_leases import AwaitedLeases
from penstock.core.leases.coordinator_events import (
    AuditReaders,
    CheckpointRequested,
    CoordinatorOptions,
    CoordinatorStats,
    Effect,
    EnsureTable,
    Event,
    FetchFailed,
    LeaseFetched,
    Level,
    ListingDone,
    ListingFailed,
    ListingPurpose,
    NotDone,
    Problem,
    ReaderFailed,
    ReaderProgress,
    ReadersFound,
    ReaderStopped,
    ScanDone,
    ScanFailed,
    ScanTable,
    ShardDrained,
    Stopped,
    StopRequested,
    StopWhy,
    TableFailed,
    TableReady,
    TableRefused,
    Tick,
    Topic,
    Unknown,
    WriteDone,
)
from penstock.core.leases.damaged_rows import DamagedRows
from penstock.core.leases.fleet_view import FleetLease, Gain, GiveUpLease, Reason, fleet_of, live_workers
from penstock.core.leases.held_lease import LeasePhase
from penstock.core.leases.held_leases import HeldLeases
from penstock.core.leases.lease import (
    Applied,
    LateCheckpoint,
    Lease,
    LeaseWrite,
    Refused,
    Release,
    Renew,
    RequestHandover,
    Take,
)
from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.leases.move_planner import MovePlanner
from penstock.core.leases.pending_writes import PendingWrite, PendingWrites
from penstock.core.leases.shard_syncer import ShardSyncer
from penstock.core.leases.stream_check import StreamCheck
from penstock.core.position import LATEST

_ROUND_JITTER: Final = 0.2  # of the interval, to both sides
_SHUN_DURATIONS: Final = (
    10  # a shard that failed here and was freed is left to others for so many lease times
)
_LOOK_ROUNDS: Final = 0.2  # looks between regular rounds are no closer to each other
_RESTING: Final = frozenset({LeasePhase.WAITING, LeasePhase.READING, LeasePhase.STOPPING, LeasePhase.PARKED})
_Upkeep: TypeAlias = Literal["first", "create", "delete", "late"]  # writes that no held lease waits for


class Coordinator:
    """One worker's coordination. Not thread-safe: one event at a time.

    Args:
        worker: This worker's id, unique in the fleet; `zone/name` where zones matter. The same id after a
            restart gets the same leases back at once.
        options: How to coordinate.
    """

    def __init__(self, worker: str, options: CoordinatorOptions) -> None:
        self.worker = worker
        self.options = options
        # Two looks longer than the asker itself waits: it takes the lease when the time is over.
        bound_s = options.handover_timeout_s + 2 * options.handover_poll_s
        self.view = LeaseView(options.lease_duration_s, bound_s, names_streams=options.stream is not None)
        self._planner = MovePlanner(worker, options)
        self.writes = PendingWrites(options.writes_in_flight_max)
        self.held_leases = HeldLeases(worker, options, self.view, self.writes)
        self.stream_check = StreamCheck(options.stream, self.view)
        self.damaged_rows = DamagedRows(self.view, self.writes)
        self.syncer = ShardSyncer(worker, options, self.view, self.writes)
        self.stats = CoordinatorStats()
        self.stopped = False
        self._table_state = "unknown"  # unknown -> ensuring -> ready
        self._table_due_s = -math.inf
        self._round_due_s = math.inf
        self._scanning = False
        self._scan_failures = 0
        self._last_round_s = -math.inf
        self.awaited = AwaitedLeases(worker, options, self.view, self.writes, self.stream_check)
        self._shunned: dict[str, float] = {}
        self._takes: dict[str, int] = {}
        self._stop_by_s: float | None = None
        self._stop_hard_s: float | None = None
        self._is_refused = False
        self._fleet_size = (0, 1)
        self._doubtful_take_count = 0  # they ended without the lease, which may be free or this worker's
        self._doubts_at_scan = 0  # when the scan under way began
        self._doubts_looked_at = 0  # followed by a whole scan
        self._unheld_own: set[str] = set()  # this worker's by name in the last round, and not in its hands

    # --- the surface ----------------------------------------------------------------------------------

    @property
    def next_wake_s(self) -> float:
        """When the next `Tick` is due at the latest, on the clock of `handle`; infinity once stopped."""
        if self.stopped:
            return math.inf
        moments = [self.held_leases.next_wake_s]
        if self._table_state == "unknown":
            moments.append(self._table_due_s)
        if self._table_state == "ready" and not self._scanning:
            moments.append(self._round_due_s)
        moments.append(self.awaited.next_look_s)
        if self._stop_by_s is not None:
            moments.append(self._stop_by_s)
        return min(moments)

    def handle(self, event: Event, now_s: float, chance: float = 0.5) -> list[Effect]:
        """Take in one event and answer what is to be done.

        Args:
            event: What happened.
            now_s: Monotonic seconds, when this is called.
            chance: A fresh number in [0, 1), for jitter.

        Returns:
            Effects, to be begun in this order.
        """
        if self.stopped:
            return []
        self.writes.begin(chance)
        self._dispatch(event, now_s)
        self._advance(now_s)
        return self.writes.effects

    @property
    def is_at_rest(self) -> bool:
        """Whether this worker has what it can have for now: leases were seen, and nothing is under way.

        After a loss, or a take of which nobody knows how it ended, the table is looked at first. Rows that are still to be
        compared with the stream's shards are waited for. Hand-overs that other workers take their time for are not.
        """
        return (
            self._fleet_size[0] > 0
            and not self._scanning
            and not self.view.set_aside
            and self._doubt_count == self._doubts_looked_at
            and not any(self._is_own_and_unheld(key) for key in self._unheld_own)
            and self.writes.is_idle()
            and not self.syncer.wants_round
            and all(held.phase in _RESTING for held in self.held_leases)
        )

    @property
    def _doubt_count(self) -> int:
        """How often it became unknown whose a lease is: only a scan that begins later tells."""
        return self.held_leases.lost_count + self._doubtful_take_count

    def _is_own_and_unheld(self, key: str) -> bool:
        row = self.view.get(key)
        return (
            key not in self.held_leases and row is not None and not row.is_ended and row.reader == self.worker
        )

    def held(self) -> dict[str, LeasePhase]:
        """Give every lease in this worker's hands and where it stands."""
        return {held.key: held.phase for held in self.held_leases}

    # --- events ---------------------------------------------------------------------------------------

    def _dispatch(self, event: Event, now_s: float) -> None:  # noqa: C901, PLR0912 - one case per event
        match event:
            case Tick():
                pass
            case TableReady():
                self._table_state = "ready"
                self._round_due_s = now_s
            case TableFailed(detail):
                self._on_table_failed(detail, now_s)
            case ScanDone():
                self._on_scan(event, now_s)
            case ScanFailed(problem, detail):
                self._on_scan_failed(problem, detail, now_s)
            case WriteDone():
                self._on_write(event, now_s)
            case LeaseFetched(key, lease):
                self._on_fetched(key, lease, now_s)
            case FetchFailed(key):
                self.held_leases.on_fetch_failed(key, now_s)
                self.awaited.on_answer(key, self.held_leases, now_s)
            case ListingDone():
                self.damaged_rows.look(shard.shard_id for shard in event.shards)
                if event.purpose is ListingPurpose.COMPARE:
                    self.stream_check.compare(event.shards, event.moment_ms, now_s)
                    self._refuse_foreign(now_s)
                self.syncer.on_listing(event, now_s)
            case ListingFailed(purpose, problem, detail):
                self.syncer.on_listing_failed()
                self._report_failure(f"listing the shards ({purpose.value})", problem, detail)
            case CheckpointRequested():
                self.held_leases.on_checkpoint(event, now_s)
            case ReaderProgress():
                self.held_leases.on_progress(event, now_s)
            case ShardDrained():
                self.held_leases.on_drained(event, now_s)
            case ReaderStopped():
                self.held_leases.on_stopped(event, now_s)
            case ReaderFailed():
                if self.held_leases.on_failed(event, now_s):
                    self._shunned[event.key] = now_s + _SHUN_DURATIONS * self.options.lease_duration_s
            case ReadersFound(alive):
                self.held_leases.audit(alive, now_s)
            case StopRequested():
                self._begin_stop(now_s)
            case _:
                assert_never(event)

    def _advance(self, now_s: float) -> None:
        self.held_leases.tick(now_s)
        if self.held_leases.table_missing:
            self.held_leases.table_missing = False
            self._on_table_missing()
        if self._table_state == "unknown" and now_s >= self._table_due_s:
            self._table_state = "ensuring"
            self.writes.emit(EnsureTable())
        if (
            self.syncer.wants_round and not self._scanning
        ):  # else this scan may have begun too early to see it
            self.syncer.wants_round = False
            self._round_due_s = min(self._round_due_s, now_s)
        if self._table_state == "ready" and not self._scanning and now_s >= self._round_due_s:
            self._scanning = True
            self._doubts_at_scan = self._doubt_count
            self.writes.emit(ScanTable())
        self.awaited.look(now_s)
        self.writes.pump(now_s)
        self._finish_stop(now_s)

    def _report_failure(self, what: str, problem: Problem, detail: str) -> None:
        level = Level.ERROR if problem is Problem.REFUSED else Level.WARNING
        self.writes.report(
            Topic.CALL_FAILED,
            level,
            f"{what} failed: {problem.value} {detail}".rstrip(),
            reason=problem.name.lower(),
        )

    # --- the table ------------------------------------------------------------------------------------

    def _on_table_failed(self, detail: str, now_s: float) -> None:
        self._table_state = "unknown"
        self._table_due_s = now_s + self.options.interval_s * (0.1 + 0.9 * self.writes.draw())
        self.writes.report(Topic.CALL_FAILED, Level.ERROR, f"the lease table cannot be made ready: {detail}")

    def _on_table_missing(self) -> None:
        if self._table_state != "ready":
            return
        self.writes.report(
            Topic.TABLE_GONE,
            Level.ERROR,
            "the lease table has been deleted under a running application; it is created again",
        )
        self._table_state = "unknown"
        self._table_due_s = -math.inf
        self.syncer.table_was_missing = True

    # --- rounds ---------------------------------------------------------------------------------------

    def _on_scan_failed(self, problem: Problem, detail: str, now_s: float) -> None:
        self._scanning = False
        self._scan_failures += 1
        self._report_failure("scanning the lease table", problem, detail)
        if problem is Problem.TABLE_MISSING:
            self._on_table_missing()
        bound_s = min(self.options.interval_s, 0.5 * 2 ** min(self._scan_failures, 8))
        self._round_due_s = now_s + 0.1 + bound_s * self.writes.draw()

    def _on_scan(self, event: ScanDone, now_s: float) -> None:
        self._scanning = False
        self._scan_failures = 0
        self._doubts_looked_at = self._doubts_at_scan
        self._last_round_s = now_s
        for key in self.view.observe_scan(
            event.leases, now_s, event.began_s, self.held_leases, event.skipped
        ):
            self.held_leases.renew_now(key, now_s)  # gone from the table: its own write will say so
        wants_listing = self.stream_check.look(event.leases)
        self._refuse_foreign(now_s)
        self.damaged_rows.look()
        for lease in event.leases:
            if lease.key in self.held_leases:
                self.held_leases.see_row(lease, now_s, event.began_s)
        if self._stop_by_s is None:
            if wants_listing:
                self.syncer.compare()
            self._run_round(event, now_s)
        self.held_leases.wake_waiting(now_s)
        self.held_leases.watch_progress(now_s)
        self.writes.emit(AuditReaders())
        self._schedule_round(now_s)

    def _refuse_foreign(self, now_s: float) -> None:
        if self.stream_check.foreign is not None and not self._is_refused:
            self._is_refused = True
            self.writes.emit(TableRefused(self.stream_check.foreign))
            self._begin_stop(now_s)

    def _last_known(self) -> dict[str, Lease]:
        rows = dict(self.view.rows())
        for held in self.held_leases:
            rows[held.key] = held.lease
        return rows

    def _run_round(self, event: ScanDone, now_s: float) -> None:
        standing = {lease.key for lease in event.leases} | self.view.damaged.keys()
        if not event.leases and not any(key in self.view for key in standing):
            self._count([], {self.worker})
            self.syncer.on_empty_table(now_s)
            return
        if self.syncer.restore_if_gone(standing, now_s):
            return
        self.syncer.remember(self._last_known(), now_s)
        self._see_own_rows(now_s)
        fleet = fleet_of(self.view, now_s, self.worker)
        workers = live_workers(fleet, self.worker)
        self._count(fleet, workers)
        self.syncer.on_round(now_s, sorted(workers), self.held_leases.lacking_parents())
        self._balance(fleet, now_s)

    def _round_s(self) -> float:
        rows, workers = self._fleet_size
        return max(self.options.interval_s, rows * workers / self.options.scanned_rows_per_s_max)

    def _schedule_round(self, now_s: float) -> None:
        interval_s = self._round_s()
        due_s = now_s + interval_s * (1 - _ROUND_JITTER + 2 * _ROUND_JITTER * self.writes.draw())
        suspect_s = self.view.next_expiry_s(self.worker)
        if suspect_s is not None and suspect_s > now_s:
            # Somebody may have died: look when that is certain rather than at the next regular round.
            due_s = min(due_s, suspect_s + 0.02 * interval_s * self.writes.draw())
        look_s = min(self._planner.look_s, self.view.handovers.next_overdue_s(now_s))
        due_s = min(due_s, max(look_s, now_s + _LOOK_ROUNDS * interval_s))
        if self.syncer.cold_until_s is not None:
            due_s = self.syncer.cold_until_s
        self._round_due_s = max(due_s, now_s + 0.01 * interval_s)

    def _see_own_rows(self, now_s: float) -> None:
        """Pick up leases that bear this worker's name although it does not hold them: a restart, or a loss."""
        self._unheld_own.clear()
        for key, lease in self.view.rows().items():
            if lease.is_ended or key in self.held_leases:
                continue
            if lease.reader == self.worker:
                self._unheld_own.add(key)
            if self.writes.is_busy(key) or not self.view.is_usable(key):
                continue
            if lease.owner == self.worker and lease.checkpoint_owner not in (None, self.worker):
                self.awaited.add(key, now_s)
            elif lease.reader == self.worker:
                is_leaving = lease.owner != self.worker  # it was being handed over when this worker stopped
                write: LeaseWrite = Renew(
                    key,
                    lease.counter,
                    self.worker,
                    during_handover=is_leaving,
                    stream=self.stream_check.unsaid(lease),
                )
                if lease.checkpoint == LATEST and not is_leaving:
                    write = self.stream_check.prepared(Take(key, lease.counter, self.worker), now_s)
                if is_leaving and not self.options.keeps_claims:
                    done = self.held_leases.late_checkpoints.take(key)
                    write = Release(key, lease.counter, self.worker, done, lease.owner)
                reason = Reason.HANDED_OVER if key in self.awaited else Reason.OWN
                self.writes.enqueue(write, ("gain", reason))

    def _balance(self, fleet: list[FleetLease], now_s: float) -> None:
        moves = self._planner.plan(
            fleet,
            now_s,
            round_s=self._round_s(),
            held_count=len(self.held_leases),
            chance=self.writes.draw(),
        )
        for move in moves:
            if isinstance(move, GiveUpLease):
                held = self.held_leases.get(move.key)
                if held is not None:
                    self.held_leases.stop(held, StopWhy.SURPLUS)
                    self.held_leases.drive(held, now_s)
            else:
                self._gain(move, now_s)

    def _gain(self, move: Gain, now_s: float) -> None:
        key = move.write.key
        if key in self.held_leases or key in self.awaited or self._shunned.get(key, -math.inf) > now_s:
            return
        write = move.write
        if isinstance(write, Take):
            write = self.stream_check.prepared(write, now_s)
        self.writes.enqueue(write, ("gain", move.reason))

    def _count(self, fleet: list[FleetLease], workers: set[str]) -> None:
        self._fleet_size = (len(self.view), len(workers))
        self.stats = CoordinatorStats(
            total_leases=len(fleet),
            ended_leases=len(self.view) - len(fleet),
            unclaimed_leases=sum(1 for entry in fleet if entry.owner_state is not OwnerState.ALIVE),
            worker_count=len(workers),
            held_leases=len(self.held_leases),
            reading_leases=sum(1 for held in self.held_leases if held.phase is LeasePhase.READING),
            lost_leases=self.held_leases.lost_count,
            takes=tuple(sorted(self._takes.items())),
        )

    # --- answers --------------------------------------------------------------------------------------

    def _on_write(self, event: WriteDone, now_s: float) -> None:
        pending = self.writes.settle(event.write_id)
        if pending is None:
            return
        outcome = event.outcome
        if isinstance(outcome, NotDone) and outcome.problem is Problem.TABLE_MISSING:
            self._on_table_missing()
        kind = pending.purpose[0]
        if kind == "held":
            self.held_leases.on_write(pending, outcome, now_s)
        elif kind == "child":
            self.held_leases.on_child_created(pending, outcome, now_s)
        elif kind == "gain":
            self._on_gain(pending, outcome, now_s)
        else:
            self._observe(outcome, pending.write.key, now_s)
            self._on_upkeep(kind, pending, outcome, now_s)

    def _on_upkeep(
        self,
        kind: _Upkeep,
        pending: PendingWrite,
        outcome: Applied | Refused | NotDone | Unknown,
        now_s: float,
    ) -> None:
        match kind:
            case "first":
                self.syncer.on_first_created(outcome)
            case "create":
                self.syncer.on_created(pending, outcome)
            case "delete":
                self.syncer.on_deleted(pending, outcome)
            case "late":
                if isinstance(pending.write, LateCheckpoint) and isinstance(outcome, NotDone | Unknown):
                    retry_s = now_s + self.options.renew_interval_s * self.writes.draw()
                    self.held_leases.late_checkpoints.keep_again(pending.write, retry_s)
            case _:
                assert_never(kind)

    def _observe(
        self, outcome: Applied | Refused | NotDone | Unknown, key: str, now_s: float
    ) -> Lease | None:
        row = None
        if isinstance(outcome, Applied):
            row = outcome.lease
        elif isinstance(outcome, Refused):
            row = outcome.row
        if row is not None and row.key == key:
            self.view.observe(row, now_s)
        return row

    def _on_gain(
        self, pending: PendingWrite, outcome: Applied | Refused | NotDone | Unknown, now_s: float
    ) -> None:
        row = self._observe(outcome, pending.write.key, now_s)
        write, reason = pending.write, pending.purpose[1]
        is_anothers = row is not None and row.reader not in (None, self.worker)
        if isinstance(write, Take | Renew) and not isinstance(outcome, Applied) and not is_anothers:
            self._doubtful_take_count += 1
        if isinstance(outcome, Applied) and row is not None:
            if isinstance(write, RequestHandover):
                self.awaited.add(row.key, now_s)
            elif isinstance(write, Take | Renew):
                self._hold(row, reason, pending.sent_s, now_s)
        elif isinstance(write, RequestHandover):
            if isinstance(outcome, Refused) and not self._planner.membership.is_settled(now_s):
                # Another newcomer has asked for the same: nobody sees this worker before it has asked for one.
                self._round_due_s = min(self._round_due_s, now_s + _LOOK_ROUNDS * self._round_s())
        elif isinstance(write, Take | Renew) and (
            isinstance(outcome, Unknown) or (row is not None and row.reader == self.worker)
        ):
            # It may be ours, or is in this worker's name: the next look tells, as for a lease from before a restart.
            self._round_due_s = min(self._round_due_s, now_s + 0.1 * self.options.interval_s)

    def _hold(self, row: Lease, reason: Reason, sent_s: float, now_s: float) -> None:
        self.awaited.drop(row.key)
        if row.key in self.held_leases or row.is_ended or row.reader != self.worker:
            return
        self._takes[reason.value] = self._takes.get(reason.value, 0) + 1
        self.writes.report(
            Topic.TAKEN,
            Level.INFO,
            f"lease {row.key} taken at {row.checkpoint} ({reason.value})",
            row.key,
            reason.value,
        )
        self.held_leases.acquire(row, sent_s, now_s)

    def _on_fetched(self, key: str, lease: Lease | None, now_s: float) -> None:
        if lease is None:
            self.view.forget(key)
        else:
            self.view.observe(lease, now_s)
        self.held_leases.on_fetched(key, lease, now_s)
        self.awaited.on_answer(key, self.held_leases, now_s)

    # --- stopping -------------------------------------------------------------------------------------

    def _begin_stop(self, now_s: float) -> None:
        if self._stop_by_s is not None:
            return
        self._stop_by_s = now_s + self.options.shutdown_timeout_s
        self.writes.drop_queue()
        self.awaited.is_stopping = True
        self.held_leases.stop_all(now_s)

    def _finish_stop(self, now_s: float) -> None:
        if self._stop_by_s is None:
            return
        is_done = self.held_leases.is_quiet and not self.awaited and self.writes.is_idle()
        if not is_done and now_s < self._stop_by_s:
            return
        if not is_done and self._stop_hard_s is None:
            late = self.held_leases.release_stragglers(now_s)
            if late:
                self.writes.report(
                    Topic.SHUTDOWN,
                    Level.WARNING,
                    f"shards {', '.join(sorted(late)[:5])} did not finish within {self.options.shutdown_timeout_s} s; "
                    "their leases are released at what was done",
                )
            self._stop_by_s = self._stop_hard_s = now_s + self.options.renew_interval_s
            return
        self.stopped = True
        left = sorted(held.key for held in self.held_leases)
        if left:
            self.writes.report(
                Topic.SHUTDOWN,
                Level.WARNING,
                f"leases {', '.join(left[:5])} could not be released; they expire after "
                f"{self.options.lease_duration_s} s",
            )
        self.writes.emit(Stopped())
