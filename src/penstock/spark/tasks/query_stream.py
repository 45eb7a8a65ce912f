"""Checks that the stream's name still refers to the stream with which a query began.

A stream can be deleted and created again under its name: shard ids are the same again, records are not. The service refuses
the position of a record of the old stream. It does not refuse `TRIM_HORIZON`, `LATEST` or a timestamp, which exist in every
stream. So before reading from one of these, the driver checks the stream before it plans, and so does each task whose plan
is not fresh.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from penstock.core.shard import StreamSummary
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import AccessDenied, StreamChanged
from penstock.ports.clock import Clock
from penstock.ports.kinesis import Kinesis
from penstock.runtime.stream_name_check import StreamNameCheck

_log: Final = logging.getLogger("penstock.spark")
NEW_QUERY: Final = "Start with a new checkpoint location and a new applicationName"
"""Advice in messages, for a query whose stream was deleted and created again."""
_PLAN_FRESH_MS: Final = 10_000
"""Tasks trust the driver's check for 10 s: to delete a stream and create another one takes longer."""


def check_stream(stream: str, application: str, found: StreamIdentity, expected: StreamIdentity) -> None:
    """Raise StreamChanged if the stream is not the one of the query's offsets and leases.

    Args:
        stream: Name or ARN, for the message.
        found: The stream that has the name now.
        expected: The stream of the offsets; an empty ARN accepts any.
    """
    if expected.arn and found != expected:
        raise _stream_changed_error(stream, application, found, expected)


def name_check_of_query(
    stream: str, application: str, expected: StreamIdentity, kinesis: Kinesis, clock: Clock
) -> StreamNameCheck:
    """Return the driver's check that the stream's name still refers to the stream of the query."""
    return StreamNameCheck(
        stream,
        expected,
        kinesis.fetch_summary,
        clock.monotonic_s,
        describe=lambda found: _stream_changed_error(stream, application, found, expected),
    )


def name_check_of_plan(
    stream: str,
    application: str | None,
    expected: StreamIdentity,
    planned_ms: int,
    fetch_summary: Callable[[str], StreamSummary],
) -> Callable[[int], None]:
    """Return a task's check that the stream's name still refers to the stream of the plan.

    A newer stream of this name could give some of the same answers. The task calls the check for each such answer, with the
    service's time, before it emits anything of the answer.

    Args:
        stream: Name or ARN.
        application: The query's application; None for a batch read.
        expected: The stream of the plan.
        planned_ms: Moment of the plan, by the service's clock.
        fetch_summary: Describes the stream of a name.
    """

    def check(service_ms: int) -> None:
        if abs(service_ms - planned_ms) <= _PLAN_FRESH_MS:
            return
        try:
            found = fetch_summary(stream).identity
        except AccessDenied as error:
            _log.warning(
                "stream %s: this task cannot check whether it is still the stream of the plan: %s",
                stream,
                error,
            )
            return
        if found != expected:
            raise _stream_changed_error(stream, application, found, expected)

    return check


def _stream_changed_error(
    stream: str, application: str | None, found: StreamIdentity, expected: StreamIdentity
) -> StreamChanged:
    who, remedy = "of this batch read's plan", "Start the read again"
    if application is not None:
        who = f"of the query's checkpoint location and leases (application {application})"
        remedy = NEW_QUERY
    return StreamChanged(
        f"stream {stream} is not the one {who} ({expected.arn}, created {expected.created_ms}; now {found.arn}, created "
        f"{found.created_ms}): it was deleted and created again, or the option names another stream. {remedy}"
    )
