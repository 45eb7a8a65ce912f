"""Joining the application: checks in a fixed order, and then the query's worker. Leaving it again.

Any check may raise, and then no thread has started. The order matters:

- The stream and the start are checked before the lease table is created.
- Leases are reset to a restored location before missing ones are created again.
- The consumer is registered after every check that can refuse the query, because a registered consumer costs money.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.batches.claims import find_unknown_claims, last_claimed_batch
from penstock.core.batches.offsets import StreamOffset
from penstock.core.batches.query_shards import QueryShards
from penstock.core.batches.rewind import needs_reset
from penstock.core.leases.lease import Lease, name_run
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import AccessDenied, PenstockError
from penstock.ports.clock import Chance
from penstock.ports.metrics import ClosableMetrics
from penstock.runtime.consumer_registration import ConsumerRegistration
from penstock.runtime.stream_name_check import StreamNameCheck
from penstock.spark.driver.driver_ports import DriverPorts
from penstock.spark.driver.lease_recreation import LeaseRecreation
from penstock.spark.driver.query_worker import STOP_S, QueryWorker, coordinator_options
from penstock.spark.driver.startup_checks import (
    check_named_shards,
    refuse_former_option,
    refuse_future_start,
    refuse_living_driver,
    refuse_other_stream,
    refuse_shared_default_name,
    rewind_leases,
    scan_leases,
    warn_of_ignored_start,
    warn_of_skipped_shards,
)
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.query_stream import check_stream

_log: Final = logging.getLogger("penstock.spark")
_WITHOUT_FAN_OUT: Final = "use its name (option consumerName), or set consumerType=polling"


class JoinedQuery(Struct, frozen=True):
    """A query that has joined its application.

    Args:
        name_check: Checks that the stream's name still refers to it; None checks nothing.
        query_worker: The query's worker, whose lease loop runs.
        shards: The shards that the coordinator has assigned to the query; none when it joins.
        consumer_arn: The registered consumer under which the query's tasks subscribe; None if they poll.
    """

    stream: StreamIdentity
    name_check: StreamNameCheck | None
    retention_ms: int
    query_worker: QueryWorker
    shards: QueryShards
    consumer_arn: str | None
    metrics: ClosableMetrics


def join(
    ports: DriverPorts, options: SourceOptions, offset: StreamOffset, recreation: LeaseRecreation, run: str
) -> JoinedQuery:
    """Check the query, bring its lease table into agreement with its offset, and start its lease loop.

    Args:
        offset: The last offset of the checkpoint location, or the initial one.
        recreation: Creates missing leases.
        run: The name of this run of the driver.

    Raises:
        StreamChanged: The stream is not the one of the offset.
        OptionError, PositionError: An option does not fit the stream or the lease table.
        AnotherDriver: Another driver works from the same checkpoint location.
        DataLossError: A shard left the stream before it was read to its end, and failOnDataLoss is on.
        ServiceError: A call failed for longer than its deadline.
    """
    kinesis, table, clock = ports.kinesis, ports.table, ports.clock
    refuse_former_option(options, offset.lease_table)
    is_new = not offset.shards
    summary = kinesis.fetch_summary(options.stream)
    stream = summary.identity
    expected = StreamIdentity(offset.stream_arn, offset.stream_created_ms)
    check_stream(options.stream, options.application, stream, expected)
    name_check = None if ports.name_check_of is None else ports.name_check_of(stream)
    if is_new:
        refuse_future_start(kinesis, options, clock)
    table.ensure_exists()
    worker = name_worker(options, offset.worker, ports.chance)
    refuse_shared_default_name(table, worker, options, clock)
    rows = scan_leases(table)
    refuse_other_stream(kinesis, table, options.stream, stream, rows)
    if is_new:
        if not rows and options.starting.by_shard:
            check_named_shards(kinesis, options)
        warn_of_ignored_start(table, rows, options)
    last_unknown_batch = -1
    if not offset.worker:
        # A new checkpoint location takes over the workerId of an earlier one: its batch numbers follow the last claimed one.
        last_unknown_batch = last_claimed_batch(rows.values(), worker)
    elif _must_reset_leases(rows, worker, offset):
        refuse_living_driver(table, worker, rows, options.lease_duration_s, clock)
        last_unknown_batch = rewind_leases(kinesis, table, options, offset, worker, run=run)
        rows = scan_leases(table)
    consumer_arn = register_consumer(ports, options, stream)
    warn_of_skipped_shards(options, table, rows, offset)
    if not is_new and recreation.repair_at_start(rows, offset, stream):
        rows = scan_leases(table)
    metrics = ports.open_metrics(options, worker)
    query_worker = QueryWorker(
        worker,
        replace(
            coordinator_options(options, is_new=is_new, open_shard_count=summary.open_shard_count),
            stream=stream,
            kcl3=ports.kcl3 is not None,
        ),
        ports,
        run_name=name_run(worker, run[:8]),
        stream=options.stream,
        metrics=metrics,
        name_check=name_check,
    )
    shards = QueryShards(worker, last_unknown_batch)
    for row in rows.values():
        shards.on_row(row)
    return JoinedQuery(stream, name_check, summary.retention_ms, query_worker, shards, consumer_arn, metrics)


def leave(query: JoinedQuery, ports: DriverPorts, options: SourceOptions, *, is_settled: bool) -> None:
    """Release the query's leases at once; if its last batch is not settled, keep them until they expire.

    With option deregisterConsumer, also deregister the query's consumer.
    """
    if not is_settled:
        query.query_worker.abandon()
    else:
        query.query_worker.post([*query.shards.release_finished(), *query.shards.release_all()])
        query.metrics.close()
        if not query.query_worker.stop(STOP_S):
            _log.warning("not all leases could be released within %g s; they expire by themselves", STOP_S)
    if options.deregisters_consumer:
        _deregister_consumer(ports, options, query)


def _deregister_consumer(ports: DriverPorts, options: SourceOptions, query: JoinedQuery) -> None:
    """Deregister the query's consumer, if it has one. If the call fails, log a warning."""
    fan_out, name = ports.fan_out, options.consumer_name
    if fan_out is None or name is None or query.consumer_arn is None:
        return
    try:
        fan_out.deregister_consumer(query.stream.arn, name)
    except PenstockError as error:
        _log.warning(
            "consumer %s of stream %s may still be registered, and billed (penstock streams consumers %s --deregister %s): %s",
            name,
            options.stream,
            options.stream,
            name,
            error,
        )


