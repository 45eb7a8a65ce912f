"""The options by which commands reach the service."""

from __future__ import annotations

import argparse
from typing import Any, Final

from penstock.wiring import AwsOptions

_PATIENCE_S: Final = 5.0
"""A user is waiting, so a service that has not answered for this long is an error.

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


def connection_of(args: argparse.Namespace, stream: str | None = None) -> dict[str, Any]:
    """Return the fields of `AwsOptions` that the user has set or that follow from the ARN of a stream or queue.

    Args:
        stream: The name or ARN of a stream that no argument names.
    """
    from penstock.core.stream_identity import with_region_of_arns

    fields = {"region": args.region, "endpoint_url": args.endpoint_url, "profile": args.profile}
    given_fields = {name: value for name, value in fields.items() if value is not None}
    names = (getattr(args, "stream", None), getattr(args, "queue", None), *getattr(args, "streams", ()))
    return with_region_of_arns(given_fields, stream, *names)


def connection_arguments_of(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the connection options that were set, as arguments of another command. User and password are removed from the endpoint."""
    from penstock.core.endpoint import without_user

    fields = connection_of(args)
    if "endpoint_url" in fields:
        fields["endpoint_url"] = without_user(fields["endpoint_url"])
    return tuple(
        text for name, value in fields.items() for text in (f"--{name.replace('_', '-')}", str(value))
    )


def options_of(args: argparse.Namespace, stream: str | None = None) -> AwsOptions:
    """Return the connection options, with short timeouts since a user waits for each answer."""
    return AwsOptions(
        **connection_of(args, stream),
        connect_timeout_s=_PATIENCE_S,
        read_timeout_s=_PATIENCE_S,
        deadline_s=_PATIENCE_S,
    )


def large_request_options(args: argparse.Namespace) -> AwsOptions:
    """Return the connection for large requests, with longer timeouts: 10 MiB on a slow line."""
    return AwsOptions(**connection_of(args), deadline_s=_PATIENCE_S)
