"""One subscription to one shard, for the tasks of a worker process. If an event does not arrive in time, the subscription ends.

Nothing is retried here. The shard's reader goes on by GetRecords and may subscribe again later.
"""

from __future__ import annotations

from enum import Enum

from penstock.core.reading.resume import IteratorStart
from penstock.errors import PenstockError, ResourceBusy
from penstock.ports.fan_out import (
    EventStream,
    FanOut,
    FanOutEnded,
    FanOutEvent,
    FanOutFailed,
    FanOutOpened,
    FanOutPage,
)
from penstock.ports.kinesis import RecordPage
from penstock.runtime.loop import Condition


class SubscriptionEnd(Enum):
    """Reason for the end of a subscription."""

    REFUSED = "refused"
    TAKEN_OVER = "takenOver"
    SILENT = "silent"
    BROKEN = "broken"
    OVER = "over"  # the service ends each after five minutes


class TaskSubscription:
    """One subscription to one shard. Used by one task at a time; the port's events arrive on another thread.

    Args:
        changed: A condition for this object alone.
        begun_s: When the subscription was begun, on the monotonic clock.
    """

    def __init__(self, changed: Condition, start: IteratorStart, begun_s: float) -> None:
        self._changed = changed
        self._start = start
        self.begun_s = begun_s
        self._stream: EventStream | None = None
        self._is_open = False
        self._is_closed = False
        self._page: RecordPage | None = None
        self._end: SubscriptionEnd | None = None
        self.error: PenstockError | None = None
        """The error that ended the subscription, or None."""
        self.needed_s = float("-inf")
        """The last moment when polling alone was too slow for the shard."""
        self.unread_since_ms: int | None = None
        """Moment by the service's clock: the records of the next events arrived then or later. None if not known."""
        self.has_delivered = False
        """Whether an event arrived: the first one shows whether the record at its start is still there."""
        self._delivered: RecordPage | None = None
        # An event holds all records after one sequence number, or from the start on.
        self._delivered_after = self._next_after = start.sequence_number

    @property
    def is_open(self) -> bool:
        """Whether an event may be requested."""
        return self._is_open and self.end is None

    @property
    def end(self) -> SubscriptionEnd | None:
        """Why the subscription has ended. None while it goes on, or while an event that arrived before the end waits for `fetch`."""
        return None if self._page is not None else self._end

    def subscribe(self, fan_out: FanOut, consumer_arn: str, shard_id: str) -> None:
        """Start the call of SubscribeToShard; its result arrives later."""
        try:
            self._stream = fan_out.subscribe(consumer_arn, shard_id, self._start, self._on_stream_event)
        except PenstockError as error:
            self._on_error(error)

    def end_unanswered(self) -> None:
        """End the subscription if the service has not answered the call. Called after a long wait."""
        with self._changed:
            if not self._is_open and self._end is None:
                self._end = SubscriptionEnd.SILENT

    def wait(self, timeout_s: float) -> None:
        """Wait until the subscription is open or has ended, or until the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_open or self._end is not None, timeout_s)

    def fetch(self, patience_s: float) -> RecordPage | None:
        """Return the next event; None if the subscription has ended. If no event arrives in time, it ends too."""
        if self._page is None and self._end is None and self._stream is not None:
            self._stream.request()
        with self._changed:
            self._changed.wait_for(lambda: self._page is not None or self._end is not None, patience_s)
            page, self._page = self._page, None
            if page is None and self._end is None:
                self._end = SubscriptionEnd.SILENT
        if page is not None:
            self.has_delivered = True
            self._delivered = page
            self._delivered_after = self._next_after
            if page.records:
                self._next_after = page.records[-1].sequence_number
        return page

    def continue_from(self, sequence_number: str | None, *, is_cut: bool) -> bool:
        """Prepare the next read from a position; return False if the subscription does not deliver all later records.

        Args:
            sequence_number: The position's record; None for the shard's beginning.
            is_cut: Whether some records of the last event were not used. If so, the next `fetch` returns that event again.
        """
        if self._end is not None or self._is_closed:
            return False
        next_after = self._delivered_after if is_cut else self._next_after
        if next_after is not None and (sequence_number is None or int(sequence_number) < int(next_after)):
            return False  # the records between the two would be skipped
        if is_cut:
            self._page, self._next_after = self._delivered, self._delivered_after
        self._delivered = None
        return True

    def close(self) -> None:
        """End the subscription."""
        self._is_closed = True
        self._page = self._delivered = None
        if self._stream is not None:
            self._stream.close()

    # --- on the port's thread ---

    def _on_stream_event(self, event: FanOutEvent) -> None:
        if isinstance(event, FanOutFailed):
            self._on_error(event.error)
            return
        with self._changed:
            match event:
                case FanOutOpened():
                    self._is_open = True
                case FanOutPage(page):
                    if self._end is None:  # after the end the reader polls the shard, from before this page
                        self._page = page
                case FanOutEnded():
                    self._end = SubscriptionEnd.OVER if self._is_open else SubscriptionEnd.REFUSED
            self._changed.notify_all()

    def _on_error(self, error: PenstockError) -> None:
        """End the subscription. The reason depends on whether the service had accepted it."""
        with self._changed:
            self.error = error
            if not self._is_open:
                self._end = SubscriptionEnd.REFUSED
            elif isinstance(error, ResourceBusy):
                self._end = SubscriptionEnd.TAKEN_OVER
            else:
                self._end = SubscriptionEnd.BROKEN
            self._changed.notify_all()
