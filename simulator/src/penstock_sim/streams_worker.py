"""A simulated worker that reads several streams: its list is the consumer's own, and so are its consequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from msgspec.structs import replace

from penstock.consumer.fetching import ShardFetcher
from penstock.consumer.shard_run import ShardRun
from penstock.consumer.stream_reading import ConsumedStream, known_stream
from penstock.consumer.worker import STANDSTILL_ROUNDS, options_for_streams
from penstock.core.leases.coordinator_effects import ListShards
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.held_lease import statuses_of
from penstock.core.leases.held_lease_phases import is_standstill
from penstock.core.leases.lease import stream_id_of
from penstock.core.position import Position
from penstock.core.reading.reader_options import ReaderOptions
from penstock.core.reading.reader_steps import FetchIterator, FetchListing, ListedShard
from penstock.errors import PenstockError
from penstock.ports.kinesis import Kinesis
from penstock.ports.metrics import NoMetrics
from penstock.runtime.known_stream import KnownStream
from penstock.runtime.lease_calls import list_shards
from penstock_sim.blocking_ports import SimClock
from penstock_sim.environment import Environment
from penstock_sim.events.streams import WorkerStoodStill
from penstock_sim.plan import StreamsPlan
from penstock_sim.worker import SimWorker

_FIRST_CHECK_S: Final = 1.0


class AnsweredRun:
    """Takes the place of a run during a step of its reading, and keeps the run's input until the answer arrives."""

    def __init__(self, run: ShardRun) -> None:
        self.key = run.key
        self.shard_id = run.shard_id
        self.hash_range = run.hash_range
        self.iterator: str | None = None
        self.listed: ListedShard | None = None
        self.failure: PenstockError | None = None

    def on_iterator(self, iterator: str) -> None:
        """Keep an iterator."""
        self.iterator = iterator

    def on_listing(self, listed: ListedShard) -> None:
        """Keep the result of a listing."""
        self.listed = listed

    def on_fetch_failed(self, error: PenstockError) -> None:
        """Keep a failure."""
        self.failure = error


class StreamsWorker(SimWorker):
    """One process.

    Args:
        streams: The streams to read, as the service described them when the process started.
        service: Answers calls about them.
    """

    def __init__(
        self,
        world: Environment,
        name: str,
        streams: Sequence[ConsumedStream],
        service: Kinesis,
        plan: StreamsPlan,
    ) -> None:
        self._plan = plan
        self._options: CoordinatorOptions | None = None
        self.streams = {stream.stream_id: stream for stream in streams}
        super().__init__(world, name)
        self._kinesis = service
        self._known = {stream.stream_id: self._known_stream(stream) for stream in streams}
        self._fetchers = {
            stream.stream_id: ShardFetcher(
                stream.name,
                self._kinesis,
                drops_unmarked=False,
                has_room=lambda: True,
                clock=SimClock(self),
                metrics=NoMetrics(),
                known=self._known[stream.stream_id],
            )
            for stream in streams
        }

    def _known_stream(self, stream: ConsumedStream) -> KnownStream:
        known = known_stream(stream, self._kinesis, SimClock(self))
        assert known is not None, f"the service did not describe stream {stream.name}"
        return known

    def on_reader_failed(self) -> None:
        """Record that a shard has stopped, and check whether any can go on, as the delivery loop does."""
        super().on_reader_failed()
        if self._plan.stops_at_standstill:
            self.later(_FIRST_CHECK_S, self._check_standstill, None)

    def _check_standstill(self, before: frozenset[tuple[str, int]] | None) -> None:
        held = statuses_of(self.coordinator.held_leases)
        standing = frozenset((lease.key, lease.epoch) for lease in held) if is_standstill(held) else None
        if standing is None:
            return
        if standing == before:
            self.world.record(WorkerStoodStill(self.who))
            self.request_stop()
        else:
            wait_s = STANDSTILL_ROUNDS * self.coordinator_options().interval_s
            self.later(wait_s, self._check_standstill, standing)

    def coordinator_options(self) -> CoordinatorOptions:
        """Return the coordinator's options, which follow from this worker's streams."""
        if self._options is None:
            whole, cold_start_s = super().coordinator_options(), self._plan.cold_start_s
            self._options = options_for_streams(whole, list(self.streams.values()))
            if cold_start_s is not None:
                self._options = replace(self._options, cold_start_jitter_s=cold_start_s)
        return self._options

    def list_shards(self, effect: ListShards) -> None:
        """List the shards of one stream, under the name that the list gives it."""
        stream_id = effect.stream_id
        name, known = self.streams[stream_id].name, self._known[stream_id]
        self.call(
            "list shards",
            lambda: list_shards(effect, name, self._kinesis, known, self.world.now_ms),
            self.feed,
            stream_id,
        )

    def start_of(self, key: str) -> Position:
        """Return the starting position of a shard that is read for the first time."""
        return self.streams[stream_id_of(key)].start.of(key)

    def stream_name_of(self, key: str) -> str:
        """Return the name of a shard's stream."""
        return self.streams[stream_id_of(key)].name

    def reader_options(self, key: str) -> ReaderOptions:
        """Return the options of a shard's reader: its stream's retention."""
        return replace(super().reader_options(key), retention_s=self.streams[stream_id_of(key)].retention_s)

    def place_of(self, run: ShardRun) -> str:
        """Return how calls to the service name a run's shard."""
        return f"{run.stream}:{run.shard_id}"

    def find_iterator(self, run: ShardRun, fetch: FetchIterator) -> str | PenstockError:
        """Ask the service for an iterator, as the consumer's fetcher does."""
        answered = self._fetch_for(run, fetch)
        answer = answered.failure or answered.iterator
        assert answer is not None, f"{run.key} got no answer for its iterator"
        return answer

    def find_listed_shard(self, run: ShardRun, fetch: FetchListing) -> ListedShard | PenstockError:
        """Ask the service for a listing because of a run's shard, as the consumer's fetcher does."""
        answered = self._fetch_for(run, fetch)
        answer = answered.failure or answered.listed
        assert answer is not None, f"{run.key} got no answer for the listing"
        return answer

    def _fetch_for(self, run: ShardRun, fetch: FetchIterator | FetchListing) -> AnsweredRun:
        answered = AnsweredRun(run)
        self._fetchers[stream_id_of(run.key)].fetch(cast("ShardRun", answered), fetch)
        return answered
