"""What a Python process keeps between batches: clients (by their options) and shard iterators.

Spark reuses Python workers, so a connection that was opened for one batch serves the next ones. A forked child starts
with nothing of its parent's: clients are kept by process id.
"""

from __future__ import annotations

import os
from typing import Final, Protocol

from penstock.core.aggregation import MisplacedRule
from penstock.core.hash_key import HashRange
from penstock.ports.kinesis import Kinesis
from penstock.ports.lease_table import LeaseTable
from penstock.ports.metrics import Metrics, NoMetrics
from penstock.runtime.hash_ranges import HashRanges
from penstock.runtime.metrics_log import LoggingMetrics
from penstock.spark.iterator_cache import IteratorCache
from penstock.spark.spark_options import Connection, SourceOptions
from penstock.wiring import AwsOptions, open_cloudwatch, open_kinesis, open_lease_table

_iterators: Final[dict[int, IteratorCache]] = {}
_hash_ranges: Final[dict[tuple[int, Connection, str], HashRanges]] = {}


def open_kinesis_for(connection: Connection) -> Kinesis:
    """Give the stream service that a query's options name."""
    return open_kinesis(_aws_options(connection))


def open_table_for(name: str, connection: Connection) -> LeaseTable:
    """Give the lease table that a query's options name."""
    return open_lease_table(name, _aws_options(connection))


def open_metrics_for(options: SourceOptions, worker: str) -> ClosableMetrics:
    """Open what option `metrics` names."""
    if options.metrics == "log":
        return LoggingMetrics(options.metrics_interval_s)
    if options.metrics == "cloudwatch":
        return open_cloudwatch(
            options.application, worker, _aws_options(options.connection), options.metrics_interval_s
        )
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
    connection: Connection,
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
        ranges = _hash_ranges.setdefault(key, HashRanges(open_kinesis_for(connection), stream))
    return MisplacedRule(ranges.of(shard_id), drops_unmarked, told)


def _aws_options(connection: Connection) -> AwsOptions:
    return AwsOptions(
        region=connection.region,
        endpoint_url=connection.endpoint_url,
        profile=connection.profile,
        access_key_id=connection.access_key_id,
        secret_access_key=connection.secret_access_key,
        session_token=connection.session_token,
        role_arn=connection.role_arn,
        role_session_name=connection.role_session_name,
        external_id=connection.role_external_id,
        sts_endpoint_url=connection.sts_endpoint_url,
        read_timeout_s=connection.request_timeout_s,
        attempts_max=connection.attempts_max,
        retry_base_s=connection.retry_base_s,
        retry_cap_s=connection.retry_cap_s,
        deadline_s=connection.retry_deadline_s,
    )
