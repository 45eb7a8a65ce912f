"""A subscription to one shard, as a machine: it brings a shard's reader its pages by enhanced fan-out.

The reader makes the same requests as for GetRecords: an iterator at a position (`on_iterator_request`), then one page after the other
(`on_page_request`). The machine answers with effects: connect, request the next event, close, and the reader's input. When
the service ends a connection, the machine connects again after the last event that was delivered. It ignores events of earlier
connections, which have another number. Time and chance are arguments.

| event | answer |
|---|---|
| the connection ends (the service ends each after five minutes) | connect again after the last event, at once |
| refused, since another connection is young or the consumer is not active yet | no error: again after a second |
| refused repeatedly | the reader gets the failure |
| another subscriber takes over | wait until the lease was renewed in between, or lost; then connect again |
| silence while the reader waits | close it; the reader gets the failure |
| silence while the reader does not ask | nothing: the reader itself holds the events up |
| a failure, a broken frame, a reset | the reader gets the failure; its next request connects again |
| a failure before the first event | the reader gets an expired iterator, and begins at its own position |
| a new connection is needed, and the last event is older than an iterator may be (a pause, a slow handler) | likewise |
| an event without continuation | delivered; the reader decides whether the shard has ended |

Only a reader that begins at its own last record sees whether that record is still there. After a continuation, the service
begins at the oldest record that is left, and does not report the trimmed ones in between. So a continuation lives
no longer than an iterator.

Source:
    Kinesis API reference, SubscribeToShard: a connection ends after five minutes, a second call within five seconds is
    refused, a later one takes over.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.core.limits import (
    ITERATOR_LIFE_S,
    SUBSCRIBE_AGAIN_S,
    SUBSCRIPTION_LIFE_S,
    SUBSCRIPTIONS_APART_S,
)
from penstock.core.reading.resume import IteratorStart, IteratorType
from penstock.core.record_page import RecordPage
from penstock.errors import ExpiredIterator, PenstockError, ResourceBusy, Unavailable

_SILENCE_S: Final = 35.0
"""A connection that brings nothing for this long while an event is requested is closed: an idle shard sends one every few seconds."""
_REFUSED_PAUSE_S: Final = 1.0  # before another try after a refusal, and up to half as much on top
_REFUSALS_MAX: Final = 10  # in a row, before the reader gets a failure


# --- the effects ----------------------------------------------------------------------------------------


class Connect(Struct, frozen=True):
    """Call SubscribeToShard; its events carry the number."""

    number: int
    start: IteratorStart


class RequestEvent(Struct, frozen=True):
    """Request the next event of the connection."""

    number: int


class CloseConnection(Struct, frozen=True):
    """Close a connection, or end the attempt to open one."""

    number: int


class DeliverIterator(Struct, frozen=True):
    """Give the reader its iterator: from now on it may request pages."""


class DeliverPage(Struct, frozen=True):
    """Give the reader the page that it requested."""

    page: RecordPage


class DeliverFailure(Struct, frozen=True):
    """Give the reader the failure of its request."""

    error: PenstockError


class ReportRefusal(Struct, frozen=True):
    """Report to log and metrics that the service refused a connection, which is tried again."""

    error: PenstockError


class ReportTakeover(Struct, frozen=True):
    """Report to log and metrics that another subscriber has taken over the shard."""

    error: PenstockError


Effect: TypeAlias = (
    Connect
    | RequestEvent
    | CloseConnection
    | DeliverIterator
    | DeliverPage
    | DeliverFailure
    | ReportRefusal
    | ReportTakeover
)


class _Phase(Enum):
    IDLE = auto()
    WAITING = auto()
    CONNECTING = auto()
    OPEN = auto()


class _Request(Enum):
    NOTHING = auto()
    ITERATOR = auto()
    PAGE = auto()


class Subscription:
    """The machine of one shard's subscription. Not thread-safe: one caller at a time.

    Args:
        shard_id: For messages.
        takeover_pause_s: Time before another try after another subscriber took over; longer than between two renewals of a
            lease, so that a worker has noticed by then that its lease is gone.
    """

    def __init__(self, shard_id: str, takeover_pause_s: float = SUBSCRIPTIONS_APART_S) -> None:
        self._shard_id = shard_id
        self._takeover_pause_s = takeover_pause_s
        self._start: IteratorStart | None = None  # None: the continuation is not known
        self._phase = _Phase.IDLE
        self._requested = _Request.NOTHING
        self._number = 0  # of the connection; events of earlier ones are ignored
        self._opened_s = 0.0  # when the service accepted it
        self._start_until_s = 0.0  # when records after `_start` may begin to leave the stream
        self._not_before_s = float("-inf")  # of the next connection
        self._silent_since_s = 0.0  # since when an answer, or a requested event, is due
        self._refusals = 0  # of connections, in a row

    # --- asking ---

    @property
    def is_connected(self) -> bool:
        """Whether a connection is open, or is being opened."""
        return self._phase in (_Phase.CONNECTING, _Phase.OPEN)

    @property
    def wake_s(self) -> float | None:
        """When `on_time` must be called; None while the subscription waits for no moment."""
        if self._phase is _Phase.WAITING:
            return self._not_before_s
        if self.is_connected and self._requested is not _Request.NOTHING:
            return self._silent_since_s + _SILENCE_S
        return None

    # --- the reader's requests ---

    def on_iterator_request(self, start: IteratorStart, now_s: float) -> list[Effect]:
        """Handle the reader's request for an iterator: close an earlier connection, and subscribe at the position."""
        effects = self.on_close()
        self._start, self._start_until_s = start, now_s + ITERATOR_LIFE_S
        self._requested = _Request.ITERATOR
        return [*effects, *self._connect(now_s)]

    def on_page_request(self, now_s: float) -> list[Effect]:
        """Handle the reader's request for the next page."""
        assert self._requested is _Request.NOTHING, "two pages are requested at once"
        self._requested = _Request.PAGE
        if self._phase is _Phase.OPEN:
            self._silent_since_s = now_s
            return [RequestEvent(self._number)]
        return self._connect(now_s)

    def on_close(self) -> list[Effect]:
        """Close the connection, if there is one, because the reader needs no more pages from it."""
        effects: list[Effect] = [CloseConnection(self._number)] if self.is_connected else []
        self._phase = _Phase.IDLE
        self._requested = _Request.NOTHING
        return effects

    # --- the connection's events ---

    def on_opened(self, number: int, now_s: float) -> list[Effect]:
        """Handle a connection that the service has accepted."""
        if not self._is_current(number):
            return []
        self._phase = _Phase.OPEN
        self._opened_s = now_s
        self._refusals = 0
        self._not_before_s = now_s + SUBSCRIBE_AGAIN_S
        self._silent_since_s = now_s
        if self._requested is _Request.ITERATOR:
            self._requested = _Request.NOTHING
            return [DeliverIterator()]
        return [RequestEvent(number)]

    def on_page(self, number: int, page: RecordPage, now_s: float) -> list[Effect]:
        """Handle the event that was requested: it is the reader's next page."""
        if not self._is_current(number):
            return []
        assert self._requested is _Request.PAGE, "an event arrived without a request"
        self._requested = _Request.NOTHING
        if page.next_iterator is not None:
            self._start = IteratorStart(IteratorType.AFTER_SEQUENCE_NUMBER, page.next_iterator)
            # The event may have waited here for long, but it was sent while the connection lived.
            self._start_until_s = min(now_s, self._opened_s + SUBSCRIPTION_LIFE_S) + ITERATOR_LIFE_S
            return [DeliverPage(page)]
        self._start = None
        return [*self.on_close(), DeliverPage(page)]

    def on_ended(self, number: int, now_s: float) -> list[Effect]:
        """Handle the regular end of the connection; the reader has everything that the service sent."""
        if not self._is_current(number):
            return []
        if self._phase is _Phase.CONNECTING:
            return self._fail(Unavailable(f"{self._call_name}: the answer has no events"))
        self._phase = _Phase.IDLE
        return self._connect(now_s) if self._requested is _Request.PAGE else []

    def on_failed(self, number: int, error: PenstockError, now_s: float, chance: float) -> list[Effect]:
        """Handle a connection that failed, or was refused."""
        if not self._is_current(number):
            return []
        if not isinstance(error, ResourceBusy):
            return self._fail(error)
        if self._phase is _Phase.OPEN:
            self._phase = _Phase.IDLE
            pause_s = self._takeover_pause_s * (1 + chance / 4)
            self._not_before_s = max(self._not_before_s, now_s + pause_s)
            again = self._connect(now_s) if self._requested is _Request.PAGE else []
            return [ReportTakeover(error), *again]
        self._refusals += 1
        if self._refusals > _REFUSALS_MAX:
            self._refusals = 0
            return self._fail(error)
        self._not_before_s = now_s + _REFUSED_PAUSE_S * (1 + chance / 2)
        return [ReportRefusal(error), *self._connect(now_s)]

    def on_time(self, now_s: float) -> list[Effect]:
        """Connect again, or close a silent connection, if that is due."""
        if self.wake_s is None or now_s < self.wake_s:
            return []
        if self._phase is _Phase.WAITING:
            return self._connect(now_s)
        close = CloseConnection(self._number)
        silence = f"{self._call_name}: nothing arrived for {_SILENCE_S:g} s, so the connection is closed"
        return [close, *self._fail(Unavailable(silence, operation="SubscribeToShard"))]

    # --- inside ---

    @property
    def _call_name(self) -> str:
        return f"SubscribeToShard on shard {self._shard_id}"

    def _is_current(self, number: int) -> bool:
        return self.is_connected and number == self._number

    def _connect(self, now_s: float) -> list[Effect]:
        """Connect, now or when it is allowed; if no safe place to begin is known, give the reader an expired iterator."""
        start = self._start
        if start is None or self._requested is _Request.PAGE:
            if start is None or start.type is not IteratorType.AFTER_SEQUENCE_NUMBER:
                # At LATEST, another connection would begin at a later moment. The reader has the exact position.
                return self._expire("the connection ended before its first event")
            if now_s > self._start_until_s:
                # Records may have left the stream since. The reader finds out by beginning at its own record.
                return self._expire(f"the last event is older than {ITERATOR_LIFE_S:g} s")
        if now_s < self._not_before_s:
            self._phase = _Phase.WAITING
            return []
        self._phase = _Phase.CONNECTING
        self._number += 1
        self._silent_since_s = now_s
        return [Connect(self._number, start)]

    def _expire(self, why: str) -> list[Effect]:
        return self._fail(ExpiredIterator(f"{self._call_name}: {why}", operation="SubscribeToShard"))

    def _fail(self, error: PenstockError) -> list[Effect]:
        self._phase = _Phase.IDLE
        if self._requested is _Request.NOTHING:
            return []  # it connects again when the reader asks
        self._requested = _Request.NOTHING
        return [DeliverFailure(error)]
