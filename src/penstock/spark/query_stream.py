"""Whether the stream that a query reads is still the one that it began with.

A stream can be deleted, and created again under its name: shard ids come again, records do not. The service refuses the place of a
record of the old stream. It does not refuse a beginning: `TRIM_HORIZON`, `LATEST` and a moment are in every stream. So who begins
there asks what the name means, the driver before it plans and each task whose plan is not fresh.
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
from penstock.runtime.known_stream import KnownStream

_log: Final = logging.getLogger("penstock.spark")
_PLAN_BELIEVED_MS: Final = 10_000
"""So long what the driver knew of the stream holds for tasks: to delete a stream and create another one takes longer."""


def check_stream(stream: str, application: str, found: StreamIdentity, meant: StreamIdentity) -> None:
    """Refuse to go on in another stream than the one that a query's offsets and leases are of.

    Raises:
        StreamChanged: The stream was deleted and made again, or the option names another one.
    """
    if meant.arn and found != meant:
        raise _changed_under(stream, application, found, meant)


def known_to_query(
    stream: str, application: str, meant: StreamIdentity, kinesis: Kinesis, clock: Clock
) -> KnownStream:
    """Return what tells a query's driver whether the name still means its stream."""
    return KnownStream(
        stream,
        meant,
        kinesis.fetch_summary,
        clock.monotonic_s,
        describe=lambda found: _changed_under(stream, application, found, meant),
    )


def check_of_plan(
    stream: str,
    application: str | None,
    meant: StreamIdentity,
    planned_ms: int,
    fetch_summary: Callable[[str], StreamSummary],
) -> Callable[[int], None]:
    """Return what a task calls with the moment of an answer that may be another stream's, before it gives anything out.

    Args:
        stream: Name or ARN.
        application: The query's; None: a batch read.
        meant: The stream that was planned for.
        planned_ms: When, by the service's clock.
        fetch_summary: Describes the stream of a name.
    """

    def check(service_ms: int) -> None:
        if abs(service_ms - planned_ms) <= _PLAN_BELIEVED_MS:
            return
        try:
            summary = fetch_summary(stream)
        except AccessDenied as error:
            _log.warning(
                "stream %s: whether it is still the one that was planned for is not known here: %s",
                stream,
                error,
            )
            return
        found = StreamIdentity(summary.arn, summary.created_ms)
        if found != meant:
            raise _changed_under(stream, application, found, meant)

    return check


def _changed_under(
    stream: str, application: str | None, found: StreamIdentity, meant: StreamIdentity
) -> StreamChanged:
    who, way_out = "that the batch read was planned for", "Start the read again"
    if application is not None:
        who = f"that the query's checkpoint location and leases (application {application}) are of"
        way_out = "Start with a new checkpoint location and a new applicationName"
    return StreamChanged(
        f"stream {stream} is not the one {who} ({meant.arn}, created {meant.created_ms}; now {found.arn}, created "
        f"{found.created_ms}): it was deleted and created again, or the option names another stream. {way_out}"
    )
