"""A simulated Spark query that writes to Kinesis: Spark's loop around the production's sink.

Spark's logs of batches and commits survive the driver; everything else dies with it, at any moment.
Tasks run in executors (`sink_executor`), which its death does not touch. The streams that it writes to have faults of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from msgspec import field

from penstock.spark.options.spark_options import SinkOptions, parse_sink
from penstock.spark.sink.task_report import commit_batch, log_sum
from penstock_sim.blocking_ports import SimClock
from penstock_sim.environment import Environment
from penstock_sim.events import producers, sinks, streams
from penstock_sim.plan import EPOCH_MS, STREAM_NAME, SinkPlan
from penstock_sim.sink_executor import SinkExecutor, WriteAttempt, WrittenTask
from penstock_sim.sink_rows import OTHER_STREAM, SinkRow, draw_rows
from penstock_sim.sink_service import LETTERS, AttemptPlace, SinkFolder, SinkService, SinkStream
from penstock_sim.spark_job import JobFailed, OnEnd
from penstock_sim.spark_processes import SparkActors, SparkDriver, SparkLog
from penstock_sim.stream import SimStream
from penstock_sim.world import World

_TRIGGER_MAX_S: Final = 3.0


class SinkLog(SparkLog):
    """The content of a query's checkpoint location, and the options that its user has added after errors.

    An entry has the rows of a batch by partition: every repetition of a batch has the same rows.
    """

    more_options: dict[str, str] = field(default_factory=dict)


def sink_options(plan: SinkPlan, name: str, log: SinkLog) -> SinkOptions:
    """Return the sink's options, as its user gives them and Spark adds to them."""
    given = {"region": "sim-1", **plan.options, **log.more_options}
    if not plan.routes:
        given["streamName"] = STREAM_NAME
    if "deadLetterPath" in log.more_options:
        given.pop("deadLetterStream", None)
    return parse_sink({**given, "checkpointLocation": f"checkpoint of {name}"})[0]


class SimSinkQuery(SparkDriver):
    """One life of the driver of a query with a sink."""

    def __init__(
        self,
        world: Environment,
        name: str,
        executors: Callable[[], list[Any]],
        service: SinkService,
        log: SinkLog,
    ) -> None:
        super().__init__(world, name, executors)
        self.log = log
        self._service = service
        self._plan = service.plan
        self._options = sink_options(self._plan, name, log)
        self._clock = SimClock(self)
        self._attempt_count = 0

    def on_failed(self, error: Exception) -> None:
        """Do as the error says: a person sets the option that it names."""
        error_text = str(error)
        does_not_fit = "deadLetterPath" in error_text and "does not fit" in error_text
        if does_not_fit or ("RecordError" in error_text and not self._options.keeps_dead_letters):
            self.log.more_options = {"onError": "deadLetter", "deadLetterPath": LETTERS}

    # --- Spark's loop -----------------------------------------------------------------------------------------

    def run_query(self) -> None:
        log, world = self.log, self.world
        index = log.committed_count
        while True:
            if index == len(log.offsets):
                self._clock.sleep(world.chance.uniform(0.05, _TRIGGER_MAX_S))
                if world.is_healed and index:
                    continue
                self._clock.sleep(world.latency_s())
                self._plan_batch(index)
            self._run_batch(index, log.offsets[index])
            index += 1

    def _plan_batch(self, index: int) -> None:
        self.log.check_next(index)
        world = self.world
        rows = draw_rows(self._plan, self.name, index, world.chance)
        self.log.offsets.append(rows)
        for part, of_part in enumerate(rows):
            for row in of_part:
                # The order of a key is promised as a whole only if its rows stay in one task; otherwise for the rows of each task.
                group = row.key if self._plan.keys_stay else f"{row.key}@{index}.{part}"
                if not row.bad:
                    world.record(producers.RecordAdded(row.text, group))
                else:
                    world.record(sinks.BadRowAdded(row.text, row.bad))
        texts = tuple(tuple(row.text for row in of_part) for of_part in rows)
        world.record(sinks.WritePlanned(self.name, index, texts))

    def _run_batch(self, index: int, rows: list[list[SinkRow]]) -> None:
        world, log = self.world, self.log
        world.record(sinks.WriteStarted(self.who, index))
        write_id = f"{self.who.replace('/', '-')}-{index}" if self._plan.in_foreach_batch else None
        written = self._run_tasks(index, rows, write_id)
        world.record(sinks.WriteTasksDone(self.who, index))
        if self.world.has_fault("driver_dies_before_commit"):
            self._die()
        reports = [each.report for each in written]
        if self._plan.in_foreach_batch:
            log_sum(reports, "batch write")
        else:
            location = self._options.checkpoint_location
            commit_batch(reports, index, location, lambda path: SinkFolder(self, path, self._service.files))
        world.record(sinks.WriteCommitted(self.who, index))
        if self.world.has_fault("driver_dies_after_commit"):
            self._die()
        self._clock.sleep(world.latency_s())
        log.commit(index)
        world.record(sinks.WriteLogged(self.name, index, tuple(each.attempt for each in written)))

    def _die(self) -> None:
        self.later(0.0, self.on_gone, self, "crashed")
        self._clock.sleep(1.0)

    def _run_tasks(self, index: int, rows: list[list[SinkRow]], write_id: str | None) -> list[WrittenTask]:
        def attempt_of(part: int, on_end: OnEnd[Any]) -> WriteAttempt:
            self._attempt_count += 1
            name = f"{self.who} {index}.{part} attempt {self._attempt_count}"
            return WriteAttempt(
                driver=self,
                on_end=on_end,
                place=AttemptPlace(name, self.name, index, part),
                options=self._options,
                rows=rows[part],
                write_id=write_id,
            )

        job = self.job(len(rows), attempt_of)
        try:
            return job.run()
        except JobFailed:
            finished = [each.report for each in job.finished()]
            self.world.record(sinks.WriteAborted(self.who, index, len(finished)))
            what = "batch write" if self._plan.in_foreach_batch else f"micro-batch {index}"
            log_sum(finished, f"failed {what}, acknowledged before the failure")
            raise


