"""A simulated Spark query: the production's planner in a separate process, driven as Spark drives it.

Spark's logs of offsets and commits survive the driver; everything else dies with it, at any moment,
also in the middle of a call. Tasks run in executors (`executor`), which its death does not touch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from penstock.core.batches.claims import resolve_start
from penstock.core.batches.offsets import INITIAL_OFFSET, StreamOffset, parse_offset
from penstock.core.leases.coordinator_effects import Effect, Report, StartReader
from penstock.core.leases.coordinator_events import Event, ReaderStopped, ShardDrained
from penstock.core.leases.lease import Lease, TablePart
from penstock.core.leases.lease_writes import LeaseWrite, Outcome
from penstock.ports.lease_table import LeaseScan
from penstock.ports.metrics import NoMetrics
from penstock.runtime.lease_loop import LeaseLoop
from penstock.runtime.loop import Loop
from penstock.spark.driver.driver_ports import DriverPorts
from penstock.spark.driver.planner import Planner
from penstock.spark.options.spark_options import SourceOptions, parse_source
from penstock.spark.tasks.iterator_cache import IteratorCache
from penstock.spark.tasks.shard_read import BatchPart
from penstock_sim.blocking_ports import SimClock, SimEarlierTable, SimKcl3Tables, SimKinesis, SimLeaseTable
from penstock_sim.environment import Environment
from penstock_sim.events import processes, queries, reading
from penstock_sim.executor import ReadAttempt, ShardRows, read_task
from penstock_sim.fan_out import SimFanOut
from penstock_sim.plan import STREAM_NAME
from penstock_sim.process import SimProcess, scan_name
from penstock_sim.spark_job import OnEnd
from penstock_sim.spark_processes import SparkDriver, SparkLog
from penstock_sim.stream import SimStream
from penstock_sim.virtual_threads import VirtualThreads


class QueryLog(SparkLog):
    """The content of a query's checkpoint location."""

    accepts_loss: bool = False
    """Whether its user has read that records are lost, and has set failOnDataLoss=false."""

    def offset(self, index: int) -> StreamOffset:
        """Return the offset of a batch by Spark's number; the initial one before the first."""
        return INITIAL_OFFSET if index < 0 else parse_offset(json.loads(self.offsets[index]))

    def add_offset(self, index: int, offset: StreamOffset) -> None:
        self.check_next(index)
        self.offsets.append(json.dumps(offset.to_json(), sort_keys=True))

    def copy(self) -> QueryLog:
        return QueryLog(list(self.offsets), self.committed_count, self.accepts_loss)

    def restore(self, choice: float) -> bool:
        """Go back to an earlier state; False if there is none with a batch in it."""
        # Offsets and commits alternate, so the number of entries is the whole state.
        earlier = range(1, len(self.offsets) + self.committed_count)
        if not earlier:
            return False
        self.committed_count, is_under_way = divmod(earlier[int(choice * len(earlier))], 2)
        del self.offsets[self.committed_count + is_under_way :]
        return True


