"""What a Python process keeps between batches: clients (by their options) and shard iterators.

Spark reuses Python workers, so a connection that was opened for one batch serves the next ones. A forked child starts
with nothing of its parent's: clients are kept by process id.
"""

from __future__ import annotations

import os
from typing import Final, Protocol

from penstock.core.aggregation import MisplacedRule
from penstock.core.hash_key import HashRange
from penstock.ports.metrics import Metrics, NoMetrics
from penstock.runtime.hash_ranges import HashRanges
from penstock.runtime.metrics_log import LoggingMetrics
from penstock.spark.iterator_cache import IteratorCache
from penstock.spark.spark_options import SourceOptions
from penstock.wiring import AwsOptions, open_cloudwatch, open_kinesis

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
    """Give this process's iterators."""
    return _iterators.setdefault(os.getpid(), IteratorCache())


def misplaced_rule(
    connection: AwsOptions,
    stream: str,
    shard_id: str,
    *,
    drops_unmarked: bool,
    told: HashRange | None = None,
) -> MisplacedRule:
    """Return the rule by which misplaced aggregates in a shard are dropped; nothing is asked yet."""
    key = (os.getpid(), connection, stream)
    ranges = _hash_ranges.get(key)
    if ranges is None:
        ranges = _hash_ranges.setdefault(key, HashRanges(open_kinesis(connection), stream))
    return MisplacedRule(ranges.of(shard_id), drops_unmarked, told)
