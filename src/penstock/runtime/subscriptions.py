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
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from penstock.core.reading.resume import IteratorStart
from penstock.core.reading.subscription import (
    Connect,
    DeliverFailure,
    DeliverIterator,
    DeliverPage,
    Effect,
    Refused,
    RequestEvent,
    Reset,
    Subscription,
    TakenOver,
)
from penstock.core.safe_text import describe_error
from penstock.errors import NotFound, PenstockError, Rejected, ServiceError, Unavailable
from penstock.ports.clock import Chance
from penstock.ports.fan_out import Broken, Ended, EventStream, Opened, Pushed, StreamNews
from penstock.ports.kinesis import RecordPage
from penstock.ports.metrics import Metrics
from penstock.runtime.consumer_registration import ConsumerRegistration
from penstock.runtime.loop import Loop, Pool

log: logging.Logger = logging.getLogger("penstock.consumer")

_GAUGE_INTERVAL_S: Final = 1.0


class PageTaker(Protocol):
    """The reader of a shard. Called on the pool, once for each of its requests."""

    def on_iterator(self) -> None:
        """Handle that pages can be requested from now on."""

    def on_page(self, page: RecordPage) -> None:
        """Handle the page that was requested."""

    def on_failure(self, error: PenstockError) -> None:
        """Handle that the request failed."""


class _Entry(Struct, eq=False):
    shard_id: str
    machine: Subscription[RecordPage]
    taker: PageTaker
    number: int = 0
    stream: EventStream | None = None
    scheduled_s: float = math.inf
    is_requested: bool = False  # an event may be requested before the stream is open


class _Begin(Struct, frozen=True):
    key: Hashable
    shard_id: str
    start: IteratorStart
    taker: PageTaker


class _Want(Struct, frozen=True):
    key: Hashable


class _Close(Struct, frozen=True):
    key: Hashable


class _Connected(Struct, frozen=True):
    key: Hashable
    entry: _Entry  # the key may have been closed and begun again since
    number: int
    stream: EventStream


class _News(Struct, frozen=True):
    key: Hashable
    entry: _Entry
    number: int
    news: StreamNews


_Event: TypeAlias = _Begin | _Want | _Close | _Connected | _News


