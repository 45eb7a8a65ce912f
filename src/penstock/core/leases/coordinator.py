"""The lease coordinator: a pure state machine that decides which leases one worker creates, takes, renews and releases.

`Coordinator.handle(event, now_s, chance)` takes one event and returns effects, in the order in which they must begin.
The shell (`penstock.runtime.lease_loop`, or the simulator) runs them and answers with events. Time and chance are
arguments. The machine never waits: `next_wake_s` is the moment of its next `Tick`.

Each effect's docstring names the events that answer it.
Two events answer no effect: `Tick` (due at `next_wake_s`) and `StopRequested`. Every call is answered by exactly one
event, however it ends. Events about a reader carry the epoch of its `StartReader`; the machine ignores stale ones.

The machine never has two writes in flight for one key. Writes of different leases may run in parallel, those of
held leases (`is_of_held_lease`) first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from msgspec.structs import replace

from penstock.core.leases.acquisitions import HANDOVER_POLL_S, Acquisitions
from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_effects import (
    AuditReaders,
    Effect,
    StopWhy,
    TableRefused,
    Turn,
    WorkerIdTaken,
)
from penstock.core.leases.coordinator_events import (
    CallFailed,
    CheckpointRequested,
    Event,
    FleetEvent,
    LeaseCall,
    LeaseFetched,
    ListingDone,
    ListingPurpose,
    NotDone,
    OwnLeasesFound,
    Problem,
    ReaderFailed,
    ReaderProgress,
    ReadersFound,
    ReaderStopped,
    ScanDone,
    ShardDrained,
    StopRequested,
    TableReady,
    Tick,
    WriteDone,
    WriteOutcome,
    row_of,
)
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.failing_calls import FailingCall, FailingCalls, call_of
from penstock.core.leases.fleet_view import (
    Acquisition,
    CoordinatorStats,
    FleetLease,
    Move,
    Reason,
    fleet_of,
    live_workers,
)
from penstock.core.leases.graceful_stop import GracefulStop
from penstock.core.leases.held_lease_phases import LeasePhase
from penstock.core.leases.held_leases import HeldLeases, LateCheckpoints
from penstock.core.leases.kcl3_membership import LED_SCAN_ROUNDS, Kcl3Membership
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.leases.lease_writes import Refusal, Refused
from penstock.core.leases.move_planner import NOTHING_TO_MOVE, MovePlanner, RoundPlan
from penstock.core.leases.pending_writes import (
    ForAcquisition,
    ForChildOf,
    ForCleanup,
    ForFirstLease,
    ForHeldLease,
    ForLateCheckpoint,
    ForMissingLease,
    OtherPurpose,
    PendingWrite,
    PendingWrites,
)
from penstock.core.leases.row_checks import DamagedRows, LaterRuns, StreamCheck
from penstock.core.leases.stream_leases import streams_of
from penstock.core.leases.table_scans import RowFetches, TableScans

_EXTRA_SCAN_ROUNDS: Final = 0.2  # the shortest wait for a scan after a refused hand-over request
_WRITES_IN_FLIGHT_MAX: Final = 50  # renewals not counted
_RESTING_PHASES: Final = frozenset(
    {LeasePhase.WAITING, LeasePhase.READING, LeasePhase.STOPPING, LeasePhase.PARKED}
)


class Coordinator:
    """The lease coordinator of one worker. Not thread-safe: one event at a time.

    Args:
        worker: This worker's id, unique in the fleet; `zone/name` to name its zone. The same id after a
            restart gets the same leases back at once.
        run_name: Distinguishes this process from others with the same worker id (`name_run`); empty: they are not detected.
    """

    def __init__(self, worker: str, options: CoordinatorOptions, run_name: str = "") -> None:
        self.worker = worker
        self.options = options
        # A requester takes the lease after `handover_timeout_s`. The others wait two polls longer for its take.
        handover_bound_s = options.handover_timeout_s + 2 * HANDOVER_POLL_S
        view = LeaseView(options.lease_duration_s, handover_bound_s, names_streams=options.names_streams)
        self.view: LeaseView = view
        self._turn = turn = Turn()
        self._later_runs = later_runs = LaterRuns(worker, run_name, view)
        self._writes = writes = PendingWrites(turn, _WRITES_IN_FLIGHT_MAX, later_runs)
        self._scans = scans = TableScans(worker, options, view, turn)
        context = CoordinatorContext(worker, options, view, turn, writes, scans)
        self._failing_calls = FailingCalls(
            turn, options.lease_duration_s, options.lease_duration_s - options.margin_s
        )
        self._late_checkpoints = late = LateCheckpoints(context)
        held = HeldLeases(context, late, self._failing_calls)
        self.held_leases: HeldLeases = held
        self._stream_check = stream_check = StreamCheck(options, view)
        self._damaged_rows = DamagedRows(view, turn)
        self._streams = streams_of(context)
        self._membership = membership = Kcl3Membership(context)
        self._acquisitions = acquisitions = Acquisitions(
            context, held, late, stream_check, membership, later_runs
        )
        self._row_fetches = RowFetches(turn)
        self._planner = MovePlanner(worker, options)
        self._stop = GracefulStop(context, held, acquisitions, membership)
        self._table_stats = CoordinatorStats()  # of the table alone
        self._live_workers: frozenset[str] = frozenset()  # as of the last scan of the whole table
        self._is_refused = False  # the table or the worker id cannot be used: the worker stops

    # --- the interface --------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether the machine has stopped: its last effect was `Stopped`."""
        return self._stop.is_done

    @property
    def next_wake_s(self) -> float:
        """When the next `Tick` is due, on the clock of `handle`; infinity once stopped."""
        if self.stopped:
            return math.inf
        moments = [
            self.held_leases.next_wake_s,
            self._scans.next_wake_s,
            self._acquisitions.next_fetch_s,
            self._row_fetches.next_fetch_s,
            self._membership.next_wake_s,
            self._stop.next_wake_s,
        ]
        return min(moments)

    def handle(self, event: Event, now_s: float, chance: float = 0.5) -> list[Effect]:
        """Handle one event and return the effects to run.

        Args:
            now_s: Monotonic seconds.
            chance: A fresh number in [0, 1), for jitter.

        Returns:
            Effects, in the order in which they must begin.
        """
        if self.stopped:
            return []
        self._turn.begin(chance)
        self._failing_calls.on_event(event, now_s, self._writes.sent_s)
        self._dispatch(event, now_s)
        self._stop_if_refused(now_s)
        self._advance(now_s)
        return self._turn.effects

    @property
    def is_at_rest(self) -> bool:
        """Whether this worker holds every lease that it can get for now.

        The table has leases, no scan is needed or in flight, no row still has to be compared with the stream's shards, and no
        write but renewals is in flight. Two waits do not count: for hand-overs by other workers, and for the missing lease of a
        finished shard's merge partner.
        """
        return (
            self._table_stats.table_leases > 0
            and self._scans.has_scanned_whole_table
            and not self.view.rows_set_aside
            and self._scans.is_quiet
            and self._acquisitions.are_own_leases_held()
            # Of many leases, one is always being renewed.
            and self._writes.is_idle(except_renewals_of=self.held_leases)
            and all(
                held.phase in _RESTING_PHASES or held.missing_parents_of_children(self.view)
                for held in self.held_leases
            )
        )

    def describe_unread_part(self, now_s: float) -> str | None:
        """Return why some part of the streams may have no living reader; None if every part has one."""
        return self._streams.describe_unread_part(
            self.worker,
            now_s,
            has_room=self.options.has_room(len(self.held_leases)),
            has_leader=self._membership.has_leader,
        )

    @property
    def stats(self) -> CoordinatorStats:
        """Figures for metrics: of the table as of its last scan, of this worker as of now."""
        return replace(
            self._table_stats,
            held_leases=len(self.held_leases),
            lost_leases=self.held_leases.lost_count,
            take_counts=tuple(sorted(self._acquisitions.take_counts.items())),
        )

    @property
    def failing_calls(self) -> tuple[FailingCall, ...]:
        """The calls about leases that keep failing."""
        return self._failing_calls.lasting_calls()

    def describe_damaged_leases(self) -> tuple[str, ...]:
        """Return a sentence for each lease whose row cannot be read, so that no worker reads its shard."""
        return self._streams.describe_damaged_leases()

    def lease_phases(self) -> dict[str, LeasePhase]:
        """Return the phase of every lease that this worker holds."""
        return {held.key: held.phase for held in self.held_leases}

    # --- events ---------------------------------------------------------------------------------------

    def _dispatch(self, event: Event, now_s: float) -> None:  # noqa: C901, PLR0912 - one case per event
        match event:
            case Tick():
                pass
            case TableReady(row_count):
                self._scans.on_row_count(row_count)
                self._membership.begin(now_s)
                if self._membership.is_mode_known:
                    self._scans.on_table_ready(now_s)
            case ScanDone():
                self._on_scan(event, now_s)
            case WriteDone():
                self._on_write(event, now_s)
            case LeaseFetched(key, lease):
                self._on_lease_fetched(key, lease, now_s)
            case ListingDone():
                self._damaged_rows.report_new_rows(shard.shard_id for shard in event.shards)
                self._on_listing(event, now_s)
            case CheckpointRequested():
                self.held_leases.on_checkpoint_requested(event, now_s)
            case ReaderProgress():
                self.held_leases.on_reader_progress(event, now_s)
            case ShardDrained():
                self.held_leases.on_shard_drained(event, now_s)
            case ReaderStopped():
                self.held_leases.on_reader_stopped(event, now_s)
            case ReaderFailed():
                if self.held_leases.on_reader_failed(event, now_s):
                    self._acquisitions.leave_to_others(event.key, now_s)
            case ReadersFound(readers):
                self.held_leases.on_readers_found(readers, now_s)
            case StopRequested():
                self._stop.begin(now_s)
            case CallFailed():
                self._on_call_failed(event, now_s)
            case _:
                self._on_fleet_event(event, now_s)

    def _on_call_failed(self, event: CallFailed, now_s: float) -> None:
        match event.call:
            case LeaseCall.ENSURE:
                self._scans.on_table_failed(now_s)
            case LeaseCall.SCAN:
                self._update_failing_calls(now_s)
                if self._scans.on_scan_failed(event.problem, now_s):
                    self._streams.on_table_missing(now_s)
            case LeaseCall.FETCH:
                assert event.key is not None, "a lease is read by its key"
                self.held_leases.on_fetch_failed(event.key, now_s)
                self._row_fetches.on_failed(event.key, now_s)
                self._acquisitions.on_fetch_ended(event.key, now_s, is_read=False)
            case LeaseCall.LIST:
                self._streams[event.stream_id].listing.on_failed(now_s)
            case _:
                self._on_fleet_event(event, now_s)

    def _advance(self, now_s: float) -> None:
        """Begin the calls that are due."""
        self.held_leases.tick(now_s)
        self._late_checkpoints.enqueue_writes(now_s)
        self._scans.advance(now_s)
        self._fetch_rows(now_s)
        self._acquisitions.begin_due_fetches(now_s)
        self._membership.advance(self._live_workers, self._own_keys, now_s)
        self._writes.send_queued(now_s)
        self._stop.advance(now_s)

    def _on_fleet_event(self, event: FleetEvent, now_s: float) -> None:
        """Handle an answer about KCL 3 workers. Scans begin once it is known whether these have a leader."""
        was_mode_known = self._membership.is_mode_known
        is_full = not self.options.has_room(len(self.held_leases))
        if self._membership.handle(event, now_s, is_full=is_full):
            self._scans.request_whole_scan()
        if self._membership.is_mode_known and not was_mode_known:
            self._scans.on_table_ready(now_s)
        if self._membership.is_refused:
            self._stop.begin(now_s)
        if isinstance(event, OwnLeasesFound) and not self._stop.is_begun:
            self._on_own_leases(event.leases, now_s)

    def _on_own_leases(self, found: tuple[Lease, ...], now_s: float) -> None:
        """Handle leases that the index lists under this worker's name: in a fleet with a leader they take the place of a scan."""
        leases = self._keep_own_streams(found)
        for lease in leases:
            self.view.on_row_found_by_index(lease, now_s)
            self._later_runs.on_row(lease)
            self._row_fetches.request(self.view.unknown_parents(lease), now_s)
        self._streams.begin_comparing(
            self._stream_check.on_scan(leases, held=self.held_leases, is_whole_table=False), now_s
        )
        self._stop_if_refused(now_s)
        self._acquisitions.on_rows(leases, now_s)
        self._row_fetches.request(self.held_leases.parents_to_fetch(), now_s)
        self._check_held_leases(now_s)

    def _check_held_leases(self, now_s: float) -> None:
        """Start the readers that waited for the rows read just now, and check the ones that run."""
        self.held_leases.advance_waiting_leases(now_s)
        self.held_leases.report_stalls(now_s)
        self._turn.emit(AuditReaders())

    def _keep_own_streams(self, rows: tuple[Lease, ...]) -> tuple[Lease, ...]:
        """Return the rows of streams that this worker reads, and report the others if a leader assigns them."""
        kept = self._stream_check.keep_own_streams(rows)
        if len(kept) < len(rows) and self._stream_check.foreign_lease is None:
            self._membership.report_unread_streams(
                row for row in rows if self.options.stream_of(row.key) is None
            )
        return kept

    def _own_keys(self) -> frozenset[str]:
        return frozenset(held.key for held in self.held_leases).union(self._acquisitions.requested_keys())

    def _on_listing(self, event: ListingDone, now_s: float) -> None:
        self._streams[event.stream_id].on_listing(event, now_s)
        if event.purpose is ListingPurpose.COMPARE:
            self._stream_check.compare_rows(event.stream_id, event.shards, event.moment_ms, now_s)
            self._stop_if_refused(now_s)
            self._scans.request_whole_scan()

    # --- rounds ---------------------------------------------------------------------------------------

    def _on_scan(self, scan: ScanDone, now_s: float) -> None:
        """Handle a scan: a regular one runs a round, one that is only for free leases takes them. Schedule the next scans."""
        self._update_failing_calls(now_s)
        is_free_lease_scan = self._scans.is_free_lease_scan
        self._scans.on_scan_done()
        self._streams.remember_known_rows(self._known_rows())
        scan = replace(scan, leases=self._keep_own_streams(scan.leases))
        self._on_scanned_rows(scan, now_s, runs_round=not is_free_lease_scan)
        if is_free_lease_scan:
            self._take_free_leases(now_s)
            self.held_leases.advance_waiting_leases(now_s)
        else:
            run = self._run_whole_round if scan.is_whole_table else self._run_part_round
            plan = NOTHING_TO_MOVE if self._stop.is_begun else run(scan, now_s)
            self._check_held_leases(now_s)
            self._schedule_round(plan, now_s, is_whole_table=scan.is_whole_table)
        if not self._stop.is_begun and not self._membership.has_leader:
            self._scans.schedule_free_lease_scan(now_s)

    def _on_scanned_rows(self, scan: ScanDone, now_s: float, *, runs_round: bool) -> None:
        """Update the view and the held leases from a scan; check it for rows of other streams, and of later runs of this worker."""
        missing = self.view.on_scan(
            scan.leases, now_s, scan.began_s, self.held_leases, scan.skipped_rows, scan.part
        )
        for key in missing:
            self.held_leases.renew_now(key, now_s)  # a renewal shows whether the row exists
        if missing and not scan.leases and not (runs_round and scan.is_whole_table):
            # The scan found no row where rows were known. Only a round on the whole table finds out whether the table was deleted.
            self._scans.request_whole_scan()
        streams_to_list = self._stream_check.on_scan(
            scan.leases, held=self.held_leases, is_whole_table=scan.is_whole_table
        )
        self._stop_if_refused(now_s)
        self._damaged_rows.report_new_rows()
        for lease in scan.leases:
            self._later_runs.on_row(lease)
            self.held_leases.on_row_scanned(lease, now_s, scan.began_s)
        if not self._stop.is_begun:
            self._streams.begin_comparing(streams_to_list, now_s)

    def _update_failing_calls(self, now_s: float) -> None:
        """Count writes and listings without an answer as failing once they are old, and forget failing calls that are not made any more."""
        for pending in self._writes.oldest_of_each(call_of):
            self._failing_calls.on_unanswered_write(pending.write, pending.sent_s, now_s)
        for stream_id, sent_s in self._streams.listings_under_way():
            self._failing_calls.on_unanswered_listing(stream_id, sent_s, now_s)
        self._failing_calls.forget_old_calls(now_s, self.round_s)

    def _stop_if_refused(self, now_s: float) -> None:
        """Stop this worker if the table belongs to another stream, or a later process lives under this worker's id."""
        foreign_lease, later_run = self._stream_check.foreign_lease, self._later_runs.later_run
        if self._is_refused:
            return
        if foreign_lease is not None:
            self._turn.emit(TableRefused(foreign_lease))
        elif later_run is not None:
            self._turn.emit(WorkerIdTaken(later_run))
        else:
            return
        self._is_refused = True
        self._stop.begin(now_s)

    def _known_rows(self) -> dict[str, Lease]:
        """Return the latest known rows by key: of the watched part, or of the whole table."""
        return {**self.view.watched_rows(), **{held.key: held.lease for held in self.held_leases}}

    def _remember_row(self, key: str) -> None:
        """Remember the known row of a lease that a call did not find, before the view forgets that row."""
        row = next((held.lease for held in self.held_leases if held.key == key), None) or self.view.get(key)
        if row is not None:
            self._streams.remember_known_rows({key: row})

    def _run_whole_round(self, scan: ScanDone, now_s: float) -> RoundPlan:
        """Run a round on a scan of the whole table and return its moves.

        1. Begin to create the first leases of streams, and those of a deleted table. The next steps leave these streams out,
           but in step 5 their live leases count for the owners.
        2. Reacquire leases in this worker's name.
        3. Determine the live workers and this worker's part of the table.
        4. Per stream: create missing leases and delete finished ones.
        5. Plan this worker's moves, and begin them.
        """
        existing = {lease.key for lease in scan.leases} | self.view.damaged_rows.keys()
        streams = self._streams.create_first_leases(existing, now_s)
        if not scan.leases:
            self._table_stats = CoordinatorStats(ended_leases=len(self.view))
        if not streams:
            return NOTHING_TO_MOVE
        streams.remember_scan(self._known_rows(), now_s)
        self._acquisitions.on_rows(self.view, now_s)
        fleet = fleet_of(self.view, now_s, self.worker)
        live = live_workers(fleet, self.worker)
        self._table_stats = CoordinatorStats(
            total_leases=len(fleet),
            ended_leases=len(self.view) - len(fleet),
            unclaimed_leases=sum(entry.owner_state is not OwnerState.ALIVE for entry in fleet),
            worker_count=len(live),
        )
        self._live_workers = frozenset(live)
        self._membership.on_live_workers(live)
        self._scans.on_whole_table_scanned(live)
        if streams.sync_leases(sorted(live), self.held_leases.missing_parents(), now_s):
            self._scans.request_whole_scan_in_a_round(now_s, are_scans_rare=self._membership.finds_by_index)
        fleet = [
            entry for entry in fleet if entry.owner_state is OwnerState.ALIVE or entry.lease.key in streams
        ]
        plan = self._planner.plan_round(
            fleet, now_s, self._scans.plan, held_count=len(self.held_leases), chance=self._turn.draw()
        )
        return self._begin_plan(plan, now_s)

    def _run_part_round(self, scan: ScanDone, now_s: float) -> RoundPlan:
        """Run a round on a scan of the watched part: reacquire own leases and take unread ones."""
        self._streams.remember_scan(self._known_rows(), now_s)
        self._acquisitions.on_rows(scan.leases, now_s)
        part = fleet_of(self.view, now_s, self.worker, self.view.watched_keys)
        self._scans.on_part_scanned(part, now_s)
        self._fetch_parents(part, now_s)
        if scan.part != self._scans.plan.part:
            return NOTHING_TO_MOVE  # other workers watch this part
        plan = self._planner.plan_part_takes(part, now_s, self._scans.plan, held_count=len(self.held_leases))
        return self._begin_plan(plan, now_s)

    def _take_free_leases(self, now_s: float) -> None:
        """Take free leases, after a scan that was only for them."""
        if self._stop.is_begun or self._membership.has_leader:
            return
        self._acquisitions.on_rows(self.view, now_s)
        fleet = fleet_of(self.view, now_s, self.worker)
        self._begin_moves(self._planner.plan_free_takes(fleet, self._scans.plan), now_s)

    def _fetch_parents(self, part: Iterable[FleetLease], now_s: float) -> None:
        """Fetch the parents for which free leases of the watched part wait, and those for which held leases wait.

        A parent in another part of the table counts as unfinished until its row was read. The owner of a live lease fetches its
        parents itself.
        """
        for entry in part:
            if entry.waits_for_parents and entry.owner_state is not OwnerState.ALIVE:
                self._row_fetches.request(self.view.blocking_parents(entry.lease), now_s)
        self._row_fetches.request(self.held_leases.parents_to_fetch(), now_s)

    @property
    def round_s(self) -> float:
        """Mean seconds between two regular scans: of the whole table, or of the part that this worker watches."""
        return self._scans.plan.round_s

    def _schedule_round(self, plan: RoundPlan, now_s: float, *, is_whole_table: bool) -> None:
        """Schedule the scan of the next round: earlier for an overdue hand-over or first leases, later if an index shows own leases."""
        extra_scan_due_s = plan.extra_scan_due_s
        if self._scans.plan.part is None:
            extra_scan_due_s = min(extra_scan_due_s, self.view.handovers.next_overdue_s(now_s))
        self._scans.schedule_scans(
            now_s, extra_scan_due_s, is_whole_table=is_whole_table, is_moving=bool(plan.moves)
        )
        if self._membership.finds_by_index:
            self._scans.schedule_regular_scan_in(LED_SCAN_ROUNDS * self.round_s, now_s)
        first_listing_due_s = self._streams.first_listing_due_s
        if first_listing_due_s is not None and not self._stop.is_begun:
            # Only a scan of the whole table shows that a stream still has no leases.
            self._scans.request_whole_scan_by(max(first_listing_due_s, now_s + 0.01 * self.round_s))

    def _begin_plan(self, plan: RoundPlan, now_s: float) -> RoundPlan:
        """Begin those moves of a plan that the fleet's mode allows this worker; return a plan of these alone."""
        plan = self._membership.limit_to_mode(plan)
        self._begin_moves(plan.moves, now_s)
        return plan

    def _begin_moves(self, moves: Sequence[Move], now_s: float) -> None:
        for move in moves:
            if isinstance(move, Acquisition):
                self._acquisitions.begin(move, now_s)
            else:
                self.held_leases.release(move.key, StopWhy.SURPLUS, now_s)

    # --- answers --------------------------------------------------------------------------------------

    def _on_write(self, event: WriteDone, now_s: float) -> None:
        """Handle the answer to a write: check its row, then hand it to the part that made the write."""
        pending = self._writes.settle(event.write_id)
        if pending is None:
            return
        outcome, purpose = event.outcome, pending.purpose
        row = row_of(outcome)
        if row is not None:
            self._later_runs.on_row(row)
        is_table_gone = isinstance(outcome, NotDone) and outcome.problem is Problem.TABLE_MISSING
        if is_table_gone and self._scans.on_table_missing():
            self._streams.on_table_missing(now_s)
        if isinstance(purpose, ForHeldLease):
            if isinstance(outcome, Refused) and outcome.reason is Refusal.MISSING:
                self._remember_row(pending.write.key)
            self.held_leases.on_answer(pending, purpose, outcome, now_s, event.detail)
            return
        self._on_other_write(pending, purpose, outcome, now_s)
        self.held_leases.on_other_answer(pending.write.key, now_s)

    def _on_other_write(
        self, pending: PendingWrite, purpose: OtherPurpose, outcome: WriteOutcome, now_s: float
    ) -> None:
        """Handle the answer to a write that is not a held lease's own."""
        key, row = pending.write.key, row_of(outcome)
        if row is not None and row.key == key:
            self.view.on_row(row, now_s)
        match purpose:
            case ForChildOf():
                self.held_leases.on_child_answer(pending, purpose, outcome, now_s)
            case ForAcquisition(reason):
                self._on_acquisition(pending, reason, outcome, now_s)
            case ForFirstLease():
                self._streams.stream_of(key).syncer.on_first_lease_created(outcome)
            case ForMissingLease():
                self._streams.stream_of(key).syncer.on_lease_created(pending, purpose, outcome)
            case ForCleanup(reason):
                self._streams.stream_of(key).cleanup.on_deleted(key, reason, outcome)
            case ForLateCheckpoint(write):
                self._late_checkpoints.on_answer(write, outcome, now_s)
            case _:
                assert_never(purpose)

    def _on_acquisition(
        self, pending: PendingWrite, reason: Reason, outcome: WriteOutcome, now_s: float
    ) -> None:
        is_request_refused = self._acquisitions.on_answer(pending, reason, outcome, now_s)
        if is_request_refused and not self._planner.is_settled(now_s):
            # If another new worker has requested the lease first, this worker is still invisible: the others count it only
            # once it has requested a lease. So it soon scans to find another lease to request.
            self._scans.request_whole_scan_by(now_s + _EXTRA_SCAN_ROUNDS * self._scans.plan.moving_scan_s)

    def _fetch_rows(self, now_s: float) -> None:
        """Fetch rows by key if scans of the part will not show them."""
        if self._scans.part is not None and not self._stop.is_begun:
            self._row_fetches.request(self._scans.leases_of_unknown_owner, now_s)
        self._row_fetches.fetch_due(now_s)

    def _on_lease_fetched(self, key: str, lease: Lease | None, now_s: float) -> None:
        """Handle the lease that was read by its key, or None if there is no such row."""
        if lease is None:
            self._remember_row(key)
            self.view.on_row_absent(key)
        else:
            self.view.on_row(lease, now_s)
            self._later_runs.on_row(lease)
        self.held_leases.on_lease_fetched(key, lease, now_s)
        self._acquisitions.on_fetch_ended(key, now_s, is_read=True)
        if self._row_fetches.on_answer(key) and not self._stop.is_begun:
            self._scans.on_owner_known(key)
            if lease is not None:
                self._acquisitions.on_rows([lease], now_s)
            self.held_leases.advance_waiting_leases(now_s)
