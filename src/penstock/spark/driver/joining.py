"""Joining the application: named checks in a fixed order, and then the query's worker.

Any step may raise, and then no thread has started. The order matters:

- The stream and the start are checked before the lease table is created.
- Leases are reset to a restored location before missing ones are created again.
- The consumer is registered after every check that can refuse the query, because a registered consumer costs money.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.batches.claims import find_unknown_claims, last_claimed_batch
from penstock.core.batches.offsets import StreamOffset
from penstock.core.batches.query_shards import QueryShards
from penstock.core.batches.rewind import goes_back
from penstock.core.leases.lease import Lease, name_run
from penstock.core.shard import StreamSummary
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import AccessDenied, PenstockError
from penstock.ports.clock import Chance
from penstock.ports.metrics import ClosableMetrics
from penstock.runtime.consumer_registration import ConsumerRegistration
from penstock.runtime.known_stream import KnownStream
from penstock.spark.driver.driver_ports import DriverPorts
from penstock.spark.driver.lease_recreation import LeaseRecreation
from penstock.spark.driver.query_worker import QueryWorker, coordinator_options
from penstock.spark.driver.startup_checks import (
    check_named_shards,
    refuse_future_start,
    refuse_hidden_sharing,
    refuse_living_driver,
    refuse_other_stream,
    rewind_leases,
    scan_leases,
    warn_of_ignored_start,
    warn_of_skipped_shards,
)
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.query_stream import check_stream

_log: Final = logging.getLogger("penstock.spark")
_WITHOUT_FAN_OUT: Final = "use its name (option consumerName), or set consumerType=polling"


class Joined(Struct, frozen=True):
    """A query that has joined its application.

    Args:
        known_stream: Checks that the stream's name still refers to it; None checks nothing.
        query_worker: The query's worker: its lease loop runs.
        shards: The query's shards, none yet.
        consumer_arn: The registered consumer under which the query's tasks subscribe, or None.
    """

    stream: StreamIdentity
    known_stream: KnownStream | None
    retention_ms: int
    query_worker: QueryWorker
    shards: QueryShards
    consumer_arn: str | None
    metrics: ClosableMetrics


def join(
    ports: DriverPorts, options: SourceOptions, offset: StreamOffset, recreation: LeaseRecreation, run: str
) -> Joined:
    """Check the query, bring its lease table into agreement with its offset, and start its lease loop.

    Args:
        offset: The last offset of the checkpoint location, or the initial one.
        recreation: Creates missing leases.
        run: The name of this run of the driver.

    Raises:
        StreamChanged: The stream is not the offset's.
        OptionError, PositionError: An option does not fit the stream or the lease table.
        AnotherDriver: Another driver works from the same checkpoint location.
        DataLossError: A shard left the stream before it was read to its end, and failOnDataLoss is on.
        ServiceError: A call failed for longer than its deadline.
    """
    joining = Joining(ports, options, offset, recreation, run)
    for step in joining.steps():
        step()
    return joining.start()


def deregister_consumer(ports: DriverPorts, options: SourceOptions, joined: Joined) -> None:
    """Deregister the query's consumer if the options ask for it, after its leases are released; a failure is a warning."""
    fan_out, name = ports.fan_out, options.consumer_name
    if not options.deregisters_consumer or fan_out is None or name is None or joined.consumer_arn is None:
        return
    try:
        fan_out.deregister_consumer(joined.stream.arn, name)
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
    """Return twelve hexadecimal digits."""
    return f"{int(chance.random() * 2**48):012x}"


def name_worker(options: SourceOptions, known: str, chance: Chance) -> str:
    """Return a query's worker id: that of its checkpoint location, or a new one with name, zone and capacity.

    Args:
        known: The id in the checkpoint location; empty if that is new.
    """
    if known:
        if options.worker_id not in (None, known):
            _log.warning(
                "option workerId=%s has no effect: the checkpoint was begun as %s", options.worker_id, known
            )
        return known
    name = options.worker_id or f"spark-{draw_name(chance)}"
    if options.zone is not None and "/" not in name:
        name = f"{options.zone}/{name}"
    return name if options.capacity == 1 or "@" in name else f"{name}@{options.capacity}"


