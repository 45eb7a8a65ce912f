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
from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.structs import replace

from penstock.core.batches.known_batches import KnownBatches
from penstock.core.batches.offsets import NO_LIMITS, Limits, StreamOffset
from penstock.core.batches.shard_state import Settlement
from penstock.core.leases.coordinator_effects import StartReader
from penstock.core.reading.service_clock import service_bound_ms
from penstock.core.starting import with_moment
from penstock.errors import PenstockError, Unavailable
from penstock.spark.driver.batch_settling import BatchSettler, refuse_another_driver
from penstock.spark.driver.batch_tasks import BatchTasks, PlannedBatch
from penstock.spark.driver.driver_ports import DriverPorts
from penstock.spark.driver.figures import (
    describe_missing_shards,
    describe_unread_part,
    progress_report,
    send_metrics,
)
from penstock.spark.driver.joining import JoinedQuery, draw_name, join, leave
from penstock.spark.driver.lease_recreation import LeaseRecreation
from penstock.spark.driver.news_polling import NewsPoller, read_cost_s
from penstock.spark.driver.search import Search, must_await_shard
from penstock.spark.driver.startup_checks import refuse_shared_default_name
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.query_stream import check_stream
from penstock.spark.tasks.shard_read import BatchPart

_log: Final = logging.getLogger("penstock.spark")
_PATIENT_WAIT_S_MIN: Final = 60.0
_FIRST_SHARD_S: Final = 60.0  # until then, another worker may hand over a shard after its batch


