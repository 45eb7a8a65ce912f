"""Joins ports to adapters: the only module that knows both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.aws.aws_options import AwsOptions, parse_connection
from penstock.core.lease_table_name import check_lease_table_name
from penstock.runtime.system_clock import SystemClock

if TYPE_CHECKING:
    from penstock.aws.cloudwatch_metrics import CloudWatchMetrics
    from penstock.aws.cloudwatch_queries import CloudWatchQueries
    from penstock.aws.lease_table_finder import LeaseTableFinder
    from penstock.aws.stream_control import StreamControl
    from penstock.ports.fan_out import FanOut
    from penstock.ports.kcl3_tables import Kcl3Tables
    from penstock.ports.kinesis import Kinesis
    from penstock.ports.lease_table import LeaseTable
    from penstock.ports.queues import Queues
    from penstock.ports.schema_registry import SchemaRegistry

# An adapter is loaded when it is opened: a Spark task needs one or two of them, and every batch may begin in a new process.


def with_environment(options: AwsOptions) -> AwsOptions:
    """Return options that name the region and the endpoint of the environment as it is now; a worker keeps them."""
    from penstock.aws import connection

    return connection.with_environment(options)


def open_kinesis(options: AwsOptions | None = None, *, stays_off_aws: bool = False) -> Kinesis:
    """Return the stream service; connections are shared by everything in this process with the same options.

    Args:
        stays_off_aws: If the environment names an endpoint now, calls are refused once it no longer names one, as after a test.
    """
    from penstock.aws.kinesis import AwsKinesis

    return AwsKinesis(AwsOptions() if options is None else options, stays_off_aws=stays_off_aws)


def open_fan_out(options: AwsOptions | None = None) -> FanOut:
    """Return the port of registered consumers and subscriptions. Makes no call and no connection yet."""
    from penstock.aws.fan_out import AwsFanOut

    return AwsFanOut(AwsOptions() if options is None else options)


def open_queues(options: AwsOptions | None = None) -> Queues:
    """Return the port of the service's queues. Makes no call yet."""
    from penstock.aws.queues import AwsQueues

    return AwsQueues(AwsOptions() if options is None else options)


def open_stream_control(options: AwsOptions | None = None) -> StreamControl:
    """Open the operations on whole streams."""
    from penstock.aws.stream_control import StreamControl

    return StreamControl(AwsOptions() if options is None else options)


def open_lease_table(name: str, options: AwsOptions | None = None) -> LeaseTable:
    """Return a lease table. Makes no call yet, and creates no table.

    Args:
        name: Name of a DynamoDB table; or `s3://bucket/prefix`, or `file:///folder` for processes of one machine.

    Raises:
        OptionError: No lease table can have this name.
    """
    options = AwsOptions() if options is None else options
    check_lease_table_name(name)
    scheme, is_url, path = name.partition("://")
    if not is_url:
        from penstock.aws.lease_table import DynamoLeaseTable

        return DynamoLeaseTable(name, options)
    from penstock.aws.object_lease_table import ObjectLeaseTable

    if scheme == "s3":
        from penstock.aws.s3_objects import S3Objects

        bucket, _, prefix = path.partition("/")
        return ObjectLeaseTable(S3Objects(bucket, prefix.strip("/"), options), options.retry_plan)
    from penstock.runtime.file_objects import FileObjects

    return ObjectLeaseTable(FileObjects(path, options.deadline_s), options.retry_plan)


def open_lease_table_finder(options: AwsOptions | None = None) -> LeaseTableFinder:
    """Return the finder of lease tables in DynamoDB. Makes no call yet."""
    from penstock.aws.lease_table_finder import LeaseTableFinder

    return LeaseTableFinder(AwsOptions() if options is None else options)


def open_kcl3_tables(
    lease_table: str, options: AwsOptions | None = None, table: LeaseTable | None = None
) -> Kcl3Tables | None:
    """Open the tables of KCL 3 beside a lease table; None if the leases are not in DynamoDB: Java workers use no other store.

    Args:
        lease_table: The lease table's name.
        table: The lease table, if it is open: its description saves a call.
    """
    if "://" in lease_table:
        return None
    from penstock.aws.kcl3_tables import DynamoKcl3Tables

    return DynamoKcl3Tables(
        lease_table, AwsOptions() if options is None else options, getattr(table, "take_description", None)
    )


def begin_opening(table: LeaseTable) -> None:
    """Begin the first call of a DynamoDB lease table in a thread, while the caller makes its own calls."""
    begin = getattr(table, "begin_describing", None)
    if begin is not None:
        begin()


def open_schema_registry(registry_name: str, options: AwsOptions | None = None) -> SchemaRegistry:
    """Return a registry of the AWS Glue Schema Registry. Makes no call yet."""
    from penstock.aws.glue_schema_registry import GlueSchemaRegistry

    return GlueSchemaRegistry(AwsOptions() if options is None else options, registry_name)


def open_cloudwatch(
    application: str, worker: str, options: AwsOptions | None = None, interval_s: float = 60.0
) -> CloudWatchMetrics:
    """Return metrics that go to CloudWatch under the application's name, as the KCL's do; the caller closes them."""
    from penstock.aws.cloudwatch_metrics import CloudWatchMetrics

    return CloudWatchMetrics(
        application, options, dimensions={"WorkerIdentifier": worker}, interval_s=interval_s
    )


def open_cloudwatch_queries(options: AwsOptions | None = None) -> CloudWatchQueries:
    """Return the queries of CloudWatch's metrics. Makes no call yet."""
    from penstock.aws.cloudwatch_queries import CloudWatchQueries

    return CloudWatchQueries(AwsOptions() if options is None else options)


__all__ = [
    "AwsOptions",
    "SystemClock",
    "begin_opening",
    "open_cloudwatch",
    "open_cloudwatch_queries",
    "open_fan_out",
    "open_kcl3_tables",
    "open_kinesis",
    "open_lease_table",
    "open_lease_table_finder",
    "open_queues",
    "open_schema_registry",
    "open_stream_control",
    "parse_connection",
    "with_environment",
]