class SinkActors(SparkActors[SimSinkQuery, SinkExecutor]):
    """The queries of a world that write, and the streams that they write to."""

    def __init__(self, world: World, plan: SinkPlan) -> None:
        self._logs: dict[str, SinkLog] = {}
        chance = random.Random(world.scenario.seed)
        self._streams = {
            STREAM_NAME: SinkStream(STREAM_NAME, world.stream),
            OTHER_STREAM: SinkStream(OTHER_STREAM, SimStream(chance, 2, EPOCH_MS)),
            LETTERS: SinkStream(LETTERS, SimStream(chance, 1, EPOCH_MS)),
        }
        self._service = SinkService(plan, self._streams)
        super().__init__(world, plan.workers, plan.executor_count, SimSinkQuery)

    def make_driver(self, name: str) -> SimSinkQuery:
        log = self._logs.setdefault(name, SinkLog())
        return SimSinkQuery(self.world, name, self.executors_now, self._service, log)

    def make_executor(self, name: str) -> SinkExecutor:
        return SinkExecutor(self.world, name, self._service)

    def recurring(self) -> list[tuple[float, Callable[[], None]]]:
        plan = self.world.faults
        return [
            *super().recurring(),
            (plan.outages_per_min, self._silence_shard),
            (plan.deletions_per_min, self._delete_stream),
        ]

    def heal(self) -> None:
        super().heal()
        for target in self._streams.values():
            target.deleted_until = 0.0
            target.silent_until.clear()

    def is_done(self) -> bool:
        logs = [
            self._logs.get(name, SinkLog()) for name in self.names.intersection(self.world.scenario.workers)
        ]
        return all(log.committed_count == len(log.offsets) > 0 for log in logs)

    def record_killed(self, executor: SinkExecutor) -> None:
        for attempt in executor.attempts:
            self.world.record(sinks.WriteTaskKilled(attempt.place.name))

    # --- streams ------------------------------------------------------------------------------------------

    def _on_shard_closed(self, event: streams.ShardClosed) -> None:
        chance, now_ms = self.world.chance, self.world.now_ms()
        if chance.random() < 0.5:
            other = self._streams[OTHER_STREAM].stream
            shards = other.open_shards()
            if len(shards) > 1 and chance.random() < 0.5:
                other.merge(shards[0], shards[1], now_ms)
            else:
                other.split(chance.choice(shards), now_ms)

    def _silence_shard(self) -> None:
        target = self._streams[self.world.chance.choice((STREAM_NAME, STREAM_NAME, OTHER_STREAM))]
        shard = self.world.chance.choice(target.stream.open_shards())
        until_s = self.world.now + self.world.chance.choice((3.0, 15.0, 60.0, 200.0))
        target.silent_until[shard.shard_id] = until_s
        self.world.record(sinks.ShardSilenced(target.name, shard.shard_id, round(until_s, 3)))

    def _delete_stream(self) -> None:
        target = self._streams[self.world.chance.choice((STREAM_NAME, STREAM_NAME, OTHER_STREAM, LETTERS))]
        target.deleted_until = self.world.now + self.world.chance.uniform(5.0, 30.0)
        self.world.record(sinks.StreamRemoved(target.name, round(target.deleted_until, 3)))
