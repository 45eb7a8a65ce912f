"""How the shards of one stream are read: where they begin, by which steps, and by which calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from penstock.consumer.fetching import ShardFetcher
from penstock.consumer.shard_plan import Fetch
from penstock.consumer.shard_run import ShardRun
from penstock.core.leases.coordinator_effects import StartReader
from penstock.core.position import TRIM_HORIZON
from penstock.core.reading.reader_options import ReaderOptions
from penstock.core.reading.retrieval_choice import AutoRetrieval
from penstock.core.starting import StartingPosition, with_moment
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import PenstockError
from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import Kinesis
from penstock.ports.metrics import Metrics
from penstock.runtime.known_stream import KnownStream
from penstock.runtime.loop import Pool

if TYPE_CHECKING:
    from penstock.consumer.fetching import PushedFetcher
    from penstock.runtime.consumer_registration import ConsumerRegistration
    from penstock.runtime.subscriptions import Subscriptions

log: logging.Logger = logging.getLogger("penstock.consumer")


class ConsumedStream(Struct, frozen=True):
    """A stream that a worker reads.

    Args:
        name: Name or ARN.
        start: Where its shards begin when they are read for the first time; shards are named by their lease keys.
        stream_id: The prefix of its lease keys; empty if it is the only stream of the lease table.
        identity: Distinguishes the stream from others of its name; leases of others are refused. None compares nothing.
        retention_s: How long it keeps a record, or None when unknown.
        open_shard_count: Open shards when the consumer started, or None when unknown.
        registration: The consumer whose subscriptions bring the records, always or when needed; None: GetRecords is polled.
    """

    name: str
    start: StartingPosition
    stream_id: str = ""
    identity: StreamIdentity | None = None
    retention_s: float | None = None
    open_shard_count: int | None = None
    registration: ConsumerRegistration | None = None

    @property
    def labels(self) -> dict[str, str]:
        """Labels of metrics about the whole stream: its name, unless all of the consumer's metrics have it as a label."""
        return {"stream": self.name} if self.stream_id else {}


def known_stream(stream: ConsumedStream, kinesis: Kinesis, clock: Clock) -> KnownStream | None:
    """Return the check that a stream's name still means this stream; None if its identity is unknown."""
    if stream.identity is None:
        return None
    return KnownStream(stream.name, stream.identity, kinesis.fetch_summary, clock.monotonic_s)


class ReadingParts(Struct, frozen=True):
    """Parts that the readings of all streams share.

    Args:
        drops_unmarked: Drop misplaced aggregates of every producer, as the KCL does.
        has_room: Whether the process as a whole may hold more.
        on_answered: Called when a run gets an answer after `fetch` has returned.
        call_pool: The threads for calls that are about no single shard.
    """

    kinesis: Kinesis
    drops_unmarked: bool
    has_room: Callable[[], bool]
    on_answered: Callable[[ShardRun], None]
    clock: Clock
    chance: Chance
    metrics: Metrics
    call_pool: Pool


class StreamReading:
    """Reads the shards of one stream, for their runs.

    Args:
        parts: Shared with other streams.
        options: Options of each shard's reader when it begins.
        subscriptions: Bring the pages, by enhanced fan-out; None: GetRecords is polled.
        auto: When a shard changes between the two; None: never, `subscriptions` alone decides.
    """

    def __init__(
        self,
        stream: ConsumedStream,
        parts: ReadingParts,
        options: ReaderOptions,
        *,
        subscriptions: Subscriptions | None,
        auto: AutoRetrieval | None,
    ) -> None:
        self.stream = stream
        self.options = options
        self._parts = parts
        self._fetcher = ShardFetcher(
            stream.name,
            parts.kinesis,
            drops_unmarked=parts.drops_unmarked,
            has_room=parts.has_room,
            clock=parts.clock,
            metrics=parts.metrics,
            known=known_stream(stream, parts.kinesis, parts.clock),
        )
        self._pushed = None if subscriptions is None else self._open_pushed(subscriptions, auto)

    def _open_pushed(self, subscriptions: Subscriptions, auto: AutoRetrieval | None) -> PushedFetcher:
        # Imported only to subscribe: a consumer that polls starts sooner without it.
        from penstock.consumer.fetching import AutoFetcher, PushedFetcher

        parts = self._parts
        if auto is None:
            return PushedFetcher(
                self._fetcher,
                subscriptions,
                has_room=parts.has_room,
                clock=parts.clock,
                on_answered=parts.on_answered,
            )
        return AutoFetcher(
            self._fetcher,
            subscriptions,
            has_room=parts.has_room,
            clock=parts.clock,
            on_answered=parts.on_answered,
            options=auto,
            chance=parts.chance,
            metrics=parts.metrics,
            call_pool=parts.call_pool,
        )

    def fetch(self, run: ShardRun, fetch: Fetch) -> None:
        """Do one step of reading, or begin it; the run gets the answer."""
        (self._pushed or self._fetcher).fetch(run, fetch)

    def leave(self, run: ShardRun) -> None:
        """End a run's subscription if it has one. Called before the lease is released."""
        if self._pushed is not None:
            self._pushed.leave(run)

    def with_moment(self, effect: StartReader) -> StartReader:
        """Add the moment to an AT_TIMESTAMP: the KCL keeps it in its configuration, not in the lease table."""
        position = with_moment(effect.position, self.stream.start.of(effect.key))
        if position == effect.position:
            return effect
        if position == TRIM_HORIZON:
            log.warning(
                "shard %s: its lease says AT_TIMESTAMP without a moment, and starting_position gives none; it is read "
                "from its beginning",
                effect.key,
            )
        return replace(effect, position=position)

    def measure(self) -> None:
        """Request the number of the stream's open shards, and set the metric."""
        try:
            summary = self._parts.kinesis.fetch_summary(self.stream.name)
        except PenstockError as error:
            log.debug("stream %s: no summary for the metrics: %s", self.stream.name, error)
            return
        self._parts.metrics.gauge("total_shards", summary.open_shard_count, self.stream.labels)
