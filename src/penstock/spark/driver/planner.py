"""Plans the batches of a streaming query, in the process beside the driver.

Spark calls `latest` when the previous batch is done, and `tasks` to run the next one. `latest`

1. settles the previous batch: its claims are the next starts;
2. probes idle shards for news;
3. releases the shards that are read to their end or that another worker wants;
4. returns the next batch's offset, or the start offset itself if there is nothing to read, so that no empty batch runs.

While the query is idle, claims become checkpoints, which KCL workers and `penstock leases` see.

`penstock.core.batches.query_shards` decides; the lease coordinator behind `query_worker` assigns the leases. Every call to
the service has bounded retries and a deadline: an exception here ends the query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.batches.claims import Execution
from penstock.core.batches.known_batches import KnownBatches
from penstock.core.batches.offsets import StreamOffset
from penstock.core.batches.query_shards import QueryShards, Settlement, ShardState
from penstock.core.batches.subscription_turns import SubscriptionTurns
from penstock.core.batches.task_slots import TaskSlots
from penstock.core.batches.task_split import plan_tasks
from penstock.core.leases.coordinator_effects import StartReader
from penstock.core.reading.service_clock import service_bound_ms
from penstock.core.shard import ChildShard
from penstock.core.starting import with_moment
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import PenstockError, Unavailable
from penstock.spark.driver.batch_settling import BatchSettler, PlannedBatch
from penstock.spark.driver.child_lookup import find_children
from penstock.spark.driver.figures import measure, report_of
from penstock.spark.driver.joining import DriverPorts, Joined, draw_name, join
from penstock.spark.driver.lease_recreation import LeaseRecreation
from penstock.spark.driver.news_polling import NewsPoller, read_cost_s
from penstock.spark.driver.query_worker import STOP_S
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.query_stream import check_stream
from penstock.spark.tasks.shard_task import ShardTask

_log: Final = logging.getLogger("penstock.spark")
_AVAILABLE_NOW_WAIT_S: Final = 60.0


class Limits(Struct, frozen=True):
    """The limits of one batch; None: none.

    Args:
        record_count_max: User records.
        bytes_max: Bytes of user data.
    """

    record_count_max: int | None = None
    bytes_max: int | None = None


NO_LIMITS: Final = Limits()


class Search(Struct):
    """A search for records to read after a batch.

    Args:
        start: The offset of the batch, which is done.
        joined: The query.
        may_be_only: As in `Planner.latest`.
        is_patient: Whether it ends only when every shard has answered.
        wait_s: Its longest duration.
        deadline_s: Its end, on the monotonic clock.
        wanted: The shards with records to read, as of the last look.
        wake_s: When to look again, on the monotonic clock.
    """

    start: StreamOffset
    joined: Joined
    may_be_only: bool
    is_patient: bool
    wait_s: float
    deadline_s: float
    wanted: Sequence[str] = ()
    wake_s: float = float("-inf")

    def wait(self, duration_s: float) -> None:
        """Wait for so long, or until the lease coordinator has a command."""
        self.joined.query_worker.wait(max(0.005, duration_s))


class Planner:
    """The driver's side of one streaming query. Called by one thread.

    Args:
        options: The source's options.
        ports: The driver's ports.
        read: Reads one shard of a batch as an executor does; the planner drops the rows. Its second argument is Spark's id
            of the query, or None until the first claim of a task has shown it.
    """

    def __init__(
        self,
        options: SourceOptions,
        ports: DriverPorts,
        *,
        read: Callable[[ShardTask, str | None], Iterable[Any]],
    ) -> None:
        self._options = options
        self._ports = ports
        self._kinesis = ports.kinesis
        self._clock = ports.clock
        self._poller = NewsPoller(
            ports.kinesis,
            options.stream,
            options.probe_interval_s,
            ports.clock,
            backoff=options.connection.backoff,
            deadline_s=options.connection.deadline_s,
            check_stream=self._check_stream,
            threads=ports.threads,
            chance=ports.chance,
            read_cost_s=read_cost_s(options),
        )
        self._recreation = LeaseRecreation(ports.kinesis, ports.table, options, ports.clock, ports.open_table)
        self._settler = BatchSettler(
            options,
            ports.table,
            self._recreation,
            clock=ports.clock,
            threads=ports.threads,
            read=read,
            tasks_of=self._shard_tasks,
        )
        self._run = draw_name(ports.chance)
        self._joined: Joined | None = None
        self._awaits_leases = False
        self._planned: PlannedBatch | None = None
        self._tips_due_s = float("-inf")
        self._children_due_s = float("-inf")
        self._until_ms: int | None = None
        self._weights: dict[str, int] = {}
        self._slots = TaskSlots()
        self._turns = SubscriptionTurns()
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

        Wait up to one probe interval for new records. With AvailableNow, an answer without a new batch ends the query, so
        wait until the whole stream is read.

        Args:
            start: The offset of the previous batch, which is done.
            with_limits: Whether the options' limits count for this batch.
            may_be_only: Whether this may be the only batch of the run: with `trigger(once=True)`, or with AvailableNow if
                Spark does not pass that trigger to the source. This method then waits for all leases and for an answer from
                every shard, and warns if they are not complete in time.

        Raises:
            Unavailable: With AvailableNow, if it is still uncertain after some time whether the whole stream is read.
        """
        search = self.begin_search(start, may_be_only=may_be_only)
        while not self.search(search):
            search.wait(search.wake_s - self._clock.monotonic_s())
        return self.plan(search, self._limits if with_limits else NO_LIMITS)

    def join(self, known: StreamOffset) -> None:
        """Join the application, and do not wait for the leases: `begin_search` does. Only before the first search."""
        assert self._joined is None, "the query has joined"
        joined = join(self._ports, self._options, known, self._recreation, self._run)
        self._settler.last_unknown_batch = joined.last_unknown_batch
        self._joined, self._awaits_leases = joined, True

    def begin_search(self, start: StreamOffset, *, may_be_only: bool = False) -> Search:
        """Begin to search for records to read; the arguments are those of `latest`."""
        self._done, self._known = start, start.known_batches
        joined = self._join(start)
        if may_be_only:  # a shard that was at its tip before this call may have records since
            joined.shards.probe_again()
        is_patient = may_be_only or self._until_ms is not None
        wait_s = self._available_now_wait_s if is_patient else self._options.probe_interval_s
        return Search(start, joined, may_be_only, is_patient, wait_s, self._clock.monotonic_s() + wait_s)

    def search(self, search: Search) -> bool:
        """Look once for records to read. Return whether the search has ended; if not, look again at `search.wake_s`.

        Raises:
            Unavailable: As `latest`.
        """
        joined, start = search.joined, search.start
        query_worker, shards = joined.query_worker, joined.shards
        self._apply_commands(joined)
        if not shards.is_settled_for(start.batch):
            self._settle(start, joined)
        self._poller.poll_due(shards.states.items(), retention_ms=joined.retention_ms)
        self._settler.recreate_lost_leases(shards, joined.stream)
        query_worker.report(
            [*shards.release_finished(self._find_children(shards)), *shards.release_stopped()]
        )
        search.wanted = [shard for shard, state in shards.states.items() if self._is_wanted(state)]
        if search.wanted and not search.may_be_only:
            return True
        self._settler.promote(shards, at_once=search.is_patient)
        self._report_tips(joined)
        if search.is_patient and self._is_complete(joined):
            return True
        now_s = self._clock.monotonic_s()
        if now_s >= search.deadline_s:
            if self._until_ms is not None:
                raise Unavailable(self._describe_unread(joined, search.wait_s))
            if search.may_be_only:
                _log.warning(self._describe_unread(joined, search.wait_s))
            return True
        idle = (state for state in shards.states.values() if not state.has_news)
        search.wake_s = min(search.deadline_s, self._poller.next_due_s(idle))
        if search.is_patient:  # check again whether live workers read the rest of the stream
            search.wake_s = min(search.wake_s, now_s + self._options.probe_interval_s)
        return False

    def plan(self, search: Search, limits: Limits) -> StreamOffset:
        """Return the offset of a batch of the wanted shards; the search's start if there are none.

        Args:
            search: An ended search, or one that goes on after this batch.
            limits: Of the batch.
        """
        if not search.wanted:
            return search.start
        return self._next_offset(search.start, search.joined, search.wanted, limits)

    @property
    def _limits(self) -> Limits:
        return Limits(self._options.record_count_max, self._options.bytes_max)

    def tasks(self, end: StreamOffset, *, partitions_max: int | None = None) -> list[list[ShardTask]]:
        """Return the shards of each task of a batch. Only the offset decides, so a replay reads the same records.

        Args:
            end: The batch's offset.
            partitions_max: The most tasks of this batch; None: as the options have it.
        """
        self._done, self._known = None, end.known_batches
        joined = self._join(end)
        shards = joined.shards
        if self._planned is None or self._planned.end.batch != end.batch:
            self._planned = PlannedBatch(end, self._planned_ms())
        by_shard = {task.shard_id: self._with_turn(task) for task in self._shard_tasks(self._planned, shards)}
        self._turns.keep_only(shards.held)
        shards.on_batch_start()
        weights = {shard_id: self._weights.get(shard_id, 0) for shard_id in by_shard}
        split = plan_tasks(
            weights, self._task_count(len(weights), partitions_max or self._options.partitions_max)
        )
        self._task_counts = {end.batch: len(split)}
        return [[by_shard[shard_id] for shard_id in task] for task in split]

    def _with_turn(self, task: ShardTask) -> ShardTask:
        if task.consumer_arn is None:
            return task
        return replace(task, subscribe_after_s=self._turns.plan(task.shard_id, self._clock.monotonic_s()))

    def _task_count(self, shard_count: int, partitions_max: int | None) -> int:
        options = self._options
        count = self._slots.plan_count(shard_count)
        if options.shards_per_task is not None:
            count = -(-shard_count // options.shards_per_task)
        return count if partitions_max is None else min(count, partitions_max)

    def _shard_tasks(self, batch: PlannedBatch, shards: QueryShards) -> Iterator[ShardTask]:
        joined, end = self._joined, batch.end
        assert joined is not None, "a batch was planned before the query joined"
        for shard_id, share in end.shares().items():
            state = shards.states.get(shard_id)
            position = end.shards[shard_id]
            is_at_start = state is not None and state.position == position
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
                tip_ms=end.tips.get(
                    shard_id, state.tip_seen_ms if state is not None and is_at_start else None
                ),
                is_foreign=state is not None and is_at_start and state.is_foreign,
                retention_ms=joined.retention_ms,
                stream=joined.stream,
                deaggregates=end.deaggregates,
                consumer_arn=joined.consumer_arn,
            )

    def report(self) -> dict[str, Any] | None:
        """Return the last batch's figures, the query's lag, and its leases.

        Shown as `latestOffset` in the query's progress; `penstock.spark.lag` reads it.
        """
        if self._joined is None or self._settlement is None:
            return None
        reads_to_tip = self._until_ms is None and self._options.is_unlimited
        return report_of(self._joined, self._settlement, self._options.stream, reads_to_tip=reads_to_tip)

    def stop(self) -> None:
        """End threads. If the query is idle, release the leases at once, with their positions.

        While a batch is under way the leases keep the query's name: the batch may be repeated, and must find its claims.
        Spark may stop the query while `latest` runs. If that has not settled the last batch yet, this method settles it.
        """
        self._poller.close()
        self._settler.close()
        if self._joined is None:
            return
        joined, self._joined = self._joined, None
        if not self._is_settled_at_last(joined):
            joined.query_worker.abandon()
        else:
            joined.query_worker.report([*joined.shards.release_finished(), *joined.shards.release_all()])
            joined.metrics.close()
            if not joined.query_worker.stop(STOP_S):
                _log.warning(
                    "not all leases could be released within %g s; they expire by themselves", STOP_S
                )
        if self._options.deregisters_consumer:
            self._deregister_consumer(joined)

    def _deregister_consumer(self, joined: Joined) -> None:
        """Deregister the query's consumer, after its leases are released; a failure is a warning with the remedy."""
        fan_out, name = self._ports.fan_out, self._options.consumer_name
        if fan_out is None or name is None or joined.consumer_arn is None:
            return
        try:
            fan_out.deregister_consumer(joined.stream.arn, name)
        except PenstockError as error:
            _log.warning(
                "consumer %s of stream %s may still be registered, and billed (penstock streams consumers %s --deregister %s): %s",
                name,
                self._options.stream,
                self._options.stream,
                name,
                error,
            )

    def _is_settled_at_last(self, joined: Joined) -> bool:
        """Settle a done batch that is not settled yet; return False if a batch is under way or the service fails."""
        try:
            self._apply_commands(joined)
            if self._done is not None and not joined.shards.is_settled_for(self._done.batch):
                self._settle(self._done, joined, is_last=True)
        except PenstockError as error:
            _log.warning(
                "leases are kept until they expire, since the last batch could not be settled: %s", error
            )
            return False
        return joined.shards.is_settled

    # --- joining the application ----------------------------------------------------------------------------

    def _join(self, known: StreamOffset) -> Joined:
        if self._joined is None:
            self.join(known)
        joined = self._joined
        assert joined is not None, "a query that has joined"
        if not self._awaits_leases:
            return joined
        self._awaits_leases = False
        worker = joined.query_worker
        wait_s = max(10.0, 2 * self._options.lease_duration_s)
        if not worker.wait_until_at_rest(wait_s):
            why = "".join(f"; {problem}" for problem in worker.problems)
            _log.warning(
                "worker %s has not got its leases within %g s; it goes on without%s",
                worker.worker,
                wait_s,
                why,
            )
        self._apply_commands(joined)
        return joined

    def _check_stream(self) -> None:
        """Raise an error unless the stream exists and is the one with which the query began."""
        joined, options = self._joined, self._options
        assert joined is not None, "a shard was probed before the query joined"
        summary = self._kinesis.fetch_summary(options.stream)
        found = StreamIdentity(summary.arn, summary.created_ms)
        check_stream(options.stream, options.application, found, joined.stream)

    def _apply_commands(self, joined: Joined) -> None:
        shards = joined.shards
        for command in joined.query_worker.take_commands():
            if isinstance(command, StartReader):
                self._settler.refuse_another_driver(self._known, shards, {command.key: command.lease})
                begin = with_moment(command.position, self._options.starting.of(command.key))
                shards.start(replace(command, position=begin), self._clock.wall_ms())
            else:
                shards.stop(command)

    # --- settling the previous batch ------------------------------------------------------------------------

    def _settle(self, start: StreamOffset, joined: Joined, *, is_last: bool = False) -> None:
        shards = joined.shards
        settlement = self._settler.settle(start, self._planned, shards, joined.stream, is_last=is_last)
        self._settlement = settlement
        task_count = self._task_counts.get(start.batch)
        if task_count is not None and settlement.processes:
            self._slots.on_batch_done(task_count, len(settlement.processes))
        self._weights = {shard_id: state.bytes_count for shard_id, state in shards.states.items()}
        measure(joined, settlement)
        joined.query_worker.report(settlement.progress)

    # --- between batches --------------------------------------------------------------------------------------

    def _find_children(self, shards: QueryShards) -> dict[str, tuple[ChildShard, ...]]:
        """List the shards, at most once per probe interval, if a claim of SHARD_END names no children."""
        childless, now_s = shards.childless(), self._clock.monotonic_s()
        if not childless or now_s < self._children_due_s:
            return {}
        self._children_due_s = now_s + self._options.probe_interval_s
        return find_children(childless, self._kinesis.fetch_shards(self._options.stream).shards)

    def _is_wanted(self, state: ShardState) -> bool:
        if not state.has_news:
            return False
        return self._until_ms is None or state.arrival_ms is None or state.arrival_ms < self._until_ms

    def _is_complete(self, joined: Joined) -> bool:
        """Return whether each shard of this query has new records or was probed, and live workers read all other shards.

        If every shard has answered, wait until the query has every lease that it can have, and apply commands. If these add
        or remove shards, return False.
        """
        query_worker, shards = joined.query_worker, joined.shards
        if _unanswered(shards):
            return False
        before = set(shards.states)
        query_worker.wait_until_at_rest(self._options.probe_interval_s)
        self._apply_commands(joined)
        is_same = before == set(shards.states) and query_worker.is_at_rest
        return is_same and query_worker.describe_unread() is None

    @property
    def _available_now_wait_s(self) -> float:
        return max(_AVAILABLE_NOW_WAIT_S, 4 * self._options.lease_duration_s)

    def _describe_unread(self, joined: Joined, wait_s: float) -> str:
        query_worker, shards = joined.query_worker, joined.shards
        unanswered = ", ".join(_unanswered(shards)[:5])
        unread = query_worker.describe_unread() or "its leases did not come to rest"
        why = "; ".join((f"no answer from {unanswered}" if unanswered else unread, *query_worker.problems))
        return (
            f"stream {self._options.stream}: for {wait_s:g} s it could not be made sure that everything is read "
            f"({why}; {query_worker.stats.held_leases} leases held): all batches so far are done, start the query again for the rest"
        )

    def _next_offset(
        self, start: StreamOffset, joined: Joined, wanted: Iterable[str], limits: Limits
    ) -> StreamOffset:
        shards = joined.shards
        planned_ms = self._planned_ms()
        unverified = shards.unverified.intersection(wanted := list(wanted))
        if joined.known_stream is not None and not all(
            shards.states[key].position.is_record for key in wanted
        ):
            joined.known_stream.check()  # another stream of the same name refuses a record's position, but not TRIM_HORIZON
        if unverified:
            shards.on_fresh_rows(unverified, self._settler.fetch_leases(unverified))
        end = shards.next_offset(
            start,
            wanted,
            run=self._run,
            stream=joined.stream,
            lease_table=self._options.lease_table,
            record_count_max=limits.record_count_max,
            bytes_max=limits.bytes_max,
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

    def _report_tips(self, joined: Joined) -> None:
        """Report tip marks for the next renewals to write, at most six times in a lease duration."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._tips_due_s:
            self._tips_due_s = now_s + self._options.lease_duration_s / 6
            joined.query_worker.report(joined.shards.progress())


def _unanswered(shards: QueryShards) -> list[str]:
    """Return the shards that neither have new records nor were probed yet."""
    return sorted(key for key, state in shards.states.items() if not state.has_news and not state.is_probed)
