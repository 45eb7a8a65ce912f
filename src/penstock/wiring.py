"""Joins ports to adapters: the only module that knows both."""

from __future__ import annotations

from penstock.aws.cloudwatch_metrics import CloudWatchMetrics
from penstock.aws.connection import AwsOptions
from penstock.aws.kinesis import AwsKinesis
from penstock.aws.lease_table import DynamoLeaseTable, LeaseTableOptions
from penstock.ports.kinesis import Kinesis
from penstock.ports.lease_table import LeaseTable
from penstock.runtime.system_clock import SystemClock


def open_kinesis(options: AwsOptions | None = None) -> Kinesis:
    """Give the stream service; connections are shared by everything in this process with the same options."""
    return AwsKinesis(AwsOptions() if options is None else options)


def open_lease_table(
    name: str, options: AwsOptions | None = None, table_options: LeaseTableOptions | None = None
) -> LeaseTable:
    """Give a lease table; nothing is asked or made yet."""
    return DynamoLeaseTable(name, AwsOptions() if options is None else options, table_options)


def open_cloudwatch(
    application: str, worker: str, options: AwsOptions | None = None, interval_s: float = 60.0
) -> CloudWatchMetrics:
    """Send figures to CloudWatch, under the application's name as the KCL does; to be closed."""
    return CloudWatchMetrics(
        application, options, dimensions={"WorkerIdentifier": worker}, interval_s=interval_s
    )


__all__ = [
    "AwsOptions",
    "LeaseTableOptions",
    "SystemClock",
    "open_cloudwatch",
    "open_kinesis",
    "open_lease_table",
]
