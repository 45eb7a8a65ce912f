"""Enhanced fan-out: registered consumers of a stream, and subscriptions to shards.

Implemented by `penstock.aws.fan_out`, for the service and the embedded server over HTTP/2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from penstock.core.reading.resume import IteratorStart
from penstock.errors import ServiceError
from penstock.ports.kinesis import RecordPage


class StreamConsumer(Struct, frozen=True):
    """A registered consumer.

    Args:
        name: Unique within the stream.
        arn: It changes when the consumer is registered again under the same name.
        status: CREATING, ACTIVE or DELETING.
        created_ms: Milliseconds since the epoch.
    """

    name: str
    arn: str
    status: str
    created_ms: int


class FanOutOpened(Struct, frozen=True):
    """The service accepted the subscription."""


class FanOutPage(Struct, frozen=True):
    """An event with records. The `next_iterator` of its page is the event's continuation sequence number."""

    page: RecordPage


class FanOutEnded(Struct, frozen=True):
    """The service ended the connection in the regular way, after its last event."""


class FanOutFailed(Struct, frozen=True):
    """The subscription was refused, or its connection failed. Events that were received but not requested are dropped."""

    error: ServiceError


FanOutEvent: TypeAlias = FanOutOpened | FanOutPage | FanOutEnded | FanOutFailed


class EventStream(Protocol):
    """One connection of a subscription. Safe to use from several threads; no method waits."""

    def request(self) -> None:
        """Request the next event, once. Without requests, the service sends at most one flow-control window of events."""

    def close(self) -> None:
        """End the connection; nothing is reported after this."""


class FanOut(Protocol):
    """Registered consumers and their subscriptions. Safe to use from several threads.

    Raises (every method):
        Throttled, Unavailable: After the last retry.
        NotFound, AccessDenied, Rejected, ResourceBusy: At once.
    """

    def fetch_consumer(self, stream_arn: str, name: str) -> StreamConsumer:
        """Call DescribeStreamConsumer."""

    def fetch_consumers(self, stream_arn: str) -> Sequence[StreamConsumer]:
        """Call ListStreamConsumers for every page."""

    def register_consumer(self, stream_arn: str, name: str) -> StreamConsumer:
        """Call RegisterStreamConsumer once, without retries.

        Raises:
            UnknownOutcome: The call was sent and not answered.
            Throttled: Also when the stream has its maximum of consumers already.
        """

    def deregister_consumer(self, stream_arn: str, name: str) -> None:
        """Call DeregisterStreamConsumer."""

    def subscribe(
        self, consumer_arn: str, shard_id: str, start: IteratorStart, report: Callable[[FanOutEvent], None]
    ) -> EventStream:
        """Begin to call SubscribeToShard; `report` gets its outcomes, on a thread of the port.

        May fetch credentials, and wait for them.

        Raises:
            ServiceError: The request could not be made. Nothing was sent, and nothing will be reported.
        """