def draw_name(chance: Chance) -> str:
    """Draw a random name of twelve hexadecimal digits, for a worker or a run."""
    return f"{int(chance.random() * 2**48):012x}"


def name_worker(options: SourceOptions, logged_id: str, chance: Chance) -> str:
    """Return a query's worker id: that of its checkpoint location, or a new one with name, zone and capacity.

    Args:
        logged_id: The id in the checkpoint location; empty if that is new.
    """
    if logged_id:
        if options.worker_id not in (None, logged_id):
            _log.warning(
                "option workerId=%s has no effect: the checkpoint was begun as %s",
                options.worker_id,
                logged_id,
            )
        return logged_id
    name = options.worker_id or f"spark-{draw_name(chance)}"
    if options.zone is not None and "/" not in name:
        name = f"{options.zone}/{name}"
    return name if options.capacity == 1 or "@" in name else f"{name}@{options.capacity}"


def _must_reset_leases(rows: Mapping[str, Lease], worker: str, offset: StreamOffset) -> bool:
    """Return whether leases have claims that the checkpoint location has no record of, so that they must be reset to it."""
    unknown = find_unknown_claims(rows.values(), worker, offset.known_batches)
    return any(claim.batch > offset.batch or needs_reset(row, claim, offset) for row, claim in unknown)


def register_consumer(ports: DriverPorts, options: SourceOptions, stream: StreamIdentity) -> str | None:
    """Find or register the consumer under which the query's tasks subscribe; return its ARN, or None if it polls."""
    if ports.fan_out is None or options.consumer_name is None:
        return None
    registration = ConsumerRegistration(
        ports.fan_out, stream.arn, options.consumer_name, ports.clock, ports.chance, remedy=_WITHOUT_FAN_OUT
    )
    try:
        return registration.fetch_arn()
    except AccessDenied as error:
        raise AccessDenied(
            f"{error}. A query with consumerType={options.consumer_type} needs kinesis:{error.operation} for consumer "
            f"{options.consumer_name} of stream {options.stream} (all permissions: docs/fan-out.md); allow it, or set "
            "consumerType=polling",
            operation=error.operation,
            code=error.code,
            resource=error.resource,
        ) from error
