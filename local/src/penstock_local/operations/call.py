"""The argument of an operation: the store, the clock reading, the quotas and the faults that hit the call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock_local.channels import Channel
from penstock_local.faults import EVENT_KINDS, Fault, FaultBook, Hit
from penstock_local.queues.long_polls import LongPolls
from penstock_local.queues.queue import Queue
from penstock_local.quotas import DAY_MS, Quotas
from penstock_local.service_errors import (
    THROUGHPUT_EXCEEDED,
    RequestRefused,
    invalid_argument,
    limit_exceeded,
    not_found,
    throttling,
    throughput_exceeded,
)
from penstock_local.store import ACCOUNT, Store, not_active
from penstock_local.stream import Consumer, Stream
from penstock_local.stream_metrics import StreamMetrics
from penstock_local.subscriptions import Subscriptions
from penstock_local.tokens import Tokens
from penstock_local.wire import Wire

Document = dict[str, Any]
"""A request or an answer of an operation."""
_DATA_OPERATIONS = {"PutRecord", "PutRecords", "GetRecords", "GetShardIterator"}
_REFUSED_METRICS = {
    "PutRecord": "WriteProvisionedThroughputExceeded",
    "GetRecords": "ReadProvisionedThroughputExceeded",
}
_ANSWER_KINDS = {"partial", "stale", "shuffle", "omit", "empty", "redeliver", *EVENT_KINDS}
_LIST_PAGE_MAX = 100
_OnStream = TypeVar("_OnStream", Queue, Channel)


_QUEUE_ARN = re.compile(r"arn:[^:]*:kinesis:([^:]*):(\d{12}):queue/([^/:\s]+)")
_CHANNEL_ARN = re.compile(r"arn:[^:]*:kinesis:[^:]*:\d{12}:channel/([^/:\s]+)")
_CONSUMER_ARN = re.compile(r"(arn:.*:stream/[^/:]+)/consumer/([^/:]+):(\d+)")


def scripted_error(fault: Fault) -> RequestRefused:
    """Return the error of an `error` fault."""
    return RequestRefused(fault.code or "InternalFailure", fault.message or "scripted fault", fault.status)


class DropConnection(Exception):  # noqa: N818 - an effect, not an error of the program
    """A fault closes the connection before the call is applied."""


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of the server that all calls share."""

    store: Store
    quotas: Quotas
    tokens: Tokens
    faults: FaultBook
    subscriptions: Subscriptions
    metrics: StreamMetrics
    polls: LongPolls


