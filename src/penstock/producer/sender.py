"""Carries out a batcher's steps, PutRecords and the listing of shards, and passes each outcome to the batcher.

The batcher decides which entries are sent, when they are sent again and how long to pause. The owner of a sender handles
final failures: the producer fails futures, the task writer raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from msgspec import Struct

from penstock.core.service_codes import is_denial
from penstock.core.writing.batcher import Batcher
from penstock.core.writing.batcher_steps import FetchShards, PutRequest, PutResult, RequestFailure
from penstock.errors import (
    AccessDenied,
    ResourceBusy,
    ServiceError,
    Throttled,
    Unavailable,
    UnknownOutcome,
    UnknownRefusal,
)
from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import Kinesis, ShardFilter
from penstock.ports.metrics import Metrics
from penstock.producer.placement import Placement

_log: Final = logging.getLogger("penstock.producer")
_RETRIED_ERRORS: Final = (Throttled, Unavailable, ResourceBusy, UnknownOutcome, UnknownRefusal)
"""After these a call is made again; every other error of the service is final."""


class SenderPorts(Struct, frozen=True):
    """The ports of a sender."""

    kinesis: Kinesis
    clock: Clock
    chance: Chance
    metrics: Metrics


class Sender:
    """Makes the calls that one batcher plans. As thread-safe as its lock.

    Args:
        stream: Name or ARN.
        batcher: Plans the steps and gets their outcomes.
        fetch_placement: Fetches again how the stream places records.
        lock: Held while the batcher gets an outcome, never during a call.
    """

    def __init__(
        self,
        stream: str,
        batcher: Batcher,
        ports: SenderPorts,
        *,
        fetch_placement: Callable[[], Placement],
        lock: AbstractContextManager[Any],
    ) -> None:
        self._stream = stream
        self.batcher = batcher
        self._ports = ports
        self._fetch_placement = fetch_placement
        self._lock = lock

    def send(self, request: PutRequest) -> PutResult:
        """Send a request once and hand the batcher the answers.

        Raises:
            ServiceError: The request was refused, and a retry cannot help. The batcher still counts it as in flight.
        """
        ports = self._ports
        began_s = ports.clock.monotonic_s()
        try:
            answers = ports.kinesis.put_records(self._stream, request.entries)
        except _RETRIED_ERRORS as error:
            now_s, chance = ports.clock.monotonic_s(), ports.chance.random()
            with self._lock:
                return self.batcher.on_failed_call(request, _failure_of(error), str(error), now_s, chance)
        now_s, chance = ports.clock.monotonic_s(), ports.chance.random()
        with self._lock:
            result = self.batcher.on_answers(request, answers, now_s, chance)
        ports.metrics.observe("put_request_time_s", now_s - began_s)
        return result

    def fetch_shards(self, step: FetchShards) -> PutResult:
        """List the shards once and hand them to the batcher.

        Raises:
            PenstockError: The shards cannot be listed, and trying again cannot help.
        """
        ports = self._ports
        aggregates: bool | None = None
        try:
            if self.batcher.aggregates and step.with_closed:
                # Aggregates were misrouted: perhaps the stream has begun to place records by itself.
                aggregates = self._fetch_placement().may_aggregate
            shard_filter = None if step.with_closed else ShardFilter("AT_LATEST")
            shards = ports.kinesis.fetch_shards(self._stream, shard_filter).shards
        except Exception as error:
            if isinstance(error, AccessDenied) and is_denial(error.code):
                _log.warning(
                    "stream %s: ListShards is not permitted (%s): records are written without aggregation and without flow "
                    "control per shard; permit the call to have both",
                    self._stream,
                    error,
                )
                with self._lock:
                    return self.batcher.on_listing_denied(ports.clock.monotonic_s())
            # The batcher waits for this listing, so it gets every kind of failure.
            now_s, chance = ports.clock.monotonic_s(), ports.chance.random()
            with self._lock:
                self.batcher.on_listing_failed(str(error), now_s, chance)
            if isinstance(error, _RETRIED_ERRORS):
                return PutResult()
            raise
        with self._lock:
            return self.batcher.on_shards(shards, ports.clock.monotonic_s(), aggregates=aggregates)


def _failure_of(error: ServiceError) -> RequestFailure:
    if isinstance(error, UnknownOutcome):
        return RequestFailure.UNKNOWN
    return RequestFailure.THROTTLED if isinstance(error, Throttled) else RequestFailure.UNAVAILABLE
