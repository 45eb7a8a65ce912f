"""Checks of streams that have, or are to have, queues or channels, which are for streams in on-demand mode only."""

from __future__ import annotations

from penstock_local.operations.call import Document, ServiceCall
from penstock_local.service_errors import in_use, validation
from penstock_local.store import ACCOUNT, not_active
from penstock_local.stream import CREATING, DELETING, Stream


def require_on_demand(stream: Stream, what: str) -> None:
    """Refuse a queue or channel on a stream that is not in on-demand mode, or is being created or deleted."""
    if stream.mode != "ON_DEMAND":
        raise validation(
            f"Request is invalid. Stream {stream.name} under account {ACCOUNT} is in {stream.mode} mode: "
            f"{what} are for streams in ON_DEMAND mode only."
        )
    require_present(stream)


def require_present(stream: Stream) -> None:
    """Refuse something new on a stream that is being created or deleted."""
    if stream.status in (CREATING, DELETING):
        raise in_use(not_active(f"Stream {stream.name}", stream.status))


def require_no_queues(call: ServiceCall, stream: Stream) -> None:
    """Refuse a change of a stream that has queues."""
    queues = call.service.store.queues.of_stream(stream, call.now_ms)
    if queues:
        raise in_use(
            f"Stream {stream.name} under account {ACCOUNT} has {len(queues)} queues: delete them with DeleteQueue."
        )


def require_no_channels(call: ServiceCall, stream: Stream) -> None:
    """Refuse a change of a stream that has channels."""
    channels = call.service.store.channels.of_stream(stream.uid, call.now_ms)
    if channels:
        raise in_use(
            f"Stream {stream.name} under account {ACCOUNT} has {len(channels)} channels: delete them with "
            "DeleteChannel."
        )


def single_entry(entries: list[Document], name: str) -> Document:
    """Return the only entry of a list of configurations; refuse any other number of entries."""
    if len(entries) != 1:
        raise validation(f"{name} must contain exactly one entry; it contains {len(entries)}.")
    return entries[0]