class Planner:
    """The driver's side of one streaming query. Called by one thread.

    Args:
        read_shard: Reads one shard of a batch as an executor does; the planner drops the rows. Its second argument is Spark's id
            of the query, or None until the first claim of a task has shown it.
    """

    def __init__(
        self,
        options: SourceOptions,
        ports: DriverPorts,
        *,
        read_shard: Callable[[BatchPart, str | None], Iterable[Any]],
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
        self._run = draw_name(ports.chance)
        self._tasks = BatchTasks(options, ports.clock, self._run)
        self._recreation = LeaseRecreation(
            ports.kinesis, ports.table, options, ports.clock, ports.open_earlier_table
        )
        self._settler = BatchSettler(
            options,
            ports.table,
            self._recreation,
            clock=ports.clock,
            threads=ports.threads,
            read_shard=read_shard,
            parts_of=self._tasks.parts,
        )
        self._joined: JoinedQuery | None = None
        self._awaits_first_leases = True
        self._has_late_leases = False  # the first ones were late, and no search has ended empty since
        self._planned: PlannedBatch | None = None
        # When to warn that this query has got no shard; inf after the warning.
        self._warn_due_s = float("inf")
        self._until_ms = options.until_ms  # the end of an AvailableNow query's records
        self._settlement: Settlement | None = None  # of the last batch, for the report
        self._known_batches = KnownBatches()  # up to the last offset that Spark has passed
        self._last_done: StreamOffset | None = None  # the last done batch, until the next one begins

    # --- Spark's questions --------------------------------------------------------------------------------

    def prepare_available_now(self) -> None:
        """Fix the moment up to which the query reads before it ends."""
        listing = self._kinesis.fetch_shards(self._options.stream)
        self._until_ms = service_bound_ms(self._clock.wall_ms(), listing.server_ms)

    def join(self, offset: StreamOffset) -> None:
        """Join the application, before the first batch is planned or repeated; a later call has no effect.

        Args:
            offset: The last offset of the checkpoint location, or the initial one.

        Raises:
            PenstockError: As `joining.join`.
        """
        if self._joined is None:
            self._joined = join(self._ports, self._options, offset, self._recreation, self._run)

    def latest(
        self, start: StreamOffset, *, with_limits: bool = True, may_be_only_batch: bool = False
    ) -> StreamOffset:
        """Return the next batch's offset, or `start` itself if there is nothing to read. The query has joined.

        Wait for new records: up to one probe interval, or as `begin_search` describes if the first leases were late. With
        AvailableNow, an answer without a new batch ends the query, so wait until the whole stream is read.

        Args:
            start: The offset of the previous batch, which is done.
            with_limits: Whether the options' limits count for this batch.
            may_be_only_batch: Whether this may be the only batch of the run: with `trigger(once=True)`, or with AvailableNow if
                Spark does not pass that trigger to the source. This method then waits for all leases and for an answer from
                every shard, and warns if they are not complete in time.

        Raises:
            Unavailable: With AvailableNow, if it is still uncertain after some time whether the whole stream is read, or if the query
                has never read and has got no shard by then.
        """
        search = self.begin_search(start, may_be_only_batch=may_be_only_batch)
        while not self.search_once(search) or must_await_shard([search], self._clock.monotonic_s()):
            self.wait(search.wake_s - self._clock.monotonic_s())
        limits = Limits(self._options.record_count_max, self._options.bytes_max)
        return self.plan(search, limits if with_limits else NO_LIMITS)

    def begin_search(self, start: StreamOffset, *, may_be_only_batch: bool = False) -> Search:
        """Begin to search for records to read after a batch, which is done: for one probe interval, or patiently.

        A search is patient if the run ends when it finds nothing: it waits for an answer from every shard, at most a minute
        or four lease durations. If the first leases were late, searches are patient too, until one has ended without records:
        without leases a search finds nothing in a full stream, and `processAllAvailable` would return.
        """
        self._last_done, self._known_batches = start, start.known_batches
        self._await_first_leases()
        if may_be_only_batch:  # a shard that was at its tip before this call may have records since
            self._query.shards.probe_again()
        is_patient = may_be_only_batch or self._until_ms is not None or self._has_late_leases
        wait_s = self._options.probe_interval_s
        if is_patient:
            wait_s = max(_PATIENT_WAIT_S_MIN, 4 * self._options.lease_duration_s)
        return Search(start, may_be_only_batch, is_patient, wait_s, self._clock.monotonic_s() + wait_s)

    def search_once(self, search: Search) -> bool:
        """Search once for records to read. Return whether the search has ended; if not, call again at `search.wake_s`.

        The search ends at the first shard with records. If the run may have only this batch, all shards must have answered.

        Raises:
            Unavailable: As `latest`.
        """
        search.wanted_shards = self._update_shards(search.start)
        if search.wanted_shards and not search.may_be_only_batch:
            return True
        shards = self._query.shards
        self._settler.promote(shards, at_once=search.is_patient)  # the run may end with this search
        self._query.query_worker.post_tip_marks(shards)
        is_complete = search.is_patient and self._await_every_answer()
        now_s = self._clock.monotonic_s()
        idle = (state for state in shards.states.values() if not state.has_news)
        search.wake_s = min(search.deadline_s, self._poller.next_probe_s(idle))
        if search.is_patient:  # check again whether live workers read the rest of the stream
            search.wake_s = min(search.wake_s, now_s + self._options.probe_interval_s)
        if not is_complete and now_s < search.deadline_s:
            return False
        self._has_late_leases = False
        if search.is_patient and not is_complete:
            self._report_unread_part(search)
        self._report_missing_shards(search, now_s)
        return True

    def _update_shards(self, start: StreamOffset) -> list[str]:
        """Update the shards after a batch, and return those with records to read.

        In order: add the shards of new leases and remove those of lost ones, settle the batch, probe idle shards, create deleted
        leases again, and release the shards that are read to their end or must stop.
        """
        query = self._query
        shards = query.shards
        self._apply_commands()
        if not shards.is_settled_for(start.batch):
            self._settle(start)
        self._poller.probe_due_shards(shards.states.items(), retention_ms=query.retention_ms)
        self._settler.recreate_lost_leases(query)
        query.query_worker.post(
            [
                *shards.release_finished(self._poller.list_children(shards.childless_shards())),
                *shards.release_stopped(),
            ]
        )
        return [shard for shard, state in shards.states.items() if state.has_records_before(self._until_ms)]

    def _report_unread_part(self, search: Search) -> None:
        """Warn that a search for records may have missed some; with AvailableNow, raise Unavailable if it has found none."""
        unread = describe_unread_part(self._query, self._options, search.wait_s)
        if self._until_ms is not None and not search.wanted_shards:
            raise Unavailable(unread)
        _log.warning(unread)

    def _report_missing_shards(self, search: Search, now_s: float) -> None:
        """Warn once if this query has read nothing and has no shard.

        With AvailableNow, if the checkpoint location has no batch either, the search gets the reason: the query may never get a shard.
        """
        why = None if self._planned is not None else describe_missing_shards(self._query, self._options)
        search.missing_shards = why if self._until_ms is not None and search.start.batch == 0 else None
        if why is not None and now_s >= self._warn_due_s:
            _log.warning(why)
            self._warn_due_s = float("inf")

    def wait(self, duration_s: float) -> None:
        """Wait for a duration, or until the lease coordinator has a command."""
        self._query.query_worker.wait(max(0.005, duration_s))

    def plan(self, search: Search, limits: Limits) -> StreamOffset:
        """Return the offset of a batch of the shards that the search found with records; `search.start` if it found none."""
        if not search.wanted_shards:
            return search.start
        query, planned_ms = self._query, self._poller.fetch_now_ms()
        shards = query.shards
        # Another stream of the same name refuses the position of a record, but not TRIM_HORIZON, LATEST or a timestamp.
        has_other_start = any(not shards.states[key].position.is_record for key in search.wanted_shards)
        if query.name_check is not None and has_other_start:
            query.name_check.check()
        # Shards whose last seen claims may have been removed.
        unverified = shards.unverified_claims.intersection(search.wanted_shards)
        if unverified:
            shards.on_fresh_rows(unverified, self._settler.fetch_leases(unverified))
        offset = shards.next_offset(
            search.start,
            search.wanted_shards,
            run=self._run,
            stream=query.stream,
            lease_table=self._options.lease_table,
            record_count_max=limits.record_count_max,
            bytes_max=limits.bytes_max,
            until_ms=self._until_ms,
            deaggregates=self._options.deaggregate,
        )
        self._planned = PlannedBatch(offset, planned_ms)
        return offset

    def tasks(self, offset: StreamOffset, *, partitions_max: int | None = None) -> list[list[BatchPart]]:
        """Return the tasks of a batch, each with the parts that it reads. The query has joined.

        Args:
            offset: The batch's start in each shard; Spark passes it as the batch's end.
            partitions_max: The most tasks of this batch; None for the options' limit.
        """
        self._last_done = None  # a batch is under way
        self._known_batches = offset.known_batches
        self._await_first_leases()
        if self._planned is None or self._planned.offset.batch != offset.batch:
            self._planned = PlannedBatch(offset, self._poller.fetch_now_ms())
        self._query.shards.on_batch_start()
        return self._tasks.plan(self._planned, self._query, partitions_max)

    def report(self) -> dict[str, Any] | None:
        """Return the last batch's figures, the query's lag, and its leases.

        Shown as `latestOffset` in the query's progress; `penstock.spark.lag` reads it.
        """
        if self._joined is None or self._settlement is None:
            return None
        tip_age_ms = None
        if self._until_ms is not None and self._poller.has_service_clock:
            tip_age_ms = max(0, self._poller.steady_now_ms() - self._until_ms)
        reads_to_tip = not self._options.batch_limits and (self._until_ms is None or tip_age_ms is not None)
        return progress_report(
            self._joined,
            self._settlement,
            self._options.stream,
            reads_to_tip=reads_to_tip,
            tip_age_ms=tip_age_ms,
        )

    def stop(self) -> None:
        """End threads, and leave the application. If the query is idle, release the leases at once, with their positions.

        While a batch is under way the leases keep the query's name: the batch may be repeated, and must find its claims.
        Spark may stop the query while `latest` runs. If that has not settled the last batch yet, this method settles it.
        """
        self._poller.close()
        self._settler.close()
        if self._joined is None:
            return
        try:
            leave(self._joined, self._ports, self._options, is_settled=self._settle_last())
        finally:
            self._joined = None

    def _settle_last(self) -> bool:
        """Settle the last done batch, if it is not settled yet; return False if a batch is under way or the service fails."""
        try:
            self._apply_commands()
            if self._last_done is not None and not self._query.shards.is_settled_for(self._last_done.batch):
                self._settle(self._last_done, is_last=True)
        except PenstockError as error:
            _log.warning(
                "leases are kept until they expire, since the last batch could not be settled: %s", error
            )
            return False
        return self._query.shards.is_settled

    # --- in the application ---------------------------------------------------------------------------------

    @property
    def _query(self) -> JoinedQuery:
        assert self._joined is not None, "the query has joined its application"
        return self._joined

    def _await_first_leases(self) -> None:
        """Wait for the query's first leases, once."""
        if self._awaits_first_leases:
            self._awaits_first_leases = False
            query, options = self._query, self._options
            self._warn_due_s = self._clock.monotonic_s() + (_FIRST_SHARD_S if self._until_ms is None else 0)
            wait_s = max(10.0, 2 * options.lease_duration_s)
            self._has_late_leases = not query.query_worker.await_leases(wait_s)
            refuse_shared_default_name(
                self._ports.table, query.shards.worker, options, self._clock, has_joined=True
            )
            self._apply_commands()

    def _check_stream(self) -> None:
        """Raise an error unless the stream exists and is the one with which the query began."""
        options = self._options
        found = self._kinesis.fetch_summary(options.stream).identity
        check_stream(options.stream, options.application, found, self._query.stream)

    def _apply_commands(self) -> None:
        """Add the shards that the coordinator has assigned to this query, and remove those that it has taken away.

        Before a shard is added, its lease must show no batch of another driver. If a KCL worker wrote AT_TIMESTAMP on the lease
        without the moment, the query's options have the moment.
        """
        shards = self._query.shards
        for command in self._query.query_worker.take_commands():
            if isinstance(command, StartReader):
                refuse_another_driver(self._known_batches, shards, [command.lease])
                self._settler.refuse_reset_lease(shards, command.lease)
                begin = with_moment(command.position, self._options.starting.position_of(command.key))
                shards.on_start_reader(replace(command, position=begin), self._clock.wall_ms())
            else:
                shards.on_stop_reader(command)

    # --- between batches --------------------------------------------------------------------------------------

    def _settle(self, start: StreamOffset, *, is_last: bool = False) -> None:
        query = self._query
        settlement = self._settler.settle(start, self._planned, query, is_last=is_last)
        self._settlement = settlement
        self._tasks.on_settled(start.batch, settlement, query.shards)
        send_metrics(query, settlement)
        query.query_worker.post(settlement.progress)

    def _await_every_answer(self) -> bool:
        """Return whether every shard of the stream has an answer: a patient search may then end.

        Each shard of this query must have new records or was probed, and live workers must read all other shards. This is
        certain only when the query has every lease that it can have: wait for that, at most one probe interval, and apply
        the coordinator's commands. If these add or remove shards, return False: a new shard has not answered.
        """
        query_worker, shards = self._query.query_worker, self._query.shards
        if shards.unprobed_shards:
            return False
        before = set(shards.states)
        query_worker.wait_until_at_rest(self._options.probe_interval_s)
        self._apply_commands()
        is_same = before == set(shards.states) and query_worker.is_at_rest
        return is_same and query_worker.describe_unread_part() is None
