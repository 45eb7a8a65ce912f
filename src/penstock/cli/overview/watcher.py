"""Take snapshots of applications: reads their lease tables, lists their shards and measures lags. Writes nothing."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.cli.lease_report import WatchedLease, streams_of, watch_leases
from penstock.cli.overview.cells import stream_name
from penstock.cli.overview.changes import changes_between
from penstock.cli.overview.queue_rows import QueueOverview
from penstock.cli.overview.shard_rows import LagWithChange, shard_rows, skipped_problems, worker_rows
from penstock.cli.overview.snapshot import ApplicationSnapshot, Event, Snapshot
from penstock.cli.overview.trouble import TroubleLimits, sort_applications
from penstock.core.leases.lease import WHOLE_TABLE, keyed_shard
from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.safe_text import describe_error
from penstock.core.shard_graph import ShardGraph
from penstock.core.sizing.autoscaler_lease import AUTOSCALER_PREFIX
from penstock.errors import NotFound, PenstockError, ServiceError
from penstock.runtime.shard_lags import (
    ONE_MEASUREMENT,
    REPEATED_MEASUREMENT,
    ReadEffort,
    ShardLag,
    measure_lags,
)
from penstock.runtime.threads import map_on_daemons

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.aws.lease_table_finder import LeaseTableFinder
    from penstock.core.leases.lease import Lease
    from penstock.core.position import Position
    from penstock.core.shard import Shard
    from penstock.ports.clock import Clock
    from penstock.ports.kinesis import Kinesis
    from penstock.ports.lease_table import LeaseScan, LeaseTable, SkippedRow

_log: Final = logging.getLogger("penstock.overview")

EVENTS_MAX: Final = 200
APPLICATIONS_MAX: Final = 200
_LIST_SHARDS_EVERY_S: Final = 30.0
_FIND_TABLES_EVERY_S: Final = 60.0
_APPLICATIONS_AT_ONCE: Final = 4
_QUEUES_WAIT_S: Final = 60.0  # the calls have deadlines of their own
_WATCHED_AT_ONCE: Final = 64  # the number of connections


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of a watcher.

    Args:
        stream: The stream of applications whose leases do not name it.
        silent_after_s: An owner that has not renewed its lease for this long counts as silent.
        lag_count_max: One snapshot fetches the lags of at most this many shards of an application; the others
            follow in the next.
        limits: Thresholds of problems.
    """

    stream: str | None = None
    silent_after_s: float = 30.0
    lag_count_max: int = 100
    limits: TroubleLimits = field(default_factory=TroubleLimits)