class Joining:
    """The steps of one join, and the values that each step finds for the next ones."""

    summary: StreamSummary
    stream: StreamIdentity
    worker: str
    rows: dict[str, Lease]

    def __init__(
        self,
        ports: DriverPorts,
        options: SourceOptions,
        offset: StreamOffset,
        recreation: LeaseRecreation,
        run: str,
    ) -> None:
        self._run = run
        self._ports = ports
        self._options = options
        self._offset = offset
        self._recreation = recreation
        self._is_new = not offset.shards
        self.known_stream: KnownStream | None = None
        self.last_unknown_batch = -1
        self.consumer_arn: str | None = None

    def steps(self) -> tuple[Callable[[], None], ...]:
        """Return the steps in their order."""
        return (
            self.refuse_another_stream,
            self.refuse_future_start,
            self.create_table,
            self.name_worker,
            self.refuse_hidden_sharing,
            self.scan_table,
            self.refuse_foreign_leases,
            self.refuse_unknown_shards,
            self.warn_of_ignored_start,
            self.rewind,
            self.register_consumer,
            self.warn_of_skipped_shards,
            self.recreate_leases,
        )

    def refuse_another_stream(self) -> None:
        """Describe the stream, and refuse another one than the offset's."""
        options, offset, ports = self._options, self._offset, self._ports
        self.summary = ports.kinesis.fetch_summary(options.stream)
        self.stream = StreamIdentity(self.summary.arn, self.summary.created_ms)
        meant = StreamIdentity(offset.stream_arn, offset.stream_created_ms)
        check_stream(options.stream, options.application, self.stream, meant)
        if ports.know_stream is not None:
            self.known_stream = ports.know_stream(self.stream)

    def refuse_future_start(self) -> None:
        """Refuse a new query that starts in the future."""
        if self._is_new:
            refuse_future_start(self._ports.kinesis, self._options, self._ports.clock)

    def create_table(self) -> None:
        """Create the lease table if it does not exist."""
        self._ports.table.ensure_exists()

    def name_worker(self) -> None:
        """Take the worker id of the offset, or make one."""
        self.worker = name_worker(self._options, self._offset.worker, self._ports.chance)

    def refuse_hidden_sharing(self) -> None:
        """Refuse another live reader under the default application name."""
        refuse_hidden_sharing(self._ports.table, self.worker, self._options, self._ports.clock)

    def scan_table(self) -> None:
        """Read the lease table."""
        self.rows = scan_leases(self._ports.table)

    def refuse_foreign_leases(self) -> None:
        """Refuse a table of another stream."""
        ports = self._ports
        refuse_other_stream(ports.kinesis, ports.table, self._options.stream, self.stream, self.rows)

    def refuse_unknown_shards(self) -> None:
        """Refuse a starting position that names shards that the stream does not have."""
        if self._is_new and not self.rows and self._options.starting.by_shard:
            check_named_shards(self._ports.kinesis, self._options)

    def warn_of_ignored_start(self) -> None:
        """Warn if existing leases override the starting position."""
        if self._is_new:
            warn_of_ignored_start(self._ports.table, self.rows, self._options)

    def rewind(self) -> None:
        """Reset leases whose claims the checkpoint location has no record of."""
        ports, offset, options = self._ports, self._offset, self._options
        if not offset.worker:
            # A new checkpoint location takes over the workerId of an earlier one: its batch numbers follow the last claimed one.
            self.last_unknown_batch = last_claimed_batch(self.rows.values(), self.worker)
            return
        unknown = find_unknown_claims(self.rows.values(), self.worker, offset.known_batches)
        if not any(claim.batch > offset.batch or goes_back(row, claim, offset) for row, claim in unknown):
            return
        refuse_living_driver(ports.table, self.worker, self.rows, options.lease_duration_s, ports.clock)
        self.last_unknown_batch = rewind_leases(
            ports.kinesis, ports.table, options, offset, self.worker, run=self._run
        )
        self.rows = scan_leases(ports.table)

    def register_consumer(self) -> None:
        """Find or register the consumer under which the query's tasks subscribe."""
        ports, options = self._ports, self._options
        if ports.fan_out is None or options.consumer_name is None:
            return
        registration = ConsumerRegistration(
            ports.fan_out,
            self.stream.arn,
            options.consumer_name,
            ports.clock,
            ports.chance,
            way_out=_WITHOUT_FAN_OUT,
        )
        try:
            self.consumer_arn = registration.fetch_arn()
        except AccessDenied as error:
            raise AccessDenied(
                f"{error}. A query with consumerType={options.consumer_type} needs kinesis:{error.operation} for consumer "
                f"{options.consumer_name} of stream {options.stream} (all permissions: docs/fan-out.md); allow it, or set "
                "consumerType=polling",
                operation=error.operation,
                code=error.code,
                resource=error.resource,
            ) from error

    def warn_of_skipped_shards(self) -> None:
        """Warn of unfinished shards of the offset whose leases were deleted after their children got theirs."""
        warn_of_skipped_shards(self._options, self._ports.table, self.rows, self._offset)

    def recreate_leases(self) -> None:
        """Create the missing leases of shards in the offset."""
        if not self._is_new and self._recreation.repair_at_start(self.rows, self._offset, self.stream):
            self.rows = scan_leases(self._ports.table)

    def start(self) -> Joined:
        """Start the lease loop, after all steps; return the joined query."""
        ports, options = self._ports, self._options
        metrics = ports.open_metrics(options, self.worker)
        query_worker = QueryWorker(
            self.worker,
            replace(
                coordinator_options(
                    options, is_new=self._is_new, open_shard_count=self.summary.open_shard_count
                ),
                stream=self.stream,
                kcl3=ports.kcl3 is not None,
            ),
            ports,
            run_name=name_run(self.worker, self._run[:8]),
            stream=options.stream,
            metrics=metrics,
            known=self.known_stream,
        )
        shards = QueryShards(self.worker, self.last_unknown_batch)
        for row in self.rows.values():
            shards.on_row(row)
        return Joined(
            stream=self.stream,
            known_stream=self.known_stream,
            retention_ms=self.summary.retention_ms,
            query_worker=query_worker,
            shards=shards,
            consumer_arn=self.consumer_arn,
            metrics=metrics,
        )
