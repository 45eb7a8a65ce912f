"""The Spark queries of a world that write, and the faults of the streams that they write to."""

from __future__ import annotations

import random
from collections.abc import Callable

from penstock_sim.events.sinks import ShardSilenced, StreamRemoved, WriteTaskKilled
from penstock_sim.events.streams import ShardClosed
from penstock_sim.plan import EPOCH_MS, STREAM_NAME, SinkPlan
from penstock_sim.sink_executor import SinkExecutor
from penstock_sim.sink_query import SimSinkQuery, SinkLog
from penstock_sim.sink_rows import OTHER_STREAM
from penstock_sim.sink_service import LETTERS, SinkStream
from penstock_sim.spark_processes import SparkActors
from penstock_sim.stream import SimStream
from penstock_sim.world import World


class SinkActors(SparkActors[SimSinkQuery, SinkExecutor]):
    """The queries of a world that write, and the streams that they write to."""

    def __init__(self, world: World, plan: SinkPlan) -> None:
        self._plan = plan
        self._logs: dict[str, SinkLog] = {}
        self._files: dict[str, bytes] = {}
        chance = random.Random(world.scenario.seed)
        self._streams = {
            STREAM_NAME: SinkStream(STREAM_NAME, world.stream),
            OTHER_STREAM: SinkStream(OTHER_STREAM, SimStream(chance, 2, EPOCH_MS)),
            LETTERS: SinkStream(LETTERS, SimStream(chance, 1, EPOCH_MS)),
        }
        super().__init__(world, plan.workers, plan.executor_count, SimSinkQuery)

    def make_driver(self, name: str) -> SimSinkQuery:
        return SimSinkQuery(
            self.world,
            name,
            plan=self._plan,
            log=self._logs.setdefault(name, SinkLog()),
            executors=self.executors_now,
            files=self._files,
        )

    def make_executor(self, name: str) -> SinkExecutor:
        return SinkExecutor(self.world, name, plan=self._plan, streams=self._streams, files=self._files)

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
        """Whether Spark has logged every batch as done."""
        names = self._plan.workers.intersection(self.world.scenario.workers)
        logs = [self._logs.get(name, SinkLog()) for name in names]
        return all(log.batches and log.is_done for log in logs)

    def record_killed(self, executor: SinkExecutor) -> None:
        for attempt in executor.attempts:
            self.world.record(WriteTaskKilled(attempt.place.name))

    # --- streams ------------------------------------------------------------------------------------------

    def _on_shard_closed(self, event: ShardClosed) -> None:
        del event
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
        self.world.record(ShardSilenced(target.name, shard.shard_id, round(until_s, 3)))

    def _delete_stream(self) -> None:
        target = self._streams[self.world.chance.choice((STREAM_NAME, STREAM_NAME, OTHER_STREAM, LETTERS))]
        target.deleted_until = self.world.now + self.world.chance.uniform(5.0, 30.0)
        self.world.record(StreamRemoved(target.name, round(target.deleted_until, 3)))
