"""Opens a query's planner on the real service, in the process beside the driver."""

from __future__ import annotations

import dataclasses
import random

from msgspec.structs import replace

from penstock.core.stream_identity import StreamIdentity
from penstock.ports.lease_table import LeaseTable
from penstock.ports.metrics import ClosableMetrics, NoMetrics
from penstock.runtime.metrics_log import LoggingMetrics
from penstock.runtime.threads import SYSTEM_THREADS
from penstock.spark.driver.driver_ports import DriverPorts
from penstock.spark.driver.planner import Planner
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.query_stream import name_check_of_query
from penstock.spark.tasks.stream_table import EarlierLeaseTable, StreamTable
from penstock.spark.tasks.task_opening import read_parts
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
    options: SourceOptions, *, part_of: StreamIdentity | None = None, metrics: ClosableMetrics | None = None
) -> Planner:
    """Return the planner of a query, or of one stream if the query reads several. Makes no call.

    Args:
        part_of: The stream, if the query reads several with one lease table for all; None if it reads one.
        metrics: The query's metrics; None opens those that the options ask for.
    """

    def table(name: str, connection: AwsOptions = options.connection) -> LeaseTable:
        whole = open_lease_table(name, connection)
        return whole if part_of is None else StreamTable(whole, part_of.stream_id)

    def earlier_table(name: str) -> LeaseTable:
        whole = open_lease_table(name, options.connection)
        return whole if part_of is None else EarlierLeaseTable(whole, part_of)

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
        open_earlier_table=earlier_table,
        kcl3=None if part_of is not None else open_kcl3_tables(options.lease_table, options.connection),
        fan_out=None if options.consumer_type == "polling" else open_fan_out(options.connection),
        lease_loop_table=table(options.lease_table, loop_connection),
        name_check_of=lambda expected: name_check_of_query(
            options.stream, options.application, expected, kinesis, clock
        ),
    )
    return Planner(
        options,
        ports,
        # The driver polls: a subscription of its own would end the executors'.
        read_shard=lambda task, query: read_parts(
            (replace(task, consumer_arn=None),), options, query, table=leases
        ),
    )


def open_metrics(options: SourceOptions, worker: str) -> ClosableMetrics:
    """Return the metrics that the options ask for; the caller closes them."""
    if options.metrics == "log":
        return LoggingMetrics(options.metrics_interval_s)
    if options.metrics == "cloudwatch":
        return open_cloudwatch(options.application, worker, options.connection, options.metrics_interval_s)
    return NoMetrics()
