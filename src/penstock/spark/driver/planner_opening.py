"""Opens a query's planner on the real service, in the process beside the driver."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from msgspec.structs import replace

from penstock.ports.lease_table import LeaseTable
from penstock.ports.metrics import ClosableMetrics, NoMetrics
from penstock.runtime.metrics_log import LoggingMetrics
from penstock.runtime.threads import SYSTEM_THREADS
from penstock.spark.driver.driver_ports import DriverPorts
from penstock.spark.driver.planner import Planner
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.query_stream import known_to_query
from penstock.spark.tasks.task_opening import rows_of
from penstock.wiring import (
    AwsOptions,
    SystemClock,
    open_cloudwatch,
    open_fan_out,
    open_kcl3_tables,
    open_kinesis,
    open_lease_table,
)


def open_planner(
    options: SourceOptions,
    *,
    rows_of_table: Callable[[LeaseTable], LeaseTable] = lambda table: table,
    rows_of_former_table: Callable[[LeaseTable], LeaseTable] = lambda table: table,
    metrics: ClosableMetrics | None = None,
    follows_leader: bool = True,
) -> Planner:
    """Return the driver's side of a query. Makes no call.

    Args:
        rows_of_table: Returns the leases of the query's stream in a lease table; by default all.
        rows_of_former_table: The same, for the table that the query had before.
        metrics: The query's; None: as the options have them.
        follows_leader: Whether the query follows the leader of a native KCL 3 fleet.
    """

    def table(name: str, connection: AwsOptions = options.connection) -> LeaseTable:
        return rows_of_table(open_lease_table(name, connection))

    kinesis, clock, leases = open_kinesis(options.connection), SystemClock(), table(options.lease_table)
    # The lease loop repeats its calls by itself. It reports their error, so it must get it before a lease expires.
    loop_deadline_s = min(options.connection.deadline_s, options.lease_duration_s / 3)
    loop_connection = dataclasses.replace(options.connection, deadline_s=loop_deadline_s)
    ports = DriverPorts(
        kinesis=kinesis,
        table=leases,
        clock=clock,
        chance=random.SystemRandom(),
        threads=SYSTEM_THREADS,
        open_metrics=open_metrics if metrics is None else lambda _options, _worker: metrics,
        open_table=lambda name: rows_of_former_table(open_lease_table(name, options.connection)),
        kcl3=open_kcl3_tables(options.lease_table, options.connection) if follows_leader else None,
        fan_out=None if options.consumer_type == "polling" else open_fan_out(options.connection),
        lease_loop_table=table(options.lease_table, loop_connection),
        know_stream=lambda meant: known_to_query(options.stream, options.application, meant, kinesis, clock),
    )
    return Planner(
        options,
        ports,
        read=lambda task, query: rows_of((replace(task, consumer_arn=None),), options, query, table=leases),
    )


def open_metrics(options: SourceOptions, worker: str) -> ClosableMetrics:
    """Return the metrics that the options ask for; the caller closes them."""
    if options.metrics == "log":
        return LoggingMetrics(options.metrics_interval_s)
    if options.metrics == "cloudwatch":
        return open_cloudwatch(options.application, worker, options.connection, options.metrics_interval_s)
    return NoMetrics()
