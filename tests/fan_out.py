"""What a subscription with enhanced fan-out brings: the data of an event, and the frames of an answer's body."""

from __future__ import annotations

from typing import Any

from botocore.eventstream import EventStreamBuffer, EventStreamMessage

FIRST = "shardId-000000000000"
Event = dict[str, Any]


def data_of(event: Event) -> list[bytes]:
    return [record["Data"] for record in event["Records"]]


def messages_of(body: bytes) -> list[EventStreamMessage]:
    """The frames of a body, checked by botocore; fails if there is half a frame at the end."""
    buffer = EventStreamBuffer()
    buffer.add_data(body)
    found = list(buffer)
    assert sum(message.prelude.total_length for message in found) == len(body)
    return found
