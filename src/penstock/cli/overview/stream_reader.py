"""Read the figures of streams from CloudWatch for views that stay open: each stream at most once a minute, on a thread."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.cli.overview.cells import stream_name
from penstock.cli.overview.overview_cache import OverviewCache
from penstock.cli.overview.stream_load import (
    MINUTE_MS,
    PEAK_MINUTES,
    SHARD_METRICS,
    STREAM_METRICS,
    Load,
    ShardLoad,
    StreamSnapshot,
    advise,
    history_of,
    load_of,
    missing_metrics_advice,
)
from penstock.core.safe_text import describe_error, error_and_remedy
from penstock.errors import NotFound, ServiceError
from penstock.runtime.loop import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.aws.cloudwatch_queries import CloudWatchQueries
    from penstock.core.shard import Shard, StreamSummary
    from penstock.ports.clock import Clock
    from penstock.ports.kinesis import Kinesis
    from penstock.ports.sizing import Sums

HISTORY_MINUTES: Final = 60
_STREAMS_KEPT_MAX: Final = 64
_STREAMS_AT_ONCE: Final = 2
_log: Final = logging.getLogger("penstock.overview")


class StreamReader:
    """Reads snapshots of the streams that are on display. Thread-safe.

    Args:
        kinesis: Returns the stream's mode, and which metrics CloudWatch has for each shard.
        cloudwatch: Returns the figures; each query costs money.
        clock: The clock for pauses, and for the minutes of the figures.
        connection: The options with which an advised command reaches the same service.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        cloudwatch: CloudWatchQueries,
        clock: Clock,
        connection: Sequence[str] = (),
    ) -> None:
        self._kinesis = kinesis
        self._cloudwatch = cloudwatch
        self._clock = clock
        self._connection = tuple(connection)
        self._pool = ThreadPool("penstock-streams", _STREAMS_AT_ONCE)
        self._lock = threading.Lock()
        self._streams: OrderedDict[str, OverviewCache[StreamSnapshot]] = OrderedDict()

    def take_snapshot(
        self, stream: str, shards: Sequence[Shard], wait_s: float = 0.0
    ) -> StreamSnapshot | None:
        """Return the newest snapshot of a stream, and start the next one if it is older than a minute.

        Args:
            stream: Name or ARN.
            shards: As last listed; closed shards are left out.
            wait_s: Wait at most this long for a snapshot that is being taken. After that, return the previous one.

        Returns:
            None while the first snapshot is under way.
        """
        open_shards = sorted((each for each in shards if each.is_open), key=lambda each: each.hash_range)
        with self._lock:
            cache = self._streams.setdefault(stream, OverviewCache(self._pool, self._clock))
            self._streams.move_to_end(stream)
            if len(self._streams) > _STREAMS_KEPT_MAX:
                self._streams.popitem(last=False)
        return cache.take(lambda _: self._read(stream, open_shards), wait_s)

    def _read(self, stream: str, open_shards: Sequence[Shard]) -> StreamSnapshot:
        try:
            return fetch_stream(
                self._kinesis,
                self._cloudwatch,
                stream,
                open_shards,
                self._clock.wall_ms(),
                connection=self._connection,
            )
        except Exception as error:  # noqa: BLE001 - the view shows it, and the next read may succeed
            _log.exception("the snapshot of stream %s failed", stream)
            return StreamSnapshot(stream, self._clock.wall_ms(), problems=(describe_error(error),))


def fetch_stream(
    kinesis: Kinesis,
    cloudwatch: CloudWatchQueries,
    stream: str,
    open_shards: Sequence[Shard],
    now_ms: int,
    *,
    connection: Sequence[str] = (),
) -> StreamSnapshot:
    """Take a snapshot of a stream: one DescribeStreamSummary, and one GetMetricData for each 500 metrics.

    Failed calls are listed in its problems.

    Args:
        stream: Name or ARN.
        open_shards: In the order of hash keys.
        connection: The options with which an advised command reaches the same service.
    """
    problems: list[str] = []
    summary: StreamSummary | None = None
    try:
        summary = kinesis.fetch_summary(stream)
    except NotFound as error:
        return StreamSnapshot(stream, now_ms, problems=(str(error),))
    except ServiceError as error:
        problems.append(
            f"{error}; without kinesis:DescribeStreamSummary it is not known whether the stream is on-demand, and which metrics "
            "CloudWatch has of its shards"
        )
    if not open_shards:
        problems.append("the stream's shards are not known, so only its own figures are shown")
    queried_metrics = [name for name in SHARD_METRICS if summary is None or name in summary.shard_metrics]
    snapshot = StreamSnapshot(stream, now_ms, None if summary is None else summary.on_demand)
    try:
        stream_sums, shard_sums, query_problems = _fetch_sums(
            cloudwatch, stream, open_shards, queried_metrics, now_ms
        )
    except ServiceError as error:
        problems.append(
            f"CloudWatch returned no figures{error_and_remedy(error, 'cloudwatch:GetMetricData')}"
        )
        loads = tuple(ShardLoad(each, Load({})) for each in open_shards)
        return replace(snapshot, shards=loads, problems=tuple(problems))
    problems += query_problems
    if summary is None:  # then only metrics with values are known to exist
        known_metrics = {name for name in queried_metrics if any(sums.get(name) for sums in shard_sums)}
        shard_sums = [{name: sums[name] for name in sums if name in known_metrics} for sums in shard_sums]
    if stream_sums and not any(stream_sums.values()):
        problems.append(
            "CloudWatch has no figures of the last hour: nothing was written or read, or they are still on their way, which takes "
            "some minutes"
        )
    loads = tuple(
        ShardLoad(each, load_of(sums, now_ms)) for each, sums in zip(open_shards, shard_sums, strict=True)
    )
    load = load_of(stream_sums, now_ms, len(open_shards))
    advice = advise(stream, load, loads, on_demand=snapshot.on_demand, connection=connection)
    missing = [name for name in SHARD_METRICS if name not in queried_metrics]
    if missing and open_shards:
        advice.append(missing_metrics_advice(stream, missing, connection))
    return replace(
        snapshot,
        load=load,
        shards=loads,
        history=history_of(stream_sums, now_ms),
        problems=tuple(problems),
        advice=tuple(advice),
    )


def _fetch_sums(
    cloudwatch: CloudWatchQueries,
    stream: str,
    shards: Sequence[Shard],
    shard_metrics: Sequence[str],
    now_ms: int,
) -> tuple[dict[str, Sums], list[dict[str, Sums]], list[str]]:
    """Return the stream's sums of the last hour by metric, those of each shard in the last 15 minutes, and the problems.

    A metric whose query failed is left out.
    """
    problems: list[str] = []

    def fetch(places: Sequence[str | None], metrics: Sequence[str], minutes: int) -> list[dict[str, Sums]]:
        queries = [(metric, place) for place in places for metric in metrics]
        began_ms = now_ms - minutes * MINUTE_MS
        if not queries:
            return [{} for _ in places]
        answer = cloudwatch.fetch(stream_name(stream), queries, began_ms, now_ms)
        problems.extend(each for each in answer.problems if each not in problems)
        found = iter(answer.sums)
        by_place = [{metric: next(found) for metric in metrics} for _ in places]
        return [{metric: sums for metric, sums in each.items() if sums is not None} for each in by_place]

    (stream_sums,) = fetch([None], STREAM_METRICS, HISTORY_MINUTES)
    return stream_sums, fetch([each.shard_id for each in shards], shard_metrics, PEAK_MINUTES), problems