class SimQuery(SparkDriver):
    """One life of a query's driver.

    Args:
        on_batch: Called before the tasks of a batch begin.
        stream: Another stream than the world's, for a query that has no business here.
        query: Spark's id of the query, if it has several sources; each of them is driven by itself here.
        names_application: Whether its user has chosen an application's name.
    """

    _planner: Planner

    def __init__(
        self,
        world: Environment,
        name: str,
        *,
        log: QueryLog,
        on_batch: Callable[[SimQuery], None],
        stream: SimStream | None = None,
        query: str | None = None,
        names_application: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(world, name, **more)
        self.log = log
        self.query = query or name
        self._on_batch = on_batch
        self._stream = stream or world.stream
        self._options = self._parse_options(names_application=names_application)
        self._clock = SimClock(self)
        self._threads = VirtualThreads(self)
        self._table = _DriverTable(self, lambda: world.fibers.current is self.main)
        self.read_now: tuple[str, ...] = ()
        """The shards of the batch under way."""
        self._reads_what_is_there = world.has_fault("available_now")
        self.has_begun = False
        """Whether it has planned or run a batch, and goes on until it is stopped."""

    def _parse_options(self, *, names_application: bool) -> SourceOptions:
        """Return the query's options, as its user gives them."""
        world, scenario = self.world, self.world.scenario
        start = scenario.options.start.default
        given = {
            "streamName": STREAM_NAME if self._stream is world.stream else "other",
            "workerId": self.name,
            "leaseDuration": f"{scenario.options.lease_duration_s}s",
            "balance": scenario.options.policy.value,
            "region": "sim-1",
            **scenario.query_plan.options,
        }
        if start.timestamp_ms is not None:
            given["startingTimestamp"] = str(start.timestamp_ms)
        else:
            given["startingPosition"] = "LATEST" if start.sentinel is None else start.sentinel.value
        if names_application:
            given["applicationName"] = world.application
        if self.log.accepts_loss:
            given["failOnDataLoss"] = "false"
        return parse_source(given)[0]

    # --- the process ----------------------------------------------------------------------------------------

    def live(self) -> None:
        ports = DriverPorts(
            kinesis=SimKinesis(self, "", self._stream),
            table=self._table,
            clock=self._clock,
            chance=self.world.chance,
            threads=self._threads,
            open_metrics=lambda _options, _worker: NoMetrics(),
            open_earlier_table=lambda name: SimEarlierTable(self, name),
            fan_out=SimFanOut(SimKinesis(self, "", self._stream)),
            kcl3=None if self.world.scenario.kcl3 is None else SimKcl3Tables(self),
        )
        self._planner = Planner(self._options, ports, read_shard=self._fix)
        super().live()

    def close(self) -> None:
        self._planner.stop()

    def on_failed(self, error: Exception) -> None:
        """Accept the loss if the error says so, as its user does."""
        self.log.accepts_loss |= "failOnDataLoss=false" in str(error)

    def watch_loop(self, loop: Loop[Any]) -> None:
        if isinstance(loop, LeaseLoop):
            loop.trace = self._observe

    def _observe(self, what: Event | Effect) -> None:
        match what:
            case StartReader():
                self.world.record(reading.ReaderStarted(self.who, what.key, what.epoch, what.position))
            case ShardDrained() | ReaderStopped():
                self.world.record(reading.ReaderEnded(self.who, what.key, what.epoch))
            case Report():
                self.world.record(
                    processes.CoordinatorReported(self.who, what.topic.name, what.reason, what.key)
                )
            case _:
                pass

    # --- Spark's loop -----------------------------------------------------------------------------------------

    def run_query(self) -> None:
        log, world, planner = self.log, self.world, self._planner
        index = log.committed_count
        done = log.offset(index - 1)
        if self._reads_what_is_there:
            planner.prepare_available_now()
        while True:
            if index < len(log.offsets):
                end = log.offset(index)
            else:
                self._wait_for_trigger()
                planner.join(done)
                end = planner.latest(done)
                self._count_settled(done)
                is_news = end is not done
                if not is_news and not (index == 0 and world.has_fault("empty_first_batch")):
                    if self._reads_what_is_there:
                        return
                    self.has_begun = True
                    self._clock.sleep(world.chance.uniform(0.01, 0.5))
                    continue
                self._clock.sleep(world.latency_s())
                log.add_offset(index, end)
                if end.until_ms is not None:
                    world.record(queries.BatchBounded(self.who, end.batch, end.until_ms, tuple(end.shares())))
                world.record(
                    queries.BatchPlanned(
                        self.who,
                        end.batch,
                        tuple(end.shards.items()),
                        tuple(end.shares()),
                        end.known_batches.planner_of(end.batch),
                    )
                )
            self._clock.sleep(world.latency_s())
            self._run_batch(index, done, end)
            done, index = end, index + 1
            self.has_begun = not self._reads_what_is_there

    def _wait_for_trigger(self) -> None:
        interval_s = self.world.scenario.query_plan.trigger_s
        if interval_s:
            self._clock.sleep(interval_s - self._clock.monotonic_s() % interval_s)

    def _count_settled(self, done: StreamOffset) -> None:
        for key, row in self._table.take_seen().items():
            begin = resolve_start(row, self.name, done.known_batches, done.shards.get(key))
            if begin is not None:
                self.world.met[f"settled: {begin.reason.name}"] += 1

    def _run_batch(self, index: int, done: StreamOffset, end: StreamOffset) -> None:
        world = self.world
        groups = []
        if end != done:
            self._planner.join(end)
            groups = self._planner.tasks(end)
        self.read_now = tuple(end.shares())
        world.record(queries.BatchStarted(self.who, end.batch, self.read_now))
        self._on_batch(self)
        row_count_max = None
        if world.has_fault("unread_batch"):
            # An action that takes a few rows, or none: the unread rest is skipped when the query goes on.
            row_count_max = world.chance.choice((0, 1, 3))
            groups = groups[: 0 if row_count_max == 0 else world.chance.randint(1, max(1, len(groups)))]
        results: dict[str, ShardRows] = {}
        for _ in range(2 if world.has_fault("repeated_batch") else 1):
            results |= self._run_tasks(groups, row_count_max)
        self._clock.sleep(world.chance.choice(world.scenario.query_plan.commit_s))
        self.log.commit(index)
        self.read_now = ()
        whole = {key: rows.numbers for key, rows in results.items() if rows.is_whole}
        unread = tuple(key for key in end.shares() if key not in whole) if end != done else ()
        if unread:
            world.record(queries.BatchUnread(self.name, end.batch, unread))
        world.record(queries.BatchCommitted(self.name, end.batch, tuple(sorted(whole.items()))))
        for key, rows in results.items():
            if rows.numbers:
                world.record(reading.RecordsHandled(self.who, key, -1, rows.numbers))

    # --- a job --------------------------------------------------------------------------------------------------

    def _run_tasks(self, groups: list[list[BatchPart]], row_count_max: int | None) -> dict[str, ShardRows]:
        def attempt_of(number: int, on_end: OnEnd[Any]) -> ReadAttempt:
            return ReadAttempt(
                driver=self,
                on_end=on_end,
                query=self.query,
                options=self._options,
                tasks=groups[number],
                row_count_max=row_count_max,
            )

        results = self.job(len(groups), attempt_of).run()
        return {key: rows for result in results for key, rows in result.items()}

    def _fix(self, task: BatchPart, query: str | None) -> Iterator[Any]:
        self.world.met["settled: END FIXED BY THE DRIVER"] += 1
        kinesis = SimKinesis(self, "task ", self._stream)
        return read_task(kinesis, IteratorCache(), self._options, task, query)


class _DriverTable(SimLeaseTable):
    """Remembers which rows the driver read, to count its decisions about them."""

    def __init__(self, process: SimProcess, is_on_main: Callable[[], bool]) -> None:
        super().__init__(process)
        self._is_on_main = is_on_main
        self._seen: dict[str, Lease] = {}

    def take_seen(self) -> dict[str, Lease]:
        seen, self._seen = self._seen, {}
        return seen

    def scan(self, part: TablePart | None = None) -> LeaseScan:
        """Read every row; the planner's own scans have another name in the history."""
        return self.scan_as("planner scan" if self._is_on_main() else scan_name(part), part)

    def fetch_many(self, keys: Any) -> LeaseScan:
        scan = super().fetch_many(keys)
        self._seen |= {row.key: row for row in scan.leases}
        return scan

    def write(self, write: LeaseWrite) -> Outcome:
        outcome = super().write(write)
        self.caller.world.met[f"driver: {type(write).__name__} {type(outcome).__name__}"] += 1
        return outcome
