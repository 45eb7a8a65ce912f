"""What a Python process keeps between batches: clients (by their options) and shard iterators.

Spark reuses Python workers, so a connection that was opened for one batch serves the next ones. A forked child starts
with nothing of its parent's: clients are kept by process id.
"""

from __future__ import annotations

import os
import random
from typing import Final, Protocol

from penstock.core.aggregation import MisplacedRule
from penstock.core.hash_key import HashRange
from penstock.core.limits import SHARD_READ_BYTES_PER_S_MAX
from penstock.core.position import Position
from penstock.core.reading.reader_options import ReaderOptions, WayOut
from penstock.ports.clock import Clock
from penstock.ports.metrics import Metrics, NoMetrics
from penstock.runtime.hash_ranges import HashRanges
from penstock.runtime.metrics_log import LoggingMetrics
from penstock.spark.iterator_cache import IteratorCache
from penstock.spark.shard_range import ShardRange
from penstock.spark.spark_options import BatchOptions, SourceOptions
from penstock.wiring import AwsOptions, open_cloudwatch, open_kinesis

_STUBBORN_FAILURES_MAX: Final = 5  # Spark repeats the task
_chance: Final = random.SystemRandom()
WAY_OUT: Final = WayOut(
    of_loss="Set option failOnDataLoss=false to go on",
    of_new_stream="start with a new checkpoint location and a new applicationName",
)
"""What errors of reading tell the user of a query to do."""

_iterators: Final[dict[int, IteratorCache]] = {}
_hash_ranges: Final[dict[tuple[int, AwsOptions, str], HashRanges]] = {}


def open_metrics_for(options: SourceOptions, worker: str) -> ClosableMetrics:
    """Open what option `metrics` names."""
    if options.metrics == "log":
        return LoggingMetrics(options.metrics_interval_s)
    if options.metrics == "cloudwatch":
        return open_cloudwatch(options.application, worker, options.connection, options.metrics_interval_s)
    return _NoMetrics()


class ClosableMetrics(Metrics, Protocol):
    """Metrics with threads of their own."""

    def close(self) -> None:
        """Report what is left, and end."""


class _NoMetrics(NoMetrics):
    def close(self) -> None:
        """Nothing is open."""


def shard_iterators() -> IteratorCache:
    """Return this process's iterators."""
    return _iterators.setdefault(os.getpid(), IteratorCache())


def open_shard(
    options: SourceOptions | BatchOptions,
    shard_id: str,
    start: Position,
    *,
    clock: Clock,
    retention_ms: int,
    deaggregate: bool,
    tip_ms: int | None = None,
    is_foreign: bool = False,
    hash_range: HashRange | None = None,
    iterators: IteratorCache | None = None,
) -> ShardRange:
    """Open a shard at a position, to be read as a query's options ask for; nothing is asked yet.

    Args:
        options: The query's.
        shard_id: The shard.
        start: Everything up to and including it is left out.
        clock: Time.
        retention_ms: The stream's retention.
        deaggregate: Whether KPL aggregates are taken apart.
        tip_ms: Moment, by the service's clock, at which nothing was left to read behind the start, if known.
        is_foreign: The start is the checkpoint of a worker that does not note when it was at the tip.
        hash_range: Which hash keys the shard owns, if that is known already.
        iterators: Kept between batches.
    """
    kinesis, connection = open_kinesis(options.connection), options.connection
    key = (os.getpid(), connection, options.stream)
    ranges = _hash_ranges.get(key)
    if ranges is None:
        ranges = _hash_ranges.setdefault(key, HashRanges(kinesis, options.stream, clock.monotonic_s))
    return ShardRange(
        kinesis,
        options.stream,
        shard_id,
        start,
        options=ReaderOptions(
            record_count_max=options.fetch_count_max,
            spacing_s=options.fetch_interval_s,
            # Who reads without any interval reads no service that limits bytes.
            read_bytes_per_s_max=SHARD_READ_BYTES_PER_S_MAX if options.fetch_interval_s > 0 else None,
            backoff_min_s=connection.backoff.base_s,
            backoff_max_s=connection.backoff.cap_s,
            deadline_s=connection.deadline_s,
            stubborn_failures_max=_STUBBORN_FAILURES_MAX,
            on_data_loss="fail" if options.fail_on_data_loss else "warn",
            retention_s=retention_ms / 1000,
            way_out=WAY_OUT,
        ),
        clock=clock,
        chance=_chance,
        tip_ms=tip_ms,
        is_foreign=is_foreign,
        deaggregate=deaggregate,
        rule=MisplacedRule(ranges.of(shard_id), options.drops_misplaced_aggregates, hash_range),
        iterators=iterators,
    )