class ApplicationWatcher:
    """Takes snapshots of one application. Not thread-safe."""

    def __init__(self, table: LeaseTable, kinesis: Kinesis, clock: Clock, options: WatchOptions) -> None:
        self._table = table
        self._kinesis = kinesis
        self._clock = clock
        self._options = options
        self._view = LeaseView(options.silent_after_s)
        # By lease: the last read checkpoint, and when it was first read.
        self._checkpoints: dict[str, tuple[Position, float]] = {}
        self._lags: dict[str, tuple[float, LagWithChange]] = {}
        self._graph = ShardGraph()
        self._shards: dict[str, tuple[Shard, ...]] = {}  # shards by the prefix of their stream's lease keys
        self._listed_s: float | None = None
        self._unlisted_leases: frozenset[str] = frozenset()  # leases whose shards the last listing lacked
        self._listing_problems: tuple[str, ...] = ()  # problems of the last listing
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._last_snapshot: ApplicationSnapshot | None = None

    def take_snapshot(self) -> ApplicationSnapshot:
        """Take a snapshot. Failed calls are listed in its problems."""
        try:
            # Rows may be a second old; a consistent scan costs twice as much.
            scan = self._table.scan(WHOLE_TABLE)
        except ServiceError as error:
            return self._with_events(self.failed_snapshot(error))
        now_s = self._clock.monotonic_s()
        skipped_rows = [(row.key, row.reason) for row in scan.skipped_rows]
        self._view.on_scan(scan.leases, now_s, skipped_rows=skipped_rows)
        watched_leases = [
            WatchedLease(
                lease, state, unmoved_s, self._view.was_renewed(lease.key) and state is not OwnerState.EXPIRED
            )
            for lease, state, unmoved_s in self._view.with_owner_states(now_s)
        ]
        return self._with_events(
            self._build_snapshot(
                watched_leases, scan.skipped_rows, REPEATED_MEASUREMENT, self._options.lag_count_max
            )
        )

    def watch_once(self) -> tuple[list[WatchedLease], LeaseScan]:
        """Scan the table until every owner has renewed its leases, for at most `silent_after_s`.

        Raises:
            ServiceError: The table cannot be read.
        """
        return watch_leases(self._table, self._clock, self._options.silent_after_s)

    def take_single_snapshot(self, watched: tuple[list[WatchedLease], LeaseScan]) -> ApplicationSnapshot:
        """Return the snapshot of a table that `watch_once` has watched, with all lags."""
        watched_leases, scan = watched
        lag_count_max = len(watched_leases) if self._options.lag_count_max else 0
        return self._build_snapshot(watched_leases, scan.skipped_rows, ONE_MEASUREMENT, lag_count_max)

    def failed_snapshot(self, error: Exception) -> ApplicationSnapshot:
        """Return an empty snapshot with an error as its problem."""
        text = str(error) if isinstance(error, PenstockError) else describe_error(error)
        return ApplicationSnapshot(
            self._table.name, self._options.stream, self._clock.wall_ms(), problems=(text,)
        )

    def _with_events(self, snapshot: ApplicationSnapshot) -> ApplicationSnapshot:
        """Add the changes since the last snapshot to the events; return the snapshot with all events."""
        if self._last_snapshot is not None:
            self._events.extendleft(changes_between(self._last_snapshot, snapshot))
        if snapshot.shards:
            self._last_snapshot = snapshot
        return replace(snapshot, events=tuple(self._events))

    def _build_snapshot(
        self,
        watched_leases: Sequence[WatchedLease],
        skipped_rows: Sequence[SkippedRow],
        effort: ReadEffort,
        lag_count_max: int,
    ) -> ApplicationSnapshot:
        leases = [each.lease for each in watched_leases]
        streams = streams_of(leases, self._options.stream)
        problems = skipped_problems(skipped_rows)
        if streams:
            problems += self._list_shards(streams, leases)
            self._measure_lags(streams, leases, effort, lag_count_max)
        elif leases and lag_count_max:
            problems.append("the leases do not name their stream, so no lag is known: give --stream")
        lags = {key: known for key, (_, known) in self._lags.items()}
        rows = shard_rows(
            watched_leases, lags, self._checkpoints_unmoved_s(leases), self._graph, self._options.limits
        )
        return ApplicationSnapshot(
            application=self._table.name,
            stream=_streams_text(streams) or self._options.stream,
            taken_ms=self._clock.wall_ms(),
            shards=rows,
            workers=worker_rows(rows),
            lineage=tuple(self._graph),
            problems=tuple(problems),
            streams=streams,
        )

    def _list_shards(self, streams: Mapping[str, str], leases: Sequence[Lease]) -> tuple[str, ...]:
        """List the shards if the listing is half a minute old or a lease is of an unlisted shard; return the problems."""
        now_s = self._clock.monotonic_s()
        unlisted = frozenset(lease.key for lease in leases if lease.key not in self._graph)
        is_recent = self._listed_s is not None and now_s - self._listed_s < _LIST_SHARDS_EVERY_S
        if is_recent and unlisted <= self._unlisted_leases:
            return self._listing_problems
        problems = []
        for stream_id, stream in streams.items():
            try:
                listed = self._kinesis.fetch_shards(stream).shards
            except NotFound as error:
                # The leases of an application that is done may outlive its stream.
                if any(lease.reader is not None and not lease.is_ended for lease in leases):
                    problems.append(str(error))
            except ServiceError as error:
                problems.append(str(error))
            else:
                self._shards[stream_id] = tuple(keyed_shard(stream_id, shard) for shard in listed)
        try:
            self._graph = ShardGraph(
                shard for stream_id in streams for shard in self._shards.get(stream_id, ())
            )
        except ValueError as error:
            problems.append(str(error))
        self._listed_s = now_s
        self._unlisted_leases = frozenset(key for key in unlisted if key not in self._graph)
        self._listing_problems = tuple(problems)
        return self._listing_problems

    def _measure_lags(
        self, streams: Mapping[str, str], leases: Sequence[Lease], effort: ReadEffort, count_max: int
    ) -> None:
        unfinished = {lease.key: lease for lease in leases if not lease.is_ended}
        self._lags = {key: known for key, known in self._lags.items() if key in unfinished}
        longest_waiting_first = sorted(
            unfinished, key=lambda key: self._lags[key][0] if key in self._lags else float("-inf")
        )
        chosen_leases = [unfinished[key] for key in longest_waiting_first[:count_max]]
        for lag in measure_lags(self._kinesis, streams, chosen_leases, self._clock, effort):
            now_s = self._clock.monotonic_s()
            self._lags[lag.key] = (now_s, self._with_change(lag, now_s))

    def _with_change(self, lag: ShardLag, now_s: float) -> LagWithChange:
        """Return a lag with its change since the last measurement, or the old lag if the service refused to measure."""
        if lag.key not in self._lags:
            return LagWithChange(lag)
        before_s, before = self._lags[lag.key]
        if lag.lag_ms is None and lag.refused_count:
            # The workers use up the shard's reads: an old lag is better than none.
            return LagWithChange(replace(before.lag, refused_count=lag.refused_count), before.change)
        if lag.lag_ms is None or before.lag.lag_ms is None or now_s <= before_s:
            return LagWithChange(lag)
        return LagWithChange(lag, (lag.lag_ms - before.lag.lag_ms) / 1000 / (now_s - before_s))

    def _checkpoints_unmoved_s(self, leases: Sequence[Lease]) -> dict[str, float]:
        now_s = self._clock.monotonic_s()
        before, self._checkpoints = self._checkpoints, {}
        for lease in leases:
            known = before.get(lease.key)
            same = known is not None and known[0] == lease.checkpoint
            self._checkpoints[lease.key] = known if known is not None and same else (lease.checkpoint, now_s)
        return {key: now_s - since_s for key, (_, since_s) in self._checkpoints.items()}


