"""Plans the batches of a streaming query, in the process beside the driver.

Spark calls `latest` when the batch before is done, and `tasks` to run the next one. `latest`

1. settles the batch before: its claims are the next starts;
2. probes idle shards for news;
3. releases the shards that are read to their end or that another worker wants;
4. returns the next batch's offset, or the start offset itself if there is nothing to read, so that no empty batch runs.

While the query is idle, claims become checkpoints, which KCL workers and `penstock leases` see.

`penstock.core.batches.query_shards` decides; the lease coordinator behind `query_worker` assigns the leases. Every call to
the service has bounded retries and a deadline: an exception here ends the query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from penstock.core.batches.claims import Execution, find_unknown_claims, last_claimed_batch
from penstock.core.batches.known_batches import KnownBatches
from penstock.core.batches.offsets import StreamOffset
from penstock.core.batches.probe_pace import READ_COST_S
from penstock.core.batches.query_shards import QueryShards, Settlement, ShardState
from penstock.core.batches.rewind import goes_back
from penstock.core.batches.task_slots import TaskSlots
from penstock.core.batches.task_split import plan_tasks
from penstock.core.leases.coordinator_effects import StartReader
from penstock.core.leases.lease import Lease, name_run
from penstock.core.limits import RETENTION_DEFAULT_MS
from penstock.core.reading.service_clock import service_bound_ms
from penstock.core.shard import ChildShard
from penstock.core.shard_graph import covers
from penstock.core.starting import with_moment
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import AccessDenied, PenstockError, Unavailable
from penstock.ports.clock import Chance, Clock
from penstock.ports.fan_out import FanOut
from penstock.ports.kcl3_tables import Kcl3Tables
from penstock.ports.kinesis import Kinesis
from penstock.ports.lease_table import LeaseTable
from penstock.ports.metrics import ClosableMetrics
from penstock.runtime.consumer_registration import ConsumerRegistration
from penstock.runtime.known_stream import KnownStream
from penstock.runtime.threads import Threads
from penstock.spark.driver.batch_settling import BatchSettler, PlannedBatch
from penstock.spark.driver.lease_recreation import LeaseRecreation
from penstock.spark.driver.news_polling import NewsPoller
from penstock.spark.driver.query_worker import STOP_S, QueryWorker, coordinator_options
from penstock.spark.driver.startup_checks import (
    check_named_shards,
    refuse_future_start,
    refuse_hidden_sharing,
    refuse_living_driver,
    refuse_other_stream,
    rewind_leases,
    scan_leases,
    warn_of_ignored_start,
    warn_of_skipped_shards,
)
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.query_stream import check_stream
from penstock.spark.tasks.shard_task import ShardTask

_log: Final = logging.getLogger("penstock.spark")
_AVAILABLE_NOW_WAIT_S: Final = 60.0
_WITHOUT_FAN_OUT: Final = "use its name (option consumerName), or set consumerType=polling"


class Planner:
    """The driver's side of one streaming query. Called by one thread.

    Args:
        options: The source's options.
        kinesis: The service.
        table: The application's lease table.
        clock: Time.
        chance: Jitter and unique names.
        threads: Source of its threads.
        open_metrics: Opens the metrics backend for a worker id.
        read: Reads one shard of a batch as an executor does; its rows are dropped here. Its second argument is Spark's id
            of the query, or None while no task has claimed.
        open_table: Opens another lease table by its name: the query's earlier one.
        kcl3: Tables of KCL 3 workers beside the leases; None if there are none.
        fan_out: Registers the query's consumer; None if it polls.
        know_stream: Returns the check whether the stream's name still means it; None checks nothing.
    """

    def __init__(
        self,
        options: SourceOptions,
        kinesis: Kinesis,
        table: LeaseTable,
        *,
        clock: Clock,
        chance: Chance,
        threads: Threads,
        open_metrics: Callable[[SourceOptions, str], ClosableMetrics],
        read: Callable[[ShardTask, str | None], Iterable[Any]],
        open_table: Callable[[str], LeaseTable],
        kcl3: Kcl3Tables | None = None,
        fan_out: FanOut | None = None,
        know_stream: Callable[[StreamIdentity], KnownStream] | None = None,
    ) -> None:
        self._options = options
        self._kinesis = kinesis
        self._table = table
        self._clock = clock
        self._chance = chance
        self._threads = threads
        self._kcl3 = kcl3
        self._fan_out = fan_out
        self._consumer_arn: str | None = None
        self._open_metrics = open_metrics
        self._metrics: ClosableMetrics | None = None
        self._poller = NewsPoller(
            kinesis,
            options.stream,
            options.probe_interval_s,
            clock,
            backoff=options.connection.backoff,
            deadline_s=options.connection.deadline_s,
            check_stream=self._check_stream,
            threads=threads,
            chance=chance,
            read_cost_s=_read_cost_s(options),
        )
        self._recreation = LeaseRecreation(kinesis, table, options, clock, open_table)
        self._settler = BatchSettler(
            options,
            table,
            self._recreation,
            clock=clock,
            threads=threads,
            read=read,
            tasks_of=self._shard_tasks,
        )
        self._run = _draw_name(chance)
        self._joined: tuple[QueryWorker, QueryShards] | None = None
        self._stream = StreamIdentity("", 0)
        self._know_stream = know_stream
        self._known_stream: KnownStream | None = None
        self._planned: PlannedBatch | None = None
        self._tips_due_s = float("-inf")
        self._children_due_s = float("-inf")
        self._retention_ms = RETENTION_DEFAULT_MS
        self._until_ms: int | None = None
        self._weights: dict[str, int] = {}
        self._slots = TaskSlots()
        self._task_counts: dict[int, int] = {}  # of the batch that was planned last
        self._settlement: Settlement | None = None
        self._known = KnownBatches()  # up to the last one that Spark has named
        self._done: StreamOffset | None = None  # the last done batch, until the next one begins

    # --- Spark's questions --------------------------------------------------------------------------------

    def prepare_available_now(self) -> None:
        """Fix the moment up to which the query reads before it ends."""
        listing = self._kinesis.fetch_shards(self._options.stream)
        self._until_ms = service_bound_ms(self._clock.wall_ms(), listing.server_ms)

    def latest(
        self, start: StreamOffset, *, with_limits: bool = True, may_be_only: bool = False
    ) -> StreamOffset:
        """Return the next batch's offset, or `start` itself if there is nothing to read.

        Wait up to one probe interval for news. With AvailableNow, "nothing to read" ends the query, so then wait until all
        shards are known to be read.

        Args:
            start: The offset of the batch before, which is done.
            with_limits: Whether the options' limits count for this batch.
            may_be_only: Whether the query ends after this batch (`trigger(once=True)`) or may end (AvailableNow of a Spark
                that does not pass the trigger to the source). The plan then waits for all leases and for an answer from
                every shard, or warns after a time.

        Raises:
            Unavailable: With AvailableNow: some part of the stream is not known to be read in time.
        """
        self._done, self._known = start, start.known_batches
        query_worker, shards = self._join(start)
        is_patient = may_be_only or self._until_ms is not None
        wait_s = self._available_now_wait_s if is_patient else self._options.probe_interval_s
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            self._apply_commands(query_worker, shards)
            if not shards.is_settled_for(start.batch):
                self._settle(start, query_worker, shards)
            self._poller.poll_due(shards.states.items(), retention_ms=self._retention_ms)
            self._settler.recreate_lost_leases(shards, self._stream)
            query_worker.report([*shards.drained(self._find_children(shards)), *shards.release_stopped()])
            wanted = [shard for shard, state in shards.states.items() if self._is_wanted(state)]
            if wanted and not may_be_only:
                break
            self._settler.promote(shards)
            self._report_tips(query_worker, shards)
            if is_patient and self._is_complete(query_worker, shards):
                break
            now_s = self._clock.monotonic_s()
            if now_s >= deadline_s:
                if self._until_ms is not None:
                    raise Unavailable(self._describe_unread(query_worker, shards, wait_s))
                if may_be_only:
                    _log.warning(self._describe_unread(query_worker, shards, wait_s))
                break
            idle = (state for state in shards.states.values() if not state.has_news)
            wake_s = min(deadline_s, self._poller.next_due_s(idle))
            if is_patient:  # until the readers of the rest of the stream are known
                wake_s = min(wake_s, now_s + self._options.probe_interval_s)
            query_worker.wait(max(0.005, wake_s - now_s))
        return self._next_offset(start, shards, wanted, with_limits=with_limits) if wanted else start

    def tasks(self, end: StreamOffset) -> list[list[ShardTask]]:
        """Return the shards of each task of a batch. Only the offset decides, so a replay reads the same records."""
        self._done, self._known = None, end.known_batches
        _, shards = self._join(end)
        if self._planned is None or self._planned.end.batch != end.batch:
            self._planned = PlannedBatch(end, self._planned_ms())
        by_shard = {task.shard_id: task for task in self._shard_tasks(self._planned, shards)}
        shards.on_batch_start()
        weights = {shard_id: self._weights.get(shard_id, 0) for shard_id in by_shard}
        split = plan_tasks(weights, self._task_count(len(weights)))
        self._task_counts = {end.batch: len(split)}
        return [[by_shard[shard_id] for shard_id in task] for task in split]

    def _task_count(self, shard_count: int) -> int:
        options = self._options
        count = self._slots.plan_count(shard_count)
        if options.shards_per_task is not None:
            count = -(-shard_count // options.shards_per_task)
        return count if options.partitions_max is None else min(count, options.partitions_max)

    def _shard_tasks(self, batch: PlannedBatch, shards: QueryShards) -> Iterator[ShardTask]:
        end = batch.end
        for shard_id, share in end.shares().items():
            state = shards.states.get(shard_id)
            position = end.shards[shard_id]
            is_here = state is not None and state.position == position
            yield ShardTask(
                shard_id=shard_id,
                execution=Execution(
                    end.worker,
                    end.batch,
                    self._run,
                    position,
                    shards.seen_claim(shard_id),
                    end.known_batches.planner_of(end.batch),
                ),
                share=share,
                until_ms=end.until_ms,
                planned_ms=batch.planned_ms,
                tip_ms=end.tips.get(shard_id, state.tip_seen_ms if state is not None and is_here else None),
                is_foreign=state is not None and is_here and state.is_foreign,
                retention_ms=self._retention_ms,
                stream=self._stream,
                deaggregates=end.deaggregates,
                consumer_arn=self._consumer_arn,
            )

    def report(self) -> dict[str, Any] | None:
        """Return the last batch's figures, the query's lag, and its leases.

        Shown as `latestOffset` in the query's progress; `penstock.spark.lag` reads it.
        """
        if self._joined is None or self._settlement is None:
            return None
        query_worker, shards = self._joined
        stats, done = query_worker.stats, self._settlement
        behind = {key: state.millis_behind_latest for key, state in sorted(shards.states.items())}
        lag = {key: millis for key, millis in behind.items() if millis is not None}
        pushed = {"records": done.pushed_count, "ends": dict(sorted(done.push_ends.items()))}
        return {
            **({} if self._consumer_arn is None else {"pushed": pushed}),
            "bytes": done.bytes_count,
            "claims": done.claim_count,
            "keptIterators": done.kept_iterator_count,
            "leases": {
                "held": stats.held_leases,
                "lost": stats.lost_leases,
                "taken": sum(count for _, count in stats.takes),
                "total": stats.total_leases,
            },
            "maxMillisBehindLatest": max(lag.values(), default=0),
            "millisBehindLatest": lag,
            "problems": list(query_worker.problems),
            "readsToTip": self._until_ms is None and self._options.is_unlimited,
            "records": done.record_count,
            "stream": self._options.stream,
        }

    def stop(self) -> None:
        """End threads. If the query is idle, release the leases at once, with their positions.

        While a batch is under way the leases keep the query's name: the batch may be repeated, and must find its claims.
        Spark may end the process during any of the calls above; a batch that is done is then settled here.
        """
        self._poller.close()
        self._settler.close()
        if self._joined is None:
            return
        (query_worker, shards), self._joined = self._joined, None
        if not self._is_settled_at_last(query_worker, shards):
            query_worker.abandon()
            return
        query_worker.report([*shards.drained(), *shards.release_all()])
        if self._metrics is not None:
            self._metrics.close()
        if not query_worker.stop(STOP_S):
            _log.warning("not all leases could be released within %g s; they expire by themselves", STOP_S)

    def _is_settled_at_last(self, query_worker: QueryWorker, shards: QueryShards) -> bool:
        """Settle a done batch that is not settled yet; return False if a batch is under way or the service fails."""
        try:
            self._apply_commands(query_worker, shards)
            if self._done is not None and not shards.is_settled_for(self._done.batch):
                self._settle(self._done, query_worker, shards, is_last=True)
        except PenstockError as error:
            _log.warning(
                "leases are kept until they expire, since the last batch could not be settled: %s", error
            )
            return False
        return shards.is_settled

    # --- joining the application ----------------------------------------------------------------------------

    def _join(self, known: StreamOffset) -> tuple[QueryWorker, QueryShards]:
        if self._joined is not None:
            return self._joined
        options = self._options
        summary = self._kinesis.fetch_summary(options.stream)
        self._stream = StreamIdentity(summary.arn, summary.created_ms)
        meant = StreamIdentity(known.stream_arn, known.stream_created_ms)
        check_stream(options.stream, options.application, self._stream, meant)
        if self._know_stream is not None:
            self._known_stream = self._know_stream(self._stream)
        self._retention_ms = summary.retention_ms
        if not known.shards:
            refuse_future_start(self._kinesis, options, self._clock)
        self._table.ensure_exists()
        worker = self._worker_id(known)
        refuse_hidden_sharing(self._table, worker, options, self._clock)
        rows = scan_leases(self._table)
        refuse_other_stream(self._kinesis, self._table, options.stream, self._stream, rows)
        if not rows and not known.shards and options.starting.by_shard:
            check_named_shards(self._kinesis, options)
        if not known.shards:
            warn_of_ignored_start(self._table, rows, options)
        rows = self._rewind(known, worker, rows)
        self._register_consumer()  # after all checks, because a registered consumer costs money
        warn_of_skipped_shards(options, self._table, rows, known)
        if known.shards and self._recreation.repair_at_start(rows, known, self._stream):
            rows = scan_leases(self._table)
        self._metrics = self._open_metrics(options, worker)
        query_worker = QueryWorker(
            worker,
            replace(
                coordinator_options(
                    options, is_new=not known.shards, open_shard_count=summary.open_shard_count
                ),
                stream=self._stream,
                kcl3=self._kcl3 is not None,
            ),
            run_name=name_run(worker, self._run[:8]),
            stream=options.stream,
            table=self._table,
            kinesis=self._kinesis,
            clock=self._clock,
            chance=self._chance,
            threads=self._threads,
            metrics=self._metrics,
            kcl3=self._kcl3,
            known=self._known_stream,
        )
        shards = QueryShards(worker, self._settler.last_unknown_batch)
        for row in rows.values():
            shards.on_row(row)
        self._joined = (query_worker, shards)
        wait_s = max(10.0, 2 * options.lease_duration_s)
        if not query_worker.wait_until_at_rest(wait_s):
            why = "".join(f"; {problem}" for problem in query_worker.problems)
            _log.warning(
                "worker %s has not got its leases within %g s; it goes on without%s", worker, wait_s, why
            )
        self._apply_commands(*self._joined)
        return self._joined

    def _register_consumer(self) -> None:
        """Find or register, once, the consumer under which the query's tasks subscribe."""
        name = self._options.consumer_name
        if self._fan_out is None or name is None:
            return
        registration = ConsumerRegistration(
            self._fan_out, self._stream.arn, name, self._clock, self._chance, way_out=_WITHOUT_FAN_OUT
        )
        try:
            self._consumer_arn = registration.fetch_arn()
        except AccessDenied as error:
            raise AccessDenied(
                f"{error}. A query with consumerType={self._options.consumer_type} needs kinesis:{error.operation} for consumer "
                f"{name} of stream {self._options.stream} (all permissions: docs/fan-out.md); allow it, or set "
                "consumerType=polling",
                operation=error.operation,
                code=error.code,
                resource=error.resource,
            ) from error

    def _check_stream(self) -> None:
        """Raise an error unless the stream exists and is the one with which the query began."""
        options, summary = self._options, self._kinesis.fetch_summary(self._options.stream)
        found = StreamIdentity(summary.arn, summary.created_ms)
        check_stream(options.stream, options.application, found, self._stream)

    def _worker_id(self, known: StreamOffset) -> str:
        options = self._options
        if known.worker:
            if options.worker_id not in (None, known.worker):
                _log.warning(
                    "option workerId=%s has no effect: the checkpoint was begun as %s",
                    options.worker_id,
                    known.worker,
                )
            return known.worker
        name = options.worker_id or f"spark-{_draw_name(self._chance)}"
        if options.zone is not None and "/" not in name:
            name = f"{options.zone}/{name}"
        return name if options.capacity == 1 or "@" in name else f"{name}@{options.capacity}"

    def _rewind(self, known: StreamOffset, worker: str, rows: dict[str, Lease]) -> dict[str, Lease]:
        """Reset leases whose claims the checkpoint location has no record of; return the leases after the reset."""
        self._settler.accept_claims(rows.values(), worker, known.known_batches)
        if not known.worker:
            # A new checkpoint location under the workerId of an earlier one: its batch numbers follow that one's.
            self._settler.last_unknown_batch = last_claimed_batch(rows.values(), worker)
            return rows
        unknown = find_unknown_claims(rows.values(), worker, known.known_batches)
        if not any(claim.batch > known.batch or goes_back(row, claim, known) for row, claim in unknown):
            return rows
        refuse_living_driver(self._table, worker, rows, self._options.lease_duration_s, self._clock)
        self._settler.last_unknown_batch = rewind_leases(
            self._kinesis, self._table, self._options, known, worker
        )
        return scan_leases(self._table)

    def _apply_commands(self, query_worker: QueryWorker, shards: QueryShards) -> None:
        for command in query_worker.take_commands():
            if isinstance(command, StartReader):
                self._settler.refuse_another_driver(self._known, shards, {command.key: command.lease})
                begin = with_moment(command.position, self._options.starting.of(command.key))
                shards.start(replace(command, position=begin), self._clock.wall_ms())
            else:
                shards.stop(command)

    # --- settling the batch before --------------------------------------------------------------------------

    def _settle(
        self, start: StreamOffset, query_worker: QueryWorker, shards: QueryShards, *, is_last: bool = False
    ) -> None:
        settlement = self._settler.settle(start, self._planned, shards, self._stream, is_last=is_last)
        self._settlement = settlement
        task_count = self._task_counts.get(start.batch)
        if task_count is not None and settlement.processes:
            self._slots.on_batch_done(task_count, len(settlement.processes))
        self._weights = {shard_id: state.bytes_count for shard_id, state in shards.states.items()}
        self._measure(settlement, shards)
        query_worker.report(settlement.progress)

    def _measure(self, done: Settlement, shards: QueryShards) -> None:
        metrics = self._metrics
        if metrics is None:
            return
        metrics.count("records", done.record_count)
        metrics.count("bytes", done.bytes_count)
        metrics.count("claims", done.claim_count)
        if self._consumer_arn is not None:
            metrics.count("pushed_records", done.pushed_count)
            for why, count in done.push_ends.items():
                metrics.count("subscriptions_ended", count, {"why": why})
        metrics.count("iterators_kept", done.kept_iterator_count)
        metrics.count("iterators_asked_for", done.claim_count - done.kept_iterator_count)
        for shard_id, state in shards.states.items():
            if state.millis_behind_latest is not None:
                metrics.gauge("millis_behind_latest", state.millis_behind_latest, {"shard": shard_id})

    # --- between batches --------------------------------------------------------------------------------------

    def _find_children(self, shards: QueryShards) -> dict[str, tuple[ChildShard, ...]]:
        """Look up the children of shards that are read to their end and whose claims do not name them.

        A listing may lag. It counts if the children cover their parent, or if the parent has left the stream.
        """
        childless, now_s = shards.childless(), self._clock.monotonic_s()
        if not childless or now_s < self._children_due_s:
            return {}
        self._children_due_s = now_s + self._options.probe_interval_s
        listed = {shard.shard_id: shard for shard in self._kinesis.fetch_shards(self._options.stream).shards}
        found = {}
        for key in childless:
            children = [shard for shard in listed.values() if key in shard.parents]
            if key not in listed or covers((child.hash_range for child in children), listed[key].hash_range):
                found[key] = tuple(
                    ChildShard(child.shard_id, child.parents, child.hash_range) for child in children
                )
        return found

    def _is_wanted(self, state: ShardState) -> bool:
        if not state.has_news:
            return False
        return self._until_ms is None or state.arrival_ms is None or state.arrival_ms < self._until_ms

    def _is_complete(self, query_worker: QueryWorker, shards: QueryShards) -> bool:
        """Whether the query has all of its shards, and each is known to have news or not.

        Live workers must read the rest of the stream. Handles commands, so shards may be added.
        """
        if _unanswered(shards):
            return False
        before = set(shards.states)
        query_worker.wait_until_at_rest(self._options.probe_interval_s)
        self._apply_commands(query_worker, shards)
        is_same = before == set(shards.states) and query_worker.is_at_rest
        return is_same and query_worker.describe_unread() is None

    @property
    def _available_now_wait_s(self) -> float:
        return max(_AVAILABLE_NOW_WAIT_S, 4 * self._options.lease_duration_s)

    def _describe_unread(self, query_worker: QueryWorker, shards: QueryShards, wait_s: float) -> str:
        unknown, unread = _unanswered(shards), query_worker.describe_unread()
        why = (
            f"no answer from {', '.join(unknown[:5])}"
            if unknown
            else unread or "its leases did not come to rest"
        )
        why = "; ".join((why, *query_worker.problems))
        return (
            f"stream {self._options.stream}: for {wait_s:g} s it could not be made sure that everything is read "
            f"({why}; {query_worker.stats.held_leases} leases held): all batches so far are done, start the query again for the rest"
        )

    def _next_offset(
        self, start: StreamOffset, shards: QueryShards, wanted: Iterable[str], *, with_limits: bool
    ) -> StreamOffset:
        planned_ms = self._planned_ms()
        unverified = shards.unverified.intersection(wanted := list(wanted))
        if self._known_stream is not None and not all(
            shards.states[key].position.is_record for key in wanted
        ):
            self._known_stream.check()  # another stream of the same name refuses a record's position, but not TRIM_HORIZON
        if unverified:
            shards.on_fresh_rows(unverified, self._settler.fetch_leases(unverified))
        end = shards.next_offset(
            start,
            wanted,
            run=self._run,
            stream=self._stream,
            lease_table=self._options.lease_table,
            record_count_max=self._options.record_count_max if with_limits else None,
            bytes_max=self._options.bytes_max if with_limits else None,
            until_ms=self._until_ms,
            deaggregates=self._options.deaggregate,
        )
        self._planned = PlannedBatch(end, planned_ms)
        return end

    def _planned_ms(self) -> int:
        """Return the moment of a plan by the service's clock: records that arrive later belong to a later batch."""
        # If every shard has more to read, none is probed; and this machine's clock may be wrong by hours.
        if not self._poller.has_service_time:
            self._poller.on_service_time(self._kinesis.fetch_shards(self._options.stream).server_ms)
        return self._poller.planned_ms()

    def _report_tips(self, query_worker: QueryWorker, shards: QueryShards) -> None:
        """Post tip marks for the next heartbeats to write, no more often than heartbeats are made."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._tips_due_s:
            self._tips_due_s = now_s + self._options.lease_duration_s / 6
            query_worker.report(shards.progress())


def _unanswered(shards: QueryShards) -> list[str]:
    """Return the shards of which it is not known yet whether they have more to read."""
    return sorted(key for key, state in shards.states.items() if not state.has_news and not state.is_probed)


def _read_cost_s(options: SourceOptions) -> float:
    """Return the part of a shard's read quota that one read takes. With fan-out only probes take any."""
    share = 0.5 if options.consumer_type == "fan-out" else 1.0
    return share * min(options.fetch_interval_s, READ_COST_S)


def _draw_name(chance: Chance) -> str:
    """Return twelve hexadecimal digits."""
    return f"{int(chance.random() * 2**48):012x}"