@dataclass(slots=True)
class ServiceCall:
    """One call of an operation.

    Attributes:
        region: Region that the call is signed for; the store's own if it is not signed.
        resource: Stream that the call turned out to be about, for the log.
        queue_name: Queue that the call turned out to be about; None if there is none.
        shards: Shards that it touched, for the log.
        sending_hits: Faults that change how the answer is sent.
        answering_hits: Faults that change the content of the answer.
    """

    service: Service
    operation: str
    wire: Wire
    now_ms: int
    region: str = ""
    resource: str = ""
    queue_name: str | None = None
    shards: Sequence[str] = ()
    sending_hits: list[Hit] = field(default_factory=list)
    answering_hits: list[Hit] = field(default_factory=list)
    _stream: Stream | None = None

    def __post_init__(self) -> None:
        self.region = self.region or self.service.store.options.region

    @property
    def is_for_dead_letters(self) -> bool:
        """Whether the operation is for dead letters, and not for the other records of a queue."""
        return "DeadLetter" in self.operation

    def stream(self, request: Document) -> Stream:
        """Return the stream that the request names by name or ARN."""
        name, arn = request.get("StreamName"), request.get("StreamARN")
        found = self.service.store.find(name, arn, self.now_ms, self.region)
        self.resource = found.name
        return found

    def stream_created_at(self, request: Document) -> Stream:
        """Return the stream that the request names; refuse a request that names another creation time."""
        found = self.stream(request)
        created_ms = request.get("StreamCreationTimestamp")
        # clients may send whole seconds
        if created_ms is not None and created_ms // 1000 != found.created_ms // 1000:
            raise not_found(
                f"Stream {found.name} under account {ACCOUNT} that was created at {created_ms} ms not found."
            )
        return found

    def active_stream(self, request: Document) -> Stream:
        """Return the stream that the request names; refuse the call while it is being changed."""
        found = self.stream(request)
        self.service.store.require_active(found)
        return found

    def readable_stream(self, request: Document) -> Stream:
        """Return the stream that the request names; refuse one that is being created, which has no shards yet."""
        found = self.stream(request)
        if not found.shards:
            raise not_found(
                f"Stream {found.name} under account {ACCOUNT} is in state {found.status}: it has no shards yet."
            )
        return found

    def consumer(self, request: Document) -> tuple[Stream, Consumer]:
        """Return the consumer, and its stream, that the request names by its ARN, or by its stream's and its name."""
        stream_arn, name, arn = (request.get(n) for n in ("StreamARN", "ConsumerName", "ConsumerARN"))
        parts = None
        if arn is not None:
            parts = _CONSUMER_ARN.fullmatch(arn)
            if parts is None:
                raise invalid_argument(f"ConsumerARN {arn} is not the ARN of a consumer.")
            if stream_arn not in (None, parts[1]) or name not in (None, parts[2]):
                raise invalid_argument(
                    f"ConsumerARN {arn} is of another consumer than StreamARN {stream_arn} and ConsumerName {name}."
                )
            stream_arn, name = parts[1], parts[2]
        elif stream_arn is None or name is None:
            raise invalid_argument("Either ConsumerARN, or StreamARN and ConsumerName must be given.")
        stream = self.stream({"StreamARN": stream_arn})
        found = stream.consumers.get(name)
        if found is None or (parts is not None and found.created_s != int(parts[3])):
            raise not_found(
                f"Consumer {arn or name} under stream {stream.name} not found for account {ACCOUNT}."
            )
        return stream, found

    def queue(self, arn: str) -> Queue:
        """Return the queue with this ARN after applying its due changes.

        Raises:
            RequestRefused: There is no such queue in the region that the call is for.
        """
        parts = _QUEUE_ARN.fullmatch(arn)
        if parts is None:
            raise invalid_argument(f"QueueARN {arn} is not the ARN of a queue.")
        queues = self.service.store.queues
        found = queues.get(parts[3], self.now_ms)
        if found is None or found.arn != arn or found.region != self.region:
            raise not_found(f"Queue {arn} under account {ACCOUNT} not found.")
        self.resource = queues.stream_of(found).name
        self.queue_name = found.name
        return found

    def delivering_queue(self, arn: str) -> Queue:
        """Return the queue with this ARN; refuse one that is being created or deleted: its records are not there."""
        found = self.queue(arn)
        if not found.may_deliver:
            raise not_found(not_active(f"Queue {found.name}", found.settings.status))
        return found

    def channel(self, arn: str) -> tuple[Channel, Stream]:
        """Return the channel with this ARN, after applying its due change, and its stream.

        Raises:
            RequestRefused: There is no such channel in the region that the call is for.
        """
        parts = _CHANNEL_ARN.fullmatch(arn)
        if parts is None:
            raise invalid_argument(f"ChannelARN {arn} is not the ARN of a channel.")
        found = self.service.store.channels.get(parts[1], self.now_ms)
        if found is None or found.arn != arn or found.region != self.region:
            raise not_found(f"Channel {arn} under account {ACCOUNT} not found.")
        stream = self.service.store.by_uid[found.stream_uid]
        self.resource = stream.name
        return found, stream

    def list_page(self, request: Document, found: list[_OnStream]) -> tuple[list[_OnStream], Document]:
        """Return a page of queues or channels, and the answer's `NextToken`, which the last page does not have.

        Args:
            found: All queues or channels of the region, sorted by name.
        """
        after = ""
        if "NextToken" in request:
            after = self.service.tokens.read_page(self.operation, request["NextToken"], self.now_ms)["after"]
        filters, streams = request.get("StreamFilter"), self.service.store.by_uid
        left = [
            each
            for each in found
            if each.name > after
            and (filters is None or any(streams[each.stream_uid].is_named_by(one) for one in filters))
        ]
        page = left[: min(request.get("MaxResults", _LIST_PAGE_MAX), _LIST_PAGE_MAX)]
        if len(page) == len(left):
            return page, {}
        token = self.service.tokens.page(self.operation, {"after": page[-1].name}, self.now_ms)
        return page, {"NextToken": token}

    def admit(self, stream: Stream | None = None, shards: Sequence[str] = ()) -> None:
        """Apply the scripted faults; every operation calls this once, before it changes anything.

        Raises:
            RequestRefused: A fault refuses the call.
            DropConnection: A fault closes the connection.
        """
        if stream is not None:
            self.resource = stream.name
            self._stream = stream
        self.shards = shards
        hits = self.service.faults.hits(
            "kinesis",
            self.operation,
            stream=self.resource or None,
            queue=self.queue_name,
            shards=shards,
        )
        for hit in hits:
            fault = hit.fault
            if fault.kind == "drop_before":
                raise DropConnection
            # a subscription that was begun and answered with an error would have no reader
            if fault.kind == "error" and (not fault.applied or self.operation == "SubscribeToShard"):
                raise scripted_error(fault)
            if fault.kind == "throttle" and self.operation != "PutRecords":
                raise self.rate_refusal(fault.code, fault.message)
            if fault.kind in _ANSWER_KINDS or fault.kind == "throttle":
                self.answering_hits.append(hit)
            else:
                self.sending_hits.append(hit)

    def recent_changes(self, moments_ms: Sequence[int], limit: int, what: str) -> list[int]:
        """Return the moments of the last 24 hours; refuse one more change if there are `limit` of them."""
        recent = [at for at in moments_ms if self.now_ms - at < DAY_MS]
        if self.service.quotas.enforced and len(recent) >= limit:
            raise limit_exceeded(f"{what} {len(recent)} times in 24 hours; at most {limit} are allowed.")
        return recent

    def end_dry_run(self, request: Document) -> None:
        """End a dry run after all checks.

        Raises:
            RequestRefused: `DryRunOperationException`: everything else would have succeeded.
        """
        if request.get("DryRun"):
            raise RequestRefused(
                "DryRunOperationException",
                f"The {self.operation} request would have succeeded, but DryRun is set.",
            )

    def rate_refusal(self, code: str | None = None, message: str | None = None) -> RequestRefused:
        """Return the error for a call over the operation's rate."""
        shard = f" for shard {self.shards[0]}" if self.shards else ""
        stream = f" in stream {self.resource}" if self.resource else ""
        text = message or f"Rate exceeded{shard}{stream} under account {ACCOUNT}."
        if code is not None:
            return RequestRefused(code, text)
        if "QueueRecords" in self.operation:
            return throttling(text)
        return throughput_exceeded(text) if self.operation in _DATA_OPERATIONS else limit_exceeded(text)

    def count_refusal(self, refusal: RequestRefused) -> None:
        """Count in the stream's metrics that the whole call was over the rate of its shard."""
        metric = _REFUSED_METRICS.get(self.operation)
        if refusal.code == THROUGHPUT_EXCEEDED and metric is not None and self._stream is not None:
            self.service.metrics.add_refused(self._stream, metric, self.shards, self.now_ms)

    def find_hit(self, kind: str) -> Hit | None:
        """Return the first fault of this kind that fired for the call; None if none did."""
        return next((hit for hit in self.answering_hits if hit.fault.kind == kind), None)
