"""The fan-out port: registered consumers over boto3, subscriptions over HTTP/2.

botocore makes and signs each SubscribeToShard request, with the endpoint, the region and the credentials of every other call.
Its request is sent over HTTP/2 instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, Final
from urllib.parse import urlsplit

import botocore.exceptions as sdk

from penstock.aws.aws_options import AwsOptions
from penstock.aws.connecting import proxy_for, trusted_file
from penstock.aws.connection import client_for, count_renewals, new_session, renew_credentials
from penstock.aws.credential_errors import sdk_error
from penstock.aws.data_plane import InterceptedRequest
from penstock.aws.event_connection import ConnectionLost, Refusal, SignedRequest, StreamOutcome
from penstock.aws.event_connections import Origin, connections_of_process
from penstock.aws.request_signing import header_text
from penstock.aws.service_calls import call_operation, pages_of, translate_error
from penstock.core.service_codes import STALE_CREDENTIALS
from penstock.errors import ServiceError, Throttled, Unavailable
from penstock.ports.fan_out import EventStream, FanOutEvent, FanOutFailed, StreamConsumer
from penstock.ports.kinesis import IteratorStart

_SUBSCRIBE: Final = "SubscribeToShard"
_CONNECTION_HEADERS: Final = frozenset({"host", "connection", "transfer-encoding"})
_LISTING_PAGE_COUNT_MAX: Final = 100


class AwsFanOut:
    """Implements `penstock.ports.fan_out.FanOut`; safe to use from several threads."""

    def __init__(self, options: AwsOptions) -> None:
        self._options = options

    def __repr__(self) -> str:
        """Show the endpoint, never the credentials."""
        return f"AwsFanOut({self._options!r})"

    @property
    def _client(self) -> Any:
        return client_for("kinesis", self._options)

    # --- registered consumers ---

    def fetch_consumer(self, stream_arn: str, name: str) -> StreamConsumer:
        answer = self._call_on_consumer("DescribeStreamConsumer", stream_arn, name)
        return _consumer_of(answer["ConsumerDescription"])

    def fetch_consumers(self, stream_arn: str) -> Sequence[StreamConsumer]:
        pages = pages_of(
            partial(call_operation, "kinesis", "ListStreamConsumers", f"stream {stream_arn}", self._options),
            StreamARN=stream_arn,
            MaxResults=_LISTING_PAGE_COUNT_MAX,
        )
        return [_consumer_of(each) for page in pages for each in page["Consumers"]]

    def register_consumer(self, stream_arn: str, name: str) -> StreamConsumer:
        answer = self._call_on_consumer("RegisterStreamConsumer", stream_arn, name, is_write=True, retried=())
        return _consumer_of(answer["Consumer"])

    def deregister_consumer(self, stream_arn: str, name: str) -> None:
        self._call_on_consumer(
            "DeregisterStreamConsumer", stream_arn, name, is_write=True, retried=(Throttled,)
        )

    def _call_on_consumer(self, operation: str, stream_arn: str, name: str, **arguments: Any) -> Any:
        resource = f"stream {stream_arn}, consumer {name}"
        arguments |= {"StreamARN": stream_arn, "ConsumerName": name}
        return call_operation("kinesis", operation, resource, self._options, **arguments)

    # --- subscriptions ---

    def subscribe(
        self, consumer_arn: str, shard_id: str, start: IteratorStart, report: Callable[[FanOutEvent], None]
    ) -> EventStream:
        resource = f"shard {shard_id}, consumer {consumer_arn}"
        renewal_count = count_renewals(self._options)
        url, request = self._sign(consumer_arn, shard_id, start, resource)

        def pass_on(outcome: StreamOutcome) -> None:
            if not isinstance(outcome, Refusal | ConnectionLost):
                report(outcome)
                return
            error = _error_of(outcome, resource)
            if error.code in STALE_CREDENTIALS:
                renew_credentials(self._options, renewal_count)
            report(FanOutFailed(error))

        return connections_of_process().open(self._origin(url), request, pass_on)

    def _sign(
        self, consumer_arn: str, shard_id: str, start: IteratorStart, resource: str
    ) -> tuple[str, SignedRequest]:
        """Return the URL and the request that botocore has made and signed. A hook of `data_plane` keeps it from being sent."""
        position: dict[str, Any] = {"Type": start.type.value}
        if start.sequence_number is not None:
            position["SequenceNumber"] = start.sequence_number
        if start.timestamp_ms is not None:
            position["Timestamp"] = datetime.fromtimestamp(start.timestamp_ms / 1000, UTC)
        try:
            self._client.subscribe_to_shard(
                ConsumerARN=consumer_arn, ShardId=shard_id, StartingPosition=position
            )
        except InterceptedRequest as intercepted:
            return intercepted.request.url, _request_of(intercepted.request)
        except Exception as raised:
            error = sdk_error(raised)
            if error is None:
                raise
            raise translate_error(
                error, _SUBSCRIBE, resource, is_write=False, options=self._options
            ) from error
        raise AssertionError("botocore sent a request that was to be intercepted")

    def _origin(self, url: str) -> Origin:
        scheme, netloc = urlsplit(url).scheme, urlsplit(url).netloc
        origin_url = f"{scheme}://{netloc}"
        return Origin(
            origin_url,
            self._ca_file if scheme == "https" else None,
            proxy_for(origin_url),
            self._options.connect_timeout_s,
        )

    @cached_property
    def _ca_file(self) -> str:
        """The certificates that botocore trusts."""
        return trusted_file(new_session(self._options))


def _consumer_of(document: dict[str, Any]) -> StreamConsumer:
    return StreamConsumer(
        name=document["ConsumerName"],
        arn=document["ConsumerARN"],
        status=document["ConsumerStatus"],
        created_ms=round(document["ConsumerCreationTimestamp"].timestamp() * 1000),
    )


def _request_of(signed: Any) -> SignedRequest:
    parts = urlsplit(signed.url)
    headers = tuple(
        (name.lower(), header_text(value))
        for name, value in signed.headers.items()
        if name.lower() not in _CONNECTION_HEADERS
    )
    body = signed.body.encode() if isinstance(signed.body, str) else bytes(signed.body)
    return SignedRequest(parts.path or "/", headers, body)


def _error_of(outcome: Refusal | ConnectionLost, resource: str) -> ServiceError:
    if isinstance(outcome, ConnectionLost):
        return Unavailable(
            f"{_SUBSCRIBE} on {resource}: {outcome.reason}", operation=_SUBSCRIBE, resource=resource
        )
    answer: Any = {
        "Error": {"Code": outcome.code, "Message": outcome.message},
        "ResponseMetadata": {"HTTPStatusCode": outcome.status},
    }
    return translate_error(sdk.ClientError(answer, _SUBSCRIBE), _SUBSCRIBE, resource, is_write=False)
