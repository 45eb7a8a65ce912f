"""One worker's membership in a KCL 3 fleet: it reads the fleet's rows, reports metrics, and follows the leader."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Final, assert_never

from msgspec.structs import replace

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_effects import (
    FetchFleet,
    FindOwnLeases,
    FleetRefused,
    LeaveFleet,
    Level,
    ReportWorker,
    Topic,
)
from penstock.core.leases.coordinator_events import (
    CallFailed,
    FleetEvent,
    FleetFetched,
    FleetLeft,
    LeaseCall,
    OwnLeasesFound,
    Problem,
    WorkerReported,
)
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.fleet_view import Acquisition, tie_break
from penstock.core.leases.kcl3_fleet import (
    CPU,
    REPORT_INTERVAL_S,
    FleetMode,
    FleetModeDetector,
    FleetRefusal,
    Kcl3Rows,
    is_known_version,
    metrics_to_report,
    owners_without_metrics,
    wants_reports,
)
from penstock.core.leases.lease import Lease, stream_id_of
from penstock.core.leases.move_planner import RoundPlan

_JITTER: Final = 0.1
_FIRST_FETCH_RETRY_S: Final = 2.0  # after a failed first read: the worker begins only after one has succeeded
_REPORTS_REFUSED_MAX: Final = 2  # in a row; a changed policy takes effect with a delay
_FETCHED_WORKERS_MAX: Final = 100  # workers whose metrics are read at once
LED_SCAN_ROUNDS: Final = 10
"""Rounds between two scans of the table by a worker that finds its leases by the index."""


class Kcl3Membership:
    """One worker's membership in a KCL 3 fleet, if the table has one. Not thread-safe."""

    def __init__(self, context: CoordinatorContext) -> None:
        self.me: str = context.me
        self.options: CoordinatorOptions = context.options
        self._turn = context.turn
        self.is_refused: bool = False  # this worker cannot work beside the table's KCL 3 workers
        self._wall_s = 0.0  # as of the last read
        self._detector = FleetModeDetector(context.me)
        self.mode: FleetMode = FleetMode.OWN
        self.is_mode_known: bool = not context.options.kcl3
        """Whether the fleet's mode is known: the worker begins only then."""
        self._rows = Kcl3Rows()
        self._fleet_fetch_due_s = math.inf
        self._index_query_due_s = math.inf  # of the index that shows this worker's leases
        self._is_fetching_fleet = False
        self._is_querying_index = False
        self._may_query_index = True  # until the table refuses it
        self._is_reporting = False
        self._has_reported = False
        self._reports_refused = 0  # in a row
        self._is_listed = False  # whether the leader may find this worker's metrics, and assign leases to it
        self._is_stopping = False
        self._is_leaving = False  # its row for the leader is being deleted
        self._reported_mode = ""  # of the last report in the log
        self._fetched_workers: frozenset[str] = frozenset()  # those whose metrics the last fetch read
        self._without_metrics: frozenset[str] = frozenset()  # live workers that report none to the leader
        self._warned_of: set[str] = set()  # workers without metrics that were reported
        self._reported_unread_streams: set[str] = set()

    @property
    def next_wake_s(self) -> float:
        """When `advance` must be called next; infinity for never."""
        if self._is_stopping:  # earlier calls may still be answered
            return math.inf
        fleet_s = math.inf if self._is_fetching_fleet else self._fleet_fetch_due_s
        return min(fleet_s, math.inf if self._is_querying_index else self._index_query_due_s)

    @property
    def has_leader(self) -> bool:
        """Whether a leader assigns every lease."""
        return self.mode is FleetMode.LED

    @property
    def _is_native(self) -> bool:
        """Whether the Java workers of this table follow a leader, even if there is none at the moment."""
        return self.mode in (FleetMode.LED, FleetMode.LEADERLESS)

    @property
    def finds_by_index(self) -> bool:
        """Whether this worker finds its leases by the index, without scanning the table."""
        return self.has_leader and self._rows.has_index and self._may_query_index

    @property
    def is_quiet(self) -> bool:
        """Whether neither a report of metrics nor their deletion is in flight."""
        return not self._is_leaving and not self._is_reporting

    def handle(self, event: FleetEvent, now_s: float, *, is_full: bool) -> bool:
        """Handle the answer to a call about the fleet.

        Args:
            is_full: Whether this worker has `max_leases` leases.

        Returns:
            Whether the table must be scanned again: the fleet's mode has changed, or this worker may not query the index.
        """
        match event:
            case FleetFetched(rows, wall_s):
                return self._on_fleet_fetched(rows, now_s, wall_s, is_full=is_full)
            case CallFailed(LeaseCall.FETCH_FLEET, problem, detail):
                self._on_fetch_failed(problem, detail, now_s)
            case WorkerReported():
                self._on_reported(None, "")
            case CallFailed(LeaseCall.REPORT, problem, detail):
                self._on_reported(problem, detail)
            case FleetLeft():
                self._is_leaving = self._is_listed = False
            case OwnLeasesFound():
                self._on_index_query_ended(now_s)
            case CallFailed(problem=problem):  # of a FIND_OWN
                # An IAM policy that is older than the index does not allow the query. Scans show the same leases.
                self._may_query_index = problem is not Problem.REFUSED
                self._on_index_query_ended(now_s)
                return not self._may_query_index
            case _:
                assert_never(event)
        return False

    # --- reading ------------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Schedule the first read of the fleet's rows, now that the lease table exists."""
        if self.options.kcl3 and self._fleet_fetch_due_s == math.inf:
            self._fleet_fetch_due_s = now_s

    def advance(
        self, live_workers: Collection[str], own_keys: Callable[[], frozenset[str]], now_s: float
    ) -> None:
        """Begin the reads that are due: of KCL 3's own rows, and of the index that shows newly assigned leases.

        Args:
            own_keys: Returns the keys of the leases that this worker holds or has requested; others in its name are new.
        """
        if self._is_stopping:
            return
        if now_s >= self._fleet_fetch_due_s and not self._is_fetching_fleet:
            self._is_fetching_fleet = True
            # In a large fleet each worker checks others, so that together they check all.
            others = sorted(set(live_workers) - {self.me}, key=lambda worker: tie_break(self.me, worker))
            self._fetched_workers = frozenset(others[:_FETCHED_WORKERS_MAX])
            self._turn.emit(FetchFleet(self._fetched_workers))
        if now_s >= self._index_query_due_s and not self._is_querying_index:
            self._is_querying_index = True
            self._turn.emit(FindOwnLeases(own_keys()))

    def _on_fleet_fetched(self, rows: Kcl3Rows, now_s: float, wall_s: float, *, is_full: bool) -> bool:
        """Update the fleet's mode and report this worker's metrics; return whether a known mode has changed."""
        self._is_fetching_fleet = False
        self._rows = rows
        self._wall_s = wall_s
        if not is_known_version(rows.version):
            self._refuse(FleetRefusal.UNKNOWN_VERSION, str(rows.version))
            return False
        before, was_known = self.mode, self.is_mode_known
        self.mode = self._detector.detect(rows, now_s, wall_s)
        self.is_mode_known = True
        self._report_mode(was_known=was_known)
        self._schedule_reads(now_s)
        if wants_reports(rows.version) and not self._is_stopping and not self._is_reporting:
            self._is_reporting = self._is_listed = True
            names = metrics_to_report(rows, wall_s)
            self._turn.emit(ReportWorker(measures_cpu=CPU in names, is_full=is_full))
        return was_known and self.mode is not before

    def _refuse(self, why: FleetRefusal, detail: str) -> None:
        if not self.is_refused:
            self.is_refused = True
            self._turn.emit(FleetRefused(why, detail))

    def _on_fetch_failed(self, problem: Problem, detail: str, now_s: float) -> None:
        self._is_fetching_fleet = False
        if problem is Problem.REFUSED and not self.is_mode_known:
            self._refuse(FleetRefusal.UNREADABLE, detail)
        pause_s = REPORT_INTERVAL_S if self.is_mode_known else _FIRST_FETCH_RETRY_S
        self._fleet_fetch_due_s = now_s + self._turn.jittered(pause_s, 0.5)

    def _schedule_reads(self, now_s: float) -> None:
        """Schedule the next read of the fleet's rows, and the first query of the index when it becomes usable."""
        # Without a leader this worker takes free leases itself, so it checks for the next leader in every round.
        pause_s = self.options.interval_s if self.mode is FleetMode.LEADERLESS else REPORT_INTERVAL_S
        self._fleet_fetch_due_s = now_s + self._turn.jittered(pause_s, _JITTER)
        due_s = self._detector.leader_due_s
        if self.has_leader and due_s is not None:
            self._fleet_fetch_due_s = min(self._fleet_fetch_due_s, due_s)
        if not self.finds_by_index:
            self._index_query_due_s = math.inf
        elif self._index_query_due_s == math.inf:
            self._index_query_due_s = now_s

    def _report_mode(self, *, was_known: bool) -> None:
        """Report the fleet's mode if it has changed.

        Args:
            was_known: Whether an earlier read has shown a mode. The first mode is reported only if KCL 3 workers have used the
                table.
        """
        rows = self._rows
        leader = rows.leader.owner if self.has_leader and rows.leader is not None else ""
        mode = f"{self.mode.name} {leader}"
        is_same, self._reported_mode = mode == self._reported_mode, mode
        if is_same or (rows.version is None and not was_known):
            return
        who = f"; the leader is {leader}" if leader else ""
        state = "no KCL 3 worker" if rows.version is None else rows.version
        self._turn.report(
            Topic.FLEET, Level.INFO, f"{self.mode.value}{who} ({state})", reason=self.mode.name.lower()
        )

    # --- leases that the leader has assigned --------------------------------------------------------------

    def _on_index_query_ended(self, now_s: float) -> None:
        self._is_querying_index = False
        pause_s = self._turn.jittered(self.options.interval_s, _JITTER) if self.finds_by_index else math.inf
        self._index_query_due_s = now_s + pause_s

    def report_unread_streams(self, rows: Iterable[Lease]) -> None:
        """Report streams that this worker does not read although the leader has assigned it leases of them.

        Args:
            rows: Leases of streams that are not read here.
        """
        if not self.has_leader:
            return
        assigned = {stream_id_of(row.key) for row in rows if row.owner == self.me and not row.is_ended}
        for stream_id in sorted(assigned - self._reported_unread_streams):
            self._reported_unread_streams.add(stream_id)
            self._turn.report(
                Topic.FLEET,
                Level.ERROR,
                f"the leader of the native KCL 3 fleet assigns leases of stream {stream_id} to this worker, which does not "
                "read that stream, so those shards are not read: in a fleet with a leader all workers must read the same "
                f"streams. Add {stream_id} to the streams of this worker, or stop it",
                reason="unread",
            )

    def limit_to_mode(self, plan: RoundPlan) -> RoundPlan:
        """Return a plan of those moves alone that the fleet's mode allows this worker.

        A leader assigns every lease, so this worker only releases some, and needs no extra scan for leases to take. Without a
        leader it also takes leases that have no live reader; other leases do not move until there is a leader.
        """
        match self.mode:
            case FleetMode.LED:
                releases = [move for move in plan.moves if not isinstance(move, Acquisition)]
                return RoundPlan(releases, extra_scan_due_s=math.inf)
            case FleetMode.LEADERLESS:
                kept = [move for move in plan.moves if not (isinstance(move, Acquisition) and move.is_live)]
                return replace(plan, moves=kept)
            case _:
                return plan

    def on_live_workers(self, workers: Collection[str]) -> None:
        """Warn once of each live worker that has reported no metrics in two rounds in a row."""
        if not self._is_native:
            self._without_metrics = frozenset()
            return
        before = self._without_metrics
        self._without_metrics = frozenset(
            owners_without_metrics(self._rows, set(workers) & self._fetched_workers, self._wall_s)
        )
        new = sorted((self._without_metrics & before) - self._warned_of)
        self._warned_of.update(new)
        if new:
            self._turn.report(
                Topic.FLEET,
                Level.WARNING,
                f"workers {', '.join(new[:5])} renew leases in a native KCL 3 fleet and report no metrics, so its leader "
                "cannot count on them, and a KCL 2.x worker keeps what was handed to another one: stop them, or update "
                "them to KCL 3 or this version of Penstock",
                reason="unseen",
            )

    # --- leaving ------------------------------------------------------------------------------------------

    def _on_reported(self, problem: Problem | None, detail: str) -> None:
        """Handle the answer to a report of metrics. If a native fleet refuses this worker's first reports, the worker stops."""
        self._is_reporting = False
        self._reports_refused = self._reports_refused + 1 if problem is Problem.REFUSED else 0
        if problem is None:
            self._has_reported = True
        elif problem is Problem.REFUSED and not self._has_reported:
            self._is_listed = False  # there are no metrics to delete
            if self._is_native and self._reports_refused >= _REPORTS_REFUSED_MAX:
                self._refuse(FleetRefusal.UNREPORTED, detail)
        if self._is_stopping:
            self._delete_metrics()

    def leave(self) -> None:
        """Leave the fleet: delete this worker's metrics, so that no more leases are assigned to it."""
        self._is_stopping = True
        if not self._is_reporting:
            self._delete_metrics()

    def _delete_metrics(self) -> None:
        if self._is_listed and not self._is_leaving:
            self._is_leaving = True
            self._turn.emit(LeaveFleet())