class Subscriptions(Loop[_Event]):
    """Owns one worker's subscriptions. Methods for readers may be called from any thread.

    Args:
        takeover_pause_s: As for every `Subscription`.
        pool: Runs the readers' callbacks and calls that wait.
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
        self._registration = registration
        self._takeover_pause_s = takeover_pause_s
        self._chance = chance
        self._metrics = metrics
        self._pool = pool
        self._labels = dict(labels or {})
        self._entries: dict[Hashable, _Entry] = {}
        self._timers: list[tuple[float, int, Hashable]] = []
        self._timer_ids = itertools.count()
        self._gauge_s = -math.inf

    @property
    def registration(self) -> ConsumerRegistration:
        """The consumer that subscribes."""
        return self._registration

    # --- for readers; from any thread ---

    def begin(self, key: Hashable, shard_id: str, start: IteratorStart, taker: PageTaker) -> None:
        """Subscribe to a shard at a position; an earlier subscription of the key ends."""
        self.post(_Begin(key, shard_id, start, taker))

    def want(self, key: Hashable) -> None:
        """Request the next page."""
        self.post(_Want(key))

    def close(self, key: Hashable) -> None:
        """End a subscription; its reader gets no more pages."""
        self.post(_Close(key))

    # --- the loop ---

    def handle_events(self, events: list[_Event], now_s: float) -> None:
        """Handle events and due timers."""
        for event in events:
            self._handle(event, now_s)
        while self._timers and self._timers[0][0] <= now_s:
            _, _, key = heapq.heappop(self._timers)
            entry = self._entries.get(key)
            if entry is not None:
                entry.scheduled_s = math.inf
                self._do(key, entry, entry.machine.on_time(now_s))
        if now_s >= self._gauge_s:
            self._gauge_s = now_s + _GAUGE_INTERVAL_S
            count = sum(each.machine.is_connected for each in self._entries.values())
            self._metrics.gauge("subscriptions", count, self._labels)

    def next_wake_s(self) -> float | None:
        """Return when the next timer of a subscription is due."""
        return self._timers[0][0] if self._timers else None

    def _schedule(self, key: Hashable, entry: _Entry) -> None:
        # One timer per subscription is enough, even if it is early: the next one is scheduled when it fires.
        wake_s = entry.machine.wake_s
        if wake_s is not None and wake_s < entry.scheduled_s:
            entry.scheduled_s = wake_s
            heapq.heappush(self._timers, (wake_s, next(self._timer_ids), key))

    def finish(self) -> None:
        """End every subscription and the loop's thread."""
        super().finish()
        for entry in list(self._entries.values()):
            if entry.stream is not None:
                entry.stream.close()

    def _entry_of(self, event: _Event) -> _Entry | None:
        entry = self._entries.get(event.key)
        if entry is None and isinstance(event, _Begin):
            machine: Subscription[RecordPage] = Subscription(event.shard_id, self._takeover_pause_s)
            entry = self._entries[event.key] = _Entry(event.shard_id, machine, event.taker)
        is_stale = isinstance(event, _Connected | _News) and event.entry is not entry
        return None if is_stale else entry

    def _handle(self, event: _Event, now_s: float) -> None:
        """Feed one event to the machine of its key, and run the effects."""
        entry = self._entry_of(event)
        if entry is None:
            if isinstance(event, _Connected):
                event.stream.close()
            return
        match event:
            case _Begin(start=start):
                self._do(event.key, entry, entry.machine.on_begin(start, now_s))
            case _Want():
                self._do(event.key, entry, entry.machine.on_want(now_s))
            case _Close():
                self._do(event.key, entry, entry.machine.on_close())
                del self._entries[event.key]
            case _Connected():
                _keep(entry, event)
            case _News():
                self._do(event.key, entry, self._on_news(entry.machine, event, now_s))

    def _on_news(
        self, machine: Subscription[RecordPage], event: _News, now_s: float
    ) -> list[Effect[RecordPage]]:
        match event.news:
            case Opened():
                return machine.on_opened(event.number, now_s)
            case Pushed(page):
                return machine.on_page(event.number, page, now_s)
            case Ended():
                return machine.on_ended(event.number, now_s)
            case Broken(error):
                return machine.on_failed(event.number, error, now_s, self._chance.random())

    def _do(self, key: Hashable, entry: _Entry, effects: list[Effect[RecordPage]]) -> None:
        """Run the effects of a machine, and schedule its next timer."""
        for effect in effects:
            match effect:
                case Connect(number, start):
                    entry.number, entry.stream, entry.is_requested = number, None, False
                    self._pool.submit(partial(self._connect, key, entry, number, start))
                case RequestEvent():
                    entry.is_requested = True
                    if entry.stream is not None:
                        entry.stream.request()
                case Reset():
                    if entry.stream is not None:
                        entry.stream.close()
                    entry.number, entry.stream = 0, None
                case Refused() | TakenOver():
                    self._report(entry.shard_id, effect)
                case _:
                    self._deliver(entry, effect)
        self._schedule(key, entry)

    def _deliver(
        self, entry: _Entry, effect: DeliverIterator | DeliverPage[RecordPage] | DeliverFailure
    ) -> None:
        match effect:
            case DeliverIterator():
                self._pool.submit(entry.taker.on_iterator)
            case DeliverPage(page):
                self._metrics.count("pushed_events", 1, {"shard": entry.shard_id, **self._labels})
                self._pool.submit(partial(entry.taker.on_page, page))
            case DeliverFailure(error):
                if isinstance(error, NotFound):
                    self._registration.forget_arn()
                self._pool.submit(partial(entry.taker.on_failure, error))

    def _report(self, shard_id: str, effect: Refused | TakenOver) -> None:
        if isinstance(effect, Refused):
            self._metrics.count("subscriptions_refused", 1, {"shard": shard_id, **self._labels})
            log.debug("shard %s: %s", shard_id, effect.error)
            return
        self._metrics.count("subscriptions_taken_over", 1, {"shard": shard_id, **self._labels})
        log.warning(
            "shard %s: another subscriber of consumer %s took over (%s). It does no harm while a lease moves; if it goes "
            "on, another application uses the same consumer name",
            shard_id,
            self._registration.name,
            effect.error,
        )

    def _fetch_arn(self) -> str:
        try:
            return self._registration.fetch_arn()
        except Rejected as error:
            # A reader takes Rejected for a refused position, as after a re-created stream.
            raise ServiceError(
                str(error), operation=error.operation, code=error.code, resource=error.resource
            ) from error

    def _connect(self, key: Hashable, entry: _Entry, number: int, start: IteratorStart) -> None:
        shard_id = entry.shard_id
        on_news: Callable[[StreamNews], None] = lambda news: self.post(_News(key, entry, number, news))  # noqa: E731
        try:
            stream = self._registration.fan_out.subscribe(self._fetch_arn(), shard_id, start, on_news)
        except ServiceError as error:
            on_news(Broken(error))
        except Exception as error:
            log.exception("shard %s: subscribing failed in an unexpected way", shard_id)
            on_news(Broken(Unavailable(describe_error(error), operation="SubscribeToShard")))
        else:
            self.post(_Connected(key, entry, number, stream))
            if self.is_finished:
                stream.close()


def _keep(entry: _Entry, event: _Connected) -> None:
    if event.number != entry.number:
        event.stream.close()  # it was reset while it was made
        return
    entry.stream = event.stream
    if entry.is_requested:
        event.stream.request()