def _has_only_autoscaler_leases(snapshot: ApplicationSnapshot) -> bool:
    """Return whether a table has only the leases by which autoscalers elect the one that acts."""
    return bool(snapshot.shards) and all(row.shard.startswith(AUTOSCALER_PREFIX) for row in snapshot.shards)


def _streams_text(streams: Mapping[str, str]) -> str | None:
    """Return the stream's ARN or name, or the names of several streams; None if no stream is known."""
    found = list(streams.values())
    if len(found) > 1:
        return ", ".join(sorted(stream_name(stream) for stream in found))
    return found[0] if found else None


class FleetWatcher:
    """Takes snapshots of several applications: the named ones, or else all whose lease tables are found.

    Args:
        names: Names of the applications; if empty, the finder finds them.
        finder: Used if no names are given.
        take_queues: Returns the queues, given how long to wait for them; called if no names are given.
    """

    def __init__(
        self,
        names: Sequence[str],
        open_watcher: Callable[[str], ApplicationWatcher],
        finder: LeaseTableFinder,
        clock: Clock,
        take_queues: Callable[[float], QueueOverview] = lambda _: QueueOverview(),
    ) -> None:
        self._take_queues = take_queues
        self._names = tuple(dict.fromkeys(names))
        self._open_watcher = open_watcher
        self._finder = finder
        self._clock = clock
        self._found_names: tuple[str, ...] = ()
        self._found_s: float | None = None
        self._problems: tuple[str, ...] = ()
        self._watchers: dict[str, ApplicationWatcher] = {}
        self._failures: dict[str, str] = {}  # failures that are logged already, by application

    def take_snapshot(self) -> Snapshot:
        """Take a snapshot of all applications. If an application fails, its snapshot has only the problem."""
        self._choose_applications()

        def snapshot(name: str) -> ApplicationSnapshot:
            return self._snapshot_or_failed(name, self._watchers[name].take_snapshot)

        return self._join_snapshots(
            map_on_daemons("penstock-snapshot", _APPLICATIONS_AT_ONCE, snapshot, self._watchers)
        )

    def take_single_snapshot(self) -> Snapshot:
        """Take the only snapshot of a command. At most 64 tables are watched at the same time."""
        self._choose_applications()
        if not self._names:
            self._take_queues(0.0)  # starts the read; the tables are watched meanwhile

        def watch(name: str) -> tuple[list[WatchedLease], LeaseScan] | ApplicationSnapshot:
            try:
                return self._watchers[name].watch_once()
            except Exception as error:  # noqa: BLE001 - one application must not hide the others
                return self._failed_snapshot(name, error)

        def snapshot(name: str) -> ApplicationSnapshot:
            watched = watched_by_name[name]
            if isinstance(watched, ApplicationSnapshot):
                return watched
            return self._snapshot_or_failed(name, lambda: self._watchers[name].take_single_snapshot(watched))

        watching = map_on_daemons("penstock-watch", _WATCHED_AT_ONCE, watch, self._watchers)
        watched_by_name = dict(zip(self._watchers, watching, strict=True))
        return self._join_snapshots(
            map_on_daemons("penstock-snapshot", _APPLICATIONS_AT_ONCE, snapshot, self._watchers),
            _QUEUES_WAIT_S,
        )

    def _choose_applications(self) -> None:
        names = self._names or self._find_applications()
        self._watchers = {
            name: self._watchers[name] if name in self._watchers else self._open_watcher(name)
            for name in names
        }

    def _snapshot_or_failed(self, name: str, take: Callable[[], ApplicationSnapshot]) -> ApplicationSnapshot:
        try:
            found = take()
        except Exception as error:  # noqa: BLE001 - one application must not hide the others
            return self._failed_snapshot(name, error)
        self._failures.pop(name, None)
        return found

    def _failed_snapshot(self, name: str, error: Exception) -> ApplicationSnapshot:
        snapshot = self._watchers[name].failed_snapshot(error)
        text = snapshot.problems[0]
        if not isinstance(error, ServiceError) and self._failures.get(name) != text:
            _log.error("the snapshot of %s failed", name, exc_info=error)
            self._failures[name] = text
        return snapshot

    def _join_snapshots(
        self, snapshots: Sequence[ApplicationSnapshot], queues_wait_s: float = 0.0
    ) -> Snapshot:
        queues = QueueOverview()
        if not self._names:  # show everything: the queues too, but not the tables that only autoscalers use
            queues = self._take_queues(queues_wait_s)
            snapshots = [each for each in snapshots if not _has_only_autoscaler_leases(each)]
        return Snapshot(self._clock.wall_ms(), sort_applications(snapshots), self._problems, queues)

    def _find_applications(self) -> tuple[str, ...]:
        """Return the names of the lease tables in the region; find them again if the last result is old."""
        now_s = self._clock.monotonic_s()
        if self._found_s is not None and now_s - self._found_s < _FIND_TABLES_EVERY_S:
            return self._found_names
        try:
            found = self._finder.find()
        except ServiceError as error:
            if self._found_s is None:
                raise
            self._problems = (str(error),)
            return self._found_names
        self._found_names, self._found_s = found.names[:APPLICATIONS_MAX], now_s
        problems = []
        if found.refused_count:
            problems.append(
                f"{found.refused_count} tables may not be described, so it is not known whether they hold leases: "
                "allow dynamodb:DescribeTable, or name the applications"
            )
        if len(found.names) > APPLICATIONS_MAX:
            problems.append(
                f"{len(found.names)} lease tables were found, and the first {APPLICATIONS_MAX} are shown: name those "
                "that you want"
            )
        self._problems = tuple(problems)
        return self._found_names
