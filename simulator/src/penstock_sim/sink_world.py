"""A world of Spark queries that write: their drivers and executors, the streams, and their faults.

In some worlds consumers read their rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from penstock_sim.blocking_ports import STREAM_NAME
from penstock_sim.events.base import Event, HistoryEntry
from penstock_sim.events.processes import ProcessExited, ProcessPaused, ProcessStarted
from penstock_sim.events.queries import ExecutorKilled, SecondDriverStarted
from penstock_sim.events.sinks import ShardSilenced, StreamRemoved, WriteTaskKilled
from penstock_sim.events.streams import ShardClosed
from penstock_sim.faults import EPOCH_MS, Scenario
from penstock_sim.journal import Journal
from penstock_sim.process import SimProcess
from penstock_sim.sink_executor import SinkExecutor
from penstock_sim.sink_plan import SinkPlan
from penstock_sim.sink_query import SimSinkQuery, SinkLog
from penstock_sim.sink_rows import OTHER_STREAM
from penstock_sim.sink_service import LETTERS, SinkStream
from penstock_sim.stream import SimStream
from penstock_sim.world import World


class SinkWorld(World):
    """One run of one scenario with sinks, and perhaps with consumers."""

    def __init__(self, scenario: Scenario, plan: SinkPlan, listener: Callable[[HistoryEntry], None]) -> None:
        super().__init__(scenario, listener)
        self._plan = plan
        self._logs: dict[str, SinkLog] = {}
        self._extra: list[SimSinkQuery] = []
        self._executors: dict[str, SinkExecutor] = {}
        self._files: dict[str, bytes] = {}
        self._journal = Journal(self)
        chance = random.Random(scenario.seed)
        self._streams = {
            STREAM_NAME: SinkStream(STREAM_NAME, self.stream),
            OTHER_STREAM: SinkStream(OTHER_STREAM, SimStream(chance, 2, EPOCH_MS)),
            LETTERS: SinkStream(LETTERS, SimStream(chance, 1, EPOCH_MS)),
        }

    def begin(self) -> None:
        """Schedule the recurring events and faults."""
        self._journal.open()
        for place in range(self._plan.executor_count):
            self._start_executor(f"executor{place}")
        super().begin()

    def close(self) -> None:
        """Leave nothing behind."""
        super().close()
        self._journal.shut()

    def make_worker(self, name: str) -> SimProcess:
        """Return a new process of this name, not begun yet: a query's driver, or a consumer."""
        if name not in self._plan.workers:
            return super().make_worker(name)
        return self._driver(name, self.on_worker_gone)

    def _driver(self, name: str, on_gone: Callable[[SimProcess, str], None]) -> SimSinkQuery:
        return SimSinkQuery(
            self,
            name,
            self.next_incarnation(name),
            on_gone=on_gone,
            plan=self._plan,
            log=self._logs.setdefault(name, SinkLog()),
            executors=lambda: list(self._executors.values()),
            files=self._files,
        )

    def recurring(self) -> list[tuple[float, Callable[[], None]]]:
        """Return the repeated events, and how often a minute each happens."""
        plan = self._plan
        return [
            *super().recurring(),
            (plan.executor_kills_per_min, self._kill_executor),
            (plan.executor_pauses_per_min, self._pause_executor),
            (plan.second_drivers_per_min, self._start_second_driver),
            (plan.outages_per_min, self._silence_shard),
            (plan.deletions_per_min, self._delete_stream),
        ]

    def heal(self) -> None:
        """End all faults, and every driver but one of each query."""
        for extra in list(self._extra):
            self._on_extra_gone(extra, "ended")
        for executor in self._executors.values():
            executor.paused_until = min(executor.paused_until, self.now)
            executor.resume()
        for target in self._streams.values():
            target.deleted_until = 0.0
            target.silent_until.clear()
        super().heal()

    def is_done(self) -> bool:
        """Whether Spark has noted every batch as done."""
        logs = [
            self._logs.get(name, SinkLog()) for name in self._plan.workers.intersection(self.scenario.workers)
        ]
        return super().is_done() and all(log.batches and log.is_done for log in logs)

    def record(self, event: Event) -> None:
        """Write an event to the history; with a reshard of the stream, the other stream may be resharded, too."""
        super().record(event)
        if isinstance(event, ShardClosed) and self.chance.random() < 0.5:
            other = self._streams[OTHER_STREAM].stream
            shards = other.open_shards()
            if len(shards) > 1 and self.chance.random() < 0.5:
                other.merge(shards[0], shards[1], self.now_ms())
            else:
                other.split(self.chance.choice(shards), self.now_ms())

    # --- executors ----------------------------------------------------------------------------------------

    def _start_executor(self, name: str) -> None:
        self._executors[name] = SinkExecutor(
            self,
            name,
            self.next_incarnation(name),
            plan=self._plan,
            streams=self._streams,
            files=self._files,
        )

    def _some_executor(self) -> SinkExecutor:
        return self.chance.choice(list(self._executors.values()))

    def _kill_executor(self) -> None:
        executor = self._some_executor()
        left = executor.fail()
        self.record(ExecutorKilled(executor.who))
        for attempt in executor.attempts:
            self.record(WriteTaskKilled(attempt.place.name))
        for attempt in left:
            attempt.driver.later(self.chance.uniform(0.5, 10.0), attempt.lose)
        self._start_executor(executor.name)

    def _pause_executor(self) -> None:
        executor = self._some_executor()
        executor.paused_until = self.now + self.chance.uniform(0.5, self._plan.executor_pause_max_s)
        self.schedule(executor.paused_until, executor.resume)
        self.record(ProcessPaused(executor.who, round(executor.paused_until, 3)))

    # --- drivers ------------------------------------------------------------------------------------------

    def _start_second_driver(self) -> None:
        found = [worker for worker in self.workers.values() if isinstance(worker, SimSinkQuery)]
        if found:
            query = self.chance.choice(found)
            self.met["fault: second_drivers_per_min"] += 1
            self.record(SecondDriverStarted(query.name))
            extra = self._driver(query.name, self._on_extra_gone)
            self._extra.append(extra)
            self.record(ProcessStarted(extra.who))
            extra.start()

    def _on_extra_gone(self, query: SimProcess, how: str) -> None:
        query.end()
        self._extra = [each for each in self._extra if each is not query]
        self.record(ProcessExited(query.who, how))

    # --- streams ------------------------------------------------------------------------------------------

    def _silence_shard(self) -> None:
        target = self._streams[self.chance.choice((STREAM_NAME, STREAM_NAME, OTHER_STREAM))]
        shard = self.chance.choice(target.stream.open_shards())
        until_s = self.now + self.chance.choice((3.0, 15.0, 60.0, 200.0))
        target.silent_until[shard.shard_id] = until_s
        self.record(ShardSilenced(target.name, shard.shard_id, round(until_s, 3)))

    def _delete_stream(self) -> None:
        target = self._streams[self.chance.choice((STREAM_NAME, STREAM_NAME, OTHER_STREAM, LETTERS))]
        target.deleted_until = self.now + self.chance.uniform(5.0, 30.0)
        self.record(StreamRemoved(target.name, round(target.deleted_until, 3)))
