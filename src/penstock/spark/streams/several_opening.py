"""Opens the planner of a query of several streams on the real service, in the process beside the driver."""

from __future__ import annotations

import random

from penstock.core.stream_identity import StreamIdentity
from penstock.ports.metrics import ClosableMetrics
from penstock.runtime.metrics_tally import LabelledMetrics
from penstock.spark.driver.planner import Planner
from penstock.spark.driver.planner_opening import open_metrics, open_planner
from penstock.spark.options.several_streams import SeveralOptions
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.streams.several_planner import SeveralPlanner, SeveralPorts
from penstock.spark.streams.stream_table import FormerTable, StreamTable
from penstock.wiring import SystemClock, open_kcl3_tables, open_kinesis, open_lease_table


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
    """Return the planner of one stream. It works like that of a query of this stream alone, on the stream's rows of the table."""
    return open_planner(
        options,
        rows_of_table=lambda table: StreamTable(table, stream.stream_id),
        rows_of_former_table=lambda table: FormerTable(table, stream),
        metrics=_StreamMetrics(metrics, {"stream": options.stream.rpartition("/")[2]}),
        follows_leader=False,
    )


class _StreamMetrics(LabelledMetrics):
    """Metrics of one stream; the query closes those that all its streams share. Figures of several streams never mix."""

    def close(self) -> None:
        """Do nothing."""
