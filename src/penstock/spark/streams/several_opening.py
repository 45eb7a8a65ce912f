"""Opens the planner of a query of several streams on the real service, in the process beside the driver."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from msgspec.structs import replace

from penstock.core.stream_identity import StreamIdentity
from penstock.ports.metrics import ClosableMetrics
from penstock.runtime.threads import SYSTEM_THREADS
from penstock.spark.driver.joining import DriverPorts
from penstock.spark.driver.planner import Planner
from penstock.spark.driver.planner_opening import open_metrics
from penstock.spark.options.several_streams import SeveralOptions
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.streams.several_planner import SeveralPlanner, SeveralPorts
from penstock.spark.streams.stream_metrics import StreamMetrics
from penstock.spark.streams.stream_table import FormerTable, StreamTable
from penstock.spark.tasks.query_stream import known_to_query
from penstock.spark.tasks.task_opening import rows_of
from penstock.wiring import SystemClock, open_fan_out, open_kcl3_tables, open_kinesis, open_lease_table


def open_several_planner(options: SeveralOptions) -> SeveralPlanner:
    """Return the driver's side of a query of several streams. Makes no call."""
    shared = options.shared
    return SeveralPlanner(
        options,
        SeveralPorts(
            kinesis=open_kinesis(shared.connection),
            table=open_lease_table(shared.lease_table, shared.connection),
            clock=SystemClock(),
            chance=random.SystemRandom(),
            kcl3=open_kcl3_tables(shared.lease_table, shared.connection),
            open_metrics=open_metrics,
            open_planner=_open_planner,
        ),
    )


def _open_planner(options: SourceOptions, stream: StreamIdentity, metrics: ClosableMetrics) -> Planner:
    """Return the planner of one stream: that of a query of it alone, on its rows of the table."""
    kinesis, clock = open_kinesis(options.connection), SystemClock()
    loop_deadline_s = min(options.connection.deadline_s, options.lease_duration_s / 3)
    loop_connection = dataclasses.replace(options.connection, deadline_s=loop_deadline_s)
    table = StreamTable(open_lease_table(options.lease_table, options.connection), stream.stream_id)
    ports = DriverPorts(
        kinesis=kinesis,
        table=table,
        clock=clock,
        chance=random.SystemRandom(),
        threads=SYSTEM_THREADS,
        open_metrics=_opened(StreamMetrics(metrics, options.stream.rpartition("/")[2])),
        open_table=lambda name: FormerTable(open_lease_table(name, options.connection), stream),
        fan_out=None if options.consumer_type == "polling" else open_fan_out(options.connection),
        lease_loop_table=StreamTable(
            open_lease_table(options.lease_table, loop_connection), stream.stream_id
        ),
        know_stream=lambda meant: known_to_query(options.stream, options.application, meant, kinesis, clock),
    )
    return Planner(
        options,
        ports,
        read=lambda task, query: rows_of((replace(task, consumer_arn=None),), options, query, table=table),
    )


def _opened(metrics: ClosableMetrics) -> Callable[[SourceOptions, str], ClosableMetrics]:
    return lambda _options, _worker: metrics
