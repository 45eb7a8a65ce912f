"""The reading of one stream's shards: where they begin, and whether they are polled or pushed."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from penstock.consumer.consumer_options import ConsumerOptions
from penstock.consumer.fetching import AutoFetcher, PushedFetcher, ReadingParts, ShardFetcher
from penstock.consumer.shard_run import Fetch, ShardRun
from penstock.consumer.stream_argument import ConsumedStream
from penstock.core.leases.coordinator_effects import StartReader
from penstock.core.position import TRIM_HORIZON
from penstock.core.reading.reader_options import ReaderOptions
from penstock.core.starting import with_moment
from penstock.errors import PenstockError
from penstock.ports.clock import Clock
from penstock.ports.kinesis import Kinesis
from penstock.runtime.stream_name_check import StreamNameCheck
from penstock.runtime.subscriptions import Subscriptions

log: logging.Logger = logging.getLogger("penstock.consumer")


def name_check_of(stream: ConsumedStream, kinesis: Kinesis, clock: Clock) -> StreamNameCheck | None:
    """Return the check that a stream's name still means this stream; None if its identity is unknown."""
    if stream.identity is None:
        return None
    return StreamNameCheck(stream.name, stream.identity, kinesis.fetch_summary, clock.monotonic_s)


class StreamReading:
    """Reads the shards of one stream, for their runs.

    Args:
        parts: Parts shared with other streams.
        subscriptions: The stream's subscriptions for `fan-out` and `auto`; None: GetRecords is polled.
    """

    def __init__(
        self,
        stream: ConsumedStream,
        parts: ReadingParts,
        options: ConsumerOptions,
        subscriptions: Subscriptions | None,
    ) -> None:
        self.stream = stream
        self.reader_options: ReaderOptions = options.reader_options(stream.retention_s)
        ports = self._ports = parts.ports
        self._fetcher = ShardFetcher(
            stream.name,
            ports.kinesis,
            drops_unmarked=options.drop_misplaced_aggregates,
            has_room=parts.has_room,
            clock=ports.clock,
            metrics=ports.metrics,
            name_check=name_check_of(stream, ports.kinesis, ports.clock),
        )
        self._fan_out_fetcher: PushedFetcher | None = None  # None: the stream is polled
        auto = options.auto_retrieval(stream.retention_s)
        if subscriptions is not None and auto is None:
            self._fan_out_fetcher = PushedFetcher(self._fetcher, subscriptions, parts)
        elif subscriptions is not None and auto is not None:
            self._fan_out_fetcher = AutoFetcher(self._fetcher, subscriptions, parts, auto)

    def fetch(self, run: ShardRun, fetch: Fetch) -> None:
        """Do or begin one step of reading. The run gets the answer."""
        (self._fan_out_fetcher or self._fetcher).fetch(run, fetch)

    def end_subscription(self, run: ShardRun) -> None:
        """End a run's subscription if it has one. Called before the lease is released."""
        if self._fan_out_fetcher is not None:
            self._fan_out_fetcher.end_subscription(run)

    def with_moment(self, effect: StartReader) -> StartReader:
        """Add the moment to a position AT_TIMESTAMP of a lease. The KCL keeps the moment in its configuration, not in the lease table."""
        position = with_moment(effect.position, self.stream.start.position_of(effect.key))
        if position == effect.position:
            return effect
        if position == TRIM_HORIZON:
            log.warning(
                "shard %s: its lease says AT_TIMESTAMP without a moment, and starting_position gives none; it is read "
                "from its beginning",
                effect.key,
            )
        return replace(effect, position=position)

    def measure_open_shards(self) -> None:
        """Request the number of the stream's open shards, and set the metric."""
        try:
            summary = self._ports.kinesis.fetch_summary(self.stream.name)
        except PenstockError as error:
            log.debug("stream %s: no summary for the metrics: %s", self.stream.name, error)
            return
        self._ports.metrics.gauge("total_shards", summary.open_shard_count, self.stream.labels)
