"""The options by which commands reach the service, and the ports that they open."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.aws.aws_options import AwsOptions
    from penstock.aws.cloudwatch_queries import CloudWatchQueries
    from penstock.aws.lease_table_finder import LeaseTableFinder
    from penstock.aws.stream_control import StreamControl
    from penstock.ports.fan_out import FanOut
    from penstock.ports.kcl3_tables import Kcl3Tables
    from penstock.ports.kinesis import Kinesis
    from penstock.ports.lease_table import LeaseTable
    from penstock.ports.queues import Queues

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - it has no public name

_PATIENCE_S: Final = 5.0
"""A user is waiting, so a service that has not answered for so long is an error.

The deadline bounds only the beginning of the last attempt, so each attempt is bounded as well.
"""


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--region`, `--endpoint-url` and `--profile`."""
    group = parser.add_argument_group("connection", "missing options follow boto3: environment, then files")
    group.add_argument(
        "--region", metavar="NAME", help="AWS region; also that of an ARN, AWS_REGION or AWS_DEFAULT_REGION"
    )
    group.add_argument(
        "--endpoint-url", metavar="URL", help="for instance that of `penstock local`; also AWS_ENDPOINT_URL"
    )
    group.add_argument("--profile", metavar="NAME", help="profile of the shared AWS configuration")


def connection_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `AwsOptions` that were set, or follow from the ARN of a stream or queue."""
    from penstock.core.stream_identity import in_region_of

    fields = {"region": args.region, "endpoint_url": args.endpoint_url, "profile": args.profile}
    given = {name: value for name, value in fields.items() if value is not None}
    named = (getattr(args, "stream", None), getattr(args, "queue", None), *getattr(args, "streams", ()))
    return in_region_of(given, *named)


def connection_arguments_of(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the connection options that were set, as arguments of another command; an address is without user and password."""
    from penstock.core.endpoint import without_user

    fields = connection_of(args)
    if "endpoint_url" in fields:
        fields["endpoint_url"] = without_user(fields["endpoint_url"])
    return tuple(
        text for name, value in fields.items() for text in (f"--{name.replace('_', '-')}", str(value))
    )


def open_kinesis(args: argparse.Namespace) -> Kinesis:
    """Open the stream service, to describe and to read."""
    from penstock import wiring

    return wiring.open_kinesis(_options(args))


def open_kinesis_to_put(args: argparse.Namespace) -> Kinesis:
    """Open the stream service with longer timeouts, for large requests: 10 MiB on a slow line."""
    from penstock import wiring

    return wiring.open_kinesis(wiring.AwsOptions(**connection_of(args), deadline_s=_PATIENCE_S))


def open_stream_control(args: argparse.Namespace) -> StreamControl:
    """Open the operations on whole streams."""
    from penstock import wiring

    return wiring.open_stream_control(_options(args))


def open_queues(args: argparse.Namespace) -> Queues:
    """Open the service's queues."""
    from penstock import wiring

    return wiring.open_queues(_options(args))


def open_fan_out(args: argparse.Namespace) -> FanOut:
    """Open registered consumers and subscriptions."""
    from penstock import wiring

    return wiring.open_fan_out(_options(args))


def open_kcl3_tables(args: argparse.Namespace, name: str) -> Kcl3Tables | None:
    """Open the tables of KCL 3 beside a lease table; None if the leases are not in DynamoDB, the only store of Java workers."""
    from penstock import wiring

    return wiring.open_kcl3_tables(name, _options(args))


def open_lease_table(args: argparse.Namespace, name: str) -> LeaseTable:
    """Open a lease table; a missing one is not created."""
    from penstock import wiring

    return wiring.open_lease_table(name, _options(args))


def open_cloudwatch_queries(args: argparse.Namespace) -> CloudWatchQueries:
    """Open the queries of CloudWatch's metrics of streams."""
    from penstock import wiring

    return wiring.open_cloudwatch_queries(_options(args))


def open_lease_table_finder(args: argparse.Namespace) -> LeaseTableFinder:
    """Open the finder of lease tables in DynamoDB."""
    from penstock import wiring

    return wiring.open_lease_table_finder(_options(args))


def _options(args: argparse.Namespace) -> AwsOptions:
    from penstock import wiring

    return wiring.AwsOptions(
        **connection_of(args),
        connect_timeout_s=_PATIENCE_S,
        read_timeout_s=_PATIENCE_S,
        deadline_s=_PATIENCE_S,
    )
