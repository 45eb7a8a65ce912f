"""The loop that owns a worker's subscriptions: one state machine for each shard that is read by enhanced fan-out.

The machines (`penstock.core.reading.subscription`) decide; this loop gives them time and chance, and runs their effects.
Readers get their pages on the pool. Requests are signed on the pool too, since that may wait for credentials.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct

from penstock.core.reading.resume import IteratorStart
from penstock.core.reading.subscription import (
    CloseConnection,
    Connect,
    DeliverFailure,
    DeliverIterator,
    DeliverPage,
    Effect,
    ReportRefusal,
    ReportTakeover,
    RequestEvent,
    Subscription,
)
from penstock.core.safe_text import describe_error
from penstock.errors import NotFound, PenstockError, Rejected, ServiceError, Unavailable
from penstock.ports.clock import Chance
from penstock.ports.fan_out import (
    EventStream,
    FanOutEnded,
    FanOutEvent,
    FanOutFailed,
    FanOutOpened,
    FanOutPage,
)
from penstock.ports.kinesis import RecordPage
from penstock.ports.metrics import Metrics
from penstock.runtime.consumer_registration import ConsumerRegistration
from penstock.runtime.loop import Loop, Pool

log: logging.Logger = logging.getLogger("penstock.consumer")

_GAUGE_INTERVAL_S: Final = 1.0


class PageTaker(Protocol):
    """Takes the pages of subscriptions, each with its key. Called on the pool, once for each request of a page."""

    def on_iterator(self, key: Any, /) -> None:
        """Handle that pages can be requested from now on."""

    def on_page(self, key: Any, page: RecordPage, /) -> None:
        """Handle the page that was requested."""

    def on_failure(self, key: Any, error: PenstockError, /) -> None:
        """Handle that the request failed."""


class _ShardEntry(Struct, eq=False):
    """A subscription to one shard; `number` and `stream` are of its current connection."""

    key: Hashable
    shard_id: str
    machine: Subscription
    taker: PageTaker
    number: int = 0
    stream: EventStream | None = None
    scheduled_s: float = math.inf
    is_requested: bool = False  # an event may be requested before the stream is open


_Event: TypeAlias = Callable[[float], None]


class Subscriptions(Loop[_Event]):
    """Owns one worker's subscriptions. Methods for readers may be called from any thread.

    An event is a function of the time; the loop's thread calls it.

    Args:
        takeover_pause_s: Time before another try to subscribe after another subscriber took over.
        pool: Runs the readers' callbacks, and the calls for which the loop must not wait.
        labels: Added to every figure.
    """

    def __init__(
        self,
        registration: ConsumerRegistration,
        *,
        takeover_pause_s: float,
        chance: Chance,
        metrics: Metrics,
        pool: Pool,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.registration = registration
        self._takeover_pause_s = takeover_pause_s
        self._chance = chance
        self._metrics = metrics
        self._pool = pool
        self._labels = dict(labels or {})
        self._entries: dict[Hashable, _ShardEntry] = {}
        self._timers: list[tuple[float, int, _ShardEntry]] = []
        self._timer_ids = itertools.count()
        self._gauge_due_s = -math.inf

    # --- for readers; from any thread ---

    def begin(self, key: Hashable, shard_id: str, start: IteratorStart, taker: PageTaker) -> None:
        """Subscribe to a shard at a position; an earlier subscription of the key ends."""
        self.post(partial(self._on_begin, key, shard_id, start, taker))

    def request_page(self, key: Hashable) -> None:
        """Request the next page."""
        self.post(partial(self._on_page_request, key))

    def close(self, key: Hashable) -> None:
        """End a subscription; its reader gets no more pages."""
        self.post(partial(self._on_close, key))

    # --- the loop ---

    def handle_events(self, events: list[_Event], now_s: float) -> None:
        for event in events:
            event(now_s)
        while self._timers and self._timers[0][0] <= now_s:
            _, _, entry = heapq.heappop(self._timers)
            entry.scheduled_s = math.inf
            if self._is_current(entry):
                self._run_effects(entry, entry.machine.on_time(now_s))
        if now_s >= self._gauge_due_s:
            self._gauge_due_s = now_s + _GAUGE_INTERVAL_S
            count = sum(each.machine.is_connected for each in self._entries.values())
            self._metrics.gauge("subscriptions", count, self._labels)

    def next_wake_s(self) -> float | None:
        return self._timers[0][0] if self._timers else None

    def _schedule(self, entry: _ShardEntry) -> None:
        # One timer per subscription is enough, even if it is early: the next one is scheduled when it fires.
        wake_s = entry.machine.wake_s
        if wake_s is not None and wake_s < entry.scheduled_s:
            entry.scheduled_s = wake_s
            heapq.heappush(self._timers, (wake_s, next(self._timer_ids), entry))

    def finish(self) -> None:
        """End every subscription and the loop's thread."""
        super().finish()
        for entry in list(self._entries.values()):
            if entry.stream is not None:
                entry.stream.close()

    # --- events ---

    def _is_current(self, entry: _ShardEntry) -> bool:
        """Return whether an entry is current: its key may have been closed, and begun again, since."""
        return self._entries.get(entry.key) is entry

    def _on_begin(
        self, key: Hashable, shard_id: str, start: IteratorStart, taker: PageTaker, now_s: float
    ) -> None:
        entry = self._entries.get(key)
        if entry is None:
            machine = Subscription(shard_id, self._takeover_pause_s)
            entry = self._entries[key] = _ShardEntry(key, shard_id, machine, taker)
        self._run_effects(entry, entry.machine.on_iterator_request(start, now_s))

    def _on_page_request(self, key: Hashable, now_s: float) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            self._run_effects(entry, entry.machine.on_page_request(now_s))

    def _on_close(self, key: Hashable, _now_s: float) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._run_effects(entry, entry.machine.on_close())

    def _on_connected(self, entry: _ShardEntry, number: int, stream: EventStream, _now_s: float) -> None:
        if not self._is_current(entry) or number != entry.number:
            stream.close()  # the key was closed, or its subscription reset, while this connection was made
            return
        entry.stream = stream
        if entry.is_requested:
            stream.request()

    def _on_stream_event(self, entry: _ShardEntry, number: int, event: FanOutEvent, now_s: float) -> None:
        if not self._is_current(entry):
            return
        machine = entry.machine
        match event:
            case FanOutOpened():
                effects = machine.on_opened(number, now_s)
            case FanOutPage(page):
                effects = machine.on_page(number, page, now_s)
            case FanOutEnded():
                effects = machine.on_ended(number, now_s)
            case FanOutFailed(error):
                effects = machine.on_failed(number, error, now_s, self._chance.random())
        self._run_effects(entry, effects)

    # --- effects ---

    def _run_effects(self, entry: _ShardEntry, effects: list[Effect]) -> None:
        """Run the effects of a machine, and schedule its next timer."""
        for effect in effects:
            match effect:
                case Connect(number, start):
                    entry.number, entry.stream, entry.is_requested = number, None, False
                    self._pool.submit(partial(self._connect, entry, number, start))
                case RequestEvent():
                    entry.is_requested = True
                    if entry.stream is not None:
                        entry.stream.request()
                case CloseConnection():
                    if entry.stream is not None:
                        entry.stream.close()
                    entry.number, entry.stream = 0, None
                case ReportRefusal() | ReportTakeover():
                    self._report(entry.shard_id, effect)
                case _:
                    self._deliver(entry, effect)
        self._schedule(entry)

    def _deliver(self, entry: _ShardEntry, effect: DeliverIterator | DeliverPage | DeliverFailure) -> None:
        match effect:
            case DeliverIterator():
                self._pool.submit(partial(entry.taker.on_iterator, entry.key))
            case DeliverPage(page):
                self._metrics.count("pushed_events", 1, {"shard": entry.shard_id, **self._labels})
                self._pool.submit(partial(entry.taker.on_page, entry.key, page))
            case DeliverFailure(error):
                if isinstance(error, NotFound):
                    self.registration.forget_arn()
                self._pool.submit(partial(entry.taker.on_failure, entry.key, error))

    def _report(self, shard_id: str, effect: ReportRefusal | ReportTakeover) -> None:
        if isinstance(effect, ReportRefusal):
            self._metrics.count("subscriptions_refused", 1, {"shard": shard_id, **self._labels})
            log.debug("shard %s: %s", shard_id, effect.error)
            return
        self._metrics.count("subscriptions_taken_over", 1, {"shard": shard_id, **self._labels})
        log.warning(
            "shard %s: another subscriber of consumer %s took over (%s). It does no harm while a lease moves; if it goes "
            "on, another application uses the same consumer name",
            shard_id,
            self.registration.name,
            effect.error,
        )

    def _fetch_arn(self) -> str:
        try:
            return self.registration.fetch_arn()
        except Rejected as error:
            # A reader takes Rejected for a refused position, as after a re-created stream.
            raise ServiceError(
                str(error), operation=error.operation, code=error.code, resource=error.resource
            ) from error

    def _connect(self, entry: _ShardEntry, number: int, start: IteratorStart) -> None:
        shard_id = entry.shard_id

        def report_event(event: FanOutEvent) -> None:
            self.post(partial(self._on_stream_event, entry, number, event))

        try:
            stream = self.registration.fan_out.subscribe(self._fetch_arn(), shard_id, start, report_event)
        except ServiceError as error:
            report_event(FanOutFailed(error))
        except Exception as error:
            log.exception("shard %s: subscribing failed in an unexpected way", shard_id)
            report_event(FanOutFailed(Unavailable(describe_error(error), operation="SubscribeToShard")))
        else:
            self.post(partial(self._on_connected, entry, number, stream))
            if self.is_finished:
                stream.close()
