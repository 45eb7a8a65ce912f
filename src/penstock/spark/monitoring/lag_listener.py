"""`LagListener`: logs the progress of a session's Kinesis queries, exports it as metrics, and warns when one falls behind.

The figures are those of `penstock.spark.lag`: Spark passes a listener the progress of each query.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.errors import OptionError
from penstock.ports.metrics import ForgettingMetrics, Metrics
from penstock.runtime.guarded_metrics import guard_metrics
from penstock.spark.monitoring.progress import StreamLag, lag, lags_by_source, report_of

_log: Final = logging.getLogger("penstock.spark")


class LagGrowth(Struct):
    """Growth of a lag since its lowest value, or since the last report.

    Args:
        growth_min_ms: The smallest growth that is reported.
        low_ms: The lowest lag since the last report; None before the first lag.
    """

    growth_min_ms: float
    low_ms: int | None = None

    def add(self, lag_ms: int) -> int | None:
        """Add a lag. Return the lag from which it has grown if that must be reported, else None."""
        low_ms = self.low_ms
        if low_ms is not None and lag_ms - low_ms >= self.growth_min_ms:
            self.low_ms = lag_ms
            return low_ms
        self.low_ms = lag_ms if low_ms is None else min(low_ms, lag_ms)
        return None


class LagListener(StreamingQueryListener):
    """Watches every query of a session that reads Kinesis: `spark.streams.addListener(LagListener())`.

    Each batch is logged at level INFO on `penstock.spark`. A warning follows when the lag has grown by `warn_growth_s` since it
    was lowest, and again with each further growth of that size: a query that works off a backlog gives none.

    Args:
        warn_growth_s: Growth of the lag that leads to a warning.
        metrics: Receives lag and records, with labels for query and stream; for instance
            `penstock.metrics.PrometheusMetrics(port=9464)`.

    Raises:
        OptionError: `warn_growth_s` is not above 0.
    """

    def __init__(self, warn_growth_s: float = 60.0, metrics: Metrics | None = None) -> None:
        if not warn_growth_s > 0:
            raise OptionError(f"warn_growth_s={warn_growth_s}: expected more than 0")
        self._growth_min_ms = warn_growth_s * 1000
        self._metrics = guard_metrics(metrics)
        self._names: dict[str, str] = {}
        self._growths: dict[tuple[str, str, int], LagGrowth] = {}
        # By query and stream.
        self._shards_with_gauges: dict[tuple[str, str], frozenset[str]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Remember the query's name."""
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Log a batch, measure it, and check the lag."""
        progress = event.progress
        query = str(progress.id)
        self._names.setdefault(query, progress.name or query)
        # A source reports the batch that was settled last, in some progresses repeatedly. Spark's own count is of this
        # batch.
        row_counts = [each.numInputRows for each in progress.sources if report_of(each) is not None]
        sources = lags_by_source(progress)
        for streams, row_count in zip(sources, row_counts, strict=True):
            self._log_batch(query, progress.batchId, streams, row_count)
            # Spark counts the rows of a source, which may read several streams.
            labels = {"query": self._names[query], "stream": ",".join(each.stream for each in streams)}
            self._metrics.count("records", row_count, labels)
        self._update_lags(query, [each for streams in sources for each in streams])

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Measure and check a query that waits for data."""
        session = self.spark
        query = None if session is None else session.streams.get(str(event.id))
        if query is not None:
            self._names.setdefault(str(event.id), query.name or str(event.id))
            self._update_lags(str(event.id), lag(query))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Forget the query."""
        query = str(event.id)
        for _, stream in [key for key in self._shards_with_gauges if key[0] == query]:
            self._set_gauges(query, stream, {})
            del self._shards_with_gauges[query, stream]
        self._growths = {key: growth for key, growth in self._growths.items() if key[0] != query}
        self._names.pop(query, None)

    def _log_batch(self, query: str, batch: int, streams: Sequence[StreamLag], row_count: int) -> None:
        _log.info(
            "query %s, batch %d: %d records of stream %s; lag %.1f s, %d of %d leases",
            self._names[query],
            batch,
            row_count,
            ",".join(each.stream for each in streams),
            max(each.max_millis_behind_latest for each in streams) / 1000,
            sum(each.held_leases for each in streams),
            sum(each.total_leases for each in streams),
        )

    def _update_lags(self, query: str, sources: Sequence[StreamLag]) -> None:
        """Set the gauges of each stream, and warn if its lag has grown."""
        for stream in {source.stream: None for source in sources}:
            # A query may read a stream twice, from two positions or for two applications: each has its own lag.
            same = [source for source in sources if source.stream == stream]
            shards = {shard for source in same for shard in source.millis_behind_latest}
            largest = {
                shard: max(each.millis_behind_latest.get(shard, 0) for each in same) for shard in shards
            }
            self._set_gauges(query, stream, largest)
            for number, source in enumerate(same):
                growth = self._growths.setdefault((query, stream, number), LagGrowth(self._growth_min_ms))
                self._check_growth(query, source, growth)

    def _check_growth(self, query: str, source: StreamLag, growth: LagGrowth) -> None:
        lag_ms = source.max_millis_behind_latest
        grown_from_ms = growth.add(lag_ms)
        if grown_from_ms is not None:
            behind = source.millis_behind_latest
            _log.warning(
                "query %s falls behind: the lag of stream %s has grown from %.1f to %.1f s (%s is furthest behind). Give it more "
                "cores or larger batches, or find out why the shard is slow: penstock leases",
                self._names[query],
                source.stream,
                grown_from_ms / 1000,
                lag_ms / 1000,
                max(behind, key=behind.__getitem__),
            )

    def _set_gauges(self, query: str, stream: str, behind: Mapping[str, int]) -> None:
        """Set the gauges of a stream, and remove those of shards that the query has released."""
        labels = {"query": self._names.get(query, query), "stream": stream}
        if isinstance(self._metrics, ForgettingMetrics):
            for shard in self._shards_with_gauges.get((query, stream), frozenset()) - behind.keys():
                self._metrics.forget_gauge("millis_behind_latest", {**labels, "shard": shard})
        for shard, millis in behind.items():
            self._metrics.gauge("millis_behind_latest", millis, {**labels, "shard": shard})
        self._shards_with_gauges[query, stream] = frozenset(behind)
