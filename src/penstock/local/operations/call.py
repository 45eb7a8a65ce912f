"""The argument of an operation: the store, the clock reading, the quotas and the faults that hit the call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.local.faults import EVENT_KINDS, FaultBook, Hit
from penstock.local.quotas import Quotas
from penstock.local.service_errors import RequestRefused, limit_exceeded, throughput_exceeded
from penstock.local.store import ACCOUNT, Store
from penstock.local.stream import Stream
from penstock.local.subscriptions import Subscriptions
from penstock.local.tokens import Tokens
from penstock.local.wire import Wire

_DATA_OPERATIONS = {"PutRecord", "PutRecords", "GetRecords", "GetShardIterator"}
_ANSWER_KINDS = {"partial", "stale", "shuffle", "omit", "empty", *EVENT_KINDS}


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


@dataclass(slots=True)
class ServiceCall:
    """One call of an operation.

    Attributes:
        region: Region that the call is signed for; the store's own where it is not signed.
        resource: Stream that the call turned out to be about, for the log.
        shards: Shards that it touched, for the log.
        sending: Faults that change how the answer is sent.
        answering: Faults that change the content of the answer.
    """

    service: Service
    operation: str
    wire: Wire
    now_ms: int
    region: str = ""
    resource: str = ""
    shards: Sequence[str] = ()
    sending: list[Hit] = field(default_factory=list)
    answering: list[Hit] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.region = self.region or self.service.store.options.region

    def stream(self, request: dict[str, Any]) -> Stream:
        """Return the stream that the request names by name or ARN."""
        name, arn = request.get("StreamName"), request.get("StreamARN")
        found = self.service.store.find(name, arn, self.now_ms, self.region)
        self.resource = found.name
        return found

    def active_stream(self, request: dict[str, Any]) -> Stream:
        """Return the stream that the request names; refuse the call while it is being changed."""
        found = self.stream(request)
        self.service.store.require_active(found)
        return found

    def readable_stream(self, request: dict[str, Any]) -> Stream:
        """Return the stream that the request names if it has shards; one that is being created has none yet."""
        found = self.stream(request)
        self.require_readable(found)
        return found

    def require_readable(self, stream: Stream) -> None:
        """Refuse data operations on a stream whose shards do not exist yet."""
        if not stream.shards:
            raise RequestRefused(
                "ResourceNotFoundException",
                f"Stream {stream.name} under account {ACCOUNT} is in state {stream.status}: it has no shards yet.",
            )

    def admit(self, stream: Stream | None = None, shards: Sequence[str] = ()) -> None:
        """Apply the scripted faults; every operation calls this once, before it changes anything.

        Raises:
            RequestRefused: A fault refuses the call.
            DropConnection: A fault closes the connection.
        """
        if stream is not None:
            self.resource = stream.name
        self.shards = shards
        hits = self.service.faults.hits(
            "kinesis", self.operation, stream=self.resource or None, shards=shards
        )
        for hit in hits:
            fault = hit.fault
            if fault.kind == "drop_before":
                raise DropConnection
            if fault.kind == "error":
                raise RequestRefused(
                    fault.code or "InternalFailure", fault.message or "scripted fault", fault.status
                )
            if fault.kind == "throttle" and self.operation != "PutRecords":
                raise self.throttled(fault.code, fault.message)
            if fault.kind in _ANSWER_KINDS or fault.kind == "throttle":
                self.answering.append(hit)
            else:
                self.sending.append(hit)

    def end_dry_run(self, request: dict[str, Any]) -> None:
        """End a dry run after all checks.

        Raises:
            RequestRefused: `DryRunOperationException`: everything else would have succeeded.
        """
        if request.get("DryRun"):
            raise RequestRefused(
                "DryRunOperationException",
                f"The {self.operation} request would have succeeded, but DryRun is set.",
            )

    def throttled(self, code: str | None = None, message: str | None = None) -> RequestRefused:
        """Return the refusal of this operation's rate."""
        shard = f" for shard {self.shards[0]}" if self.shards else ""
        text = message or f"Rate exceeded{shard} in stream {self.resource} under account {ACCOUNT}."
        if code is not None:
            return RequestRefused(code, text)
        return throughput_exceeded(text) if self.operation in _DATA_OPERATIONS else limit_exceeded(text)

    def has(self, kind: str) -> Hit | None:
        """Return the fault of this kind that fired for the call."""
        return next((hit for hit in self.answering if hit.fault.kind == kind), None)
