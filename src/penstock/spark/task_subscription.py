"""One subscription to one shard, as the tasks of a worker process use it: it brings an event in time, or it is over.

There is no second try here. Whoever reads the shard goes on by GetRecords meanwhile, and may subscribe anew later.
"""

from __future__ import annotations

from enum import Enum

from penstock.core.reading.resume import IteratorStart
from penstock.errors import PenstockError, ResourceBusy
from penstock.ports.fan_out import Broken, Ended, EventStream, FanOut, Opened, Pushed, StreamNews
from penstock.ports.kinesis import RecordPage
from penstock.runtime.loop import Condition


class SubscriptionEnd(Enum):
    """Why a subscription brings nothing more."""

    REFUSED = "refused"
    TAKEN_OVER = "takenOver"
    SILENT = "silent"
    BROKEN = "broken"
    OVER = "over"  # the service ends each after five minutes


class TaskSubscription:
    """See the module. Used by one task at a time; what the port tells comes on a thread of its own.

    Args:
        changed: Nobody else's.
        start: Where it begins.
        begun_s: When, in monotonic seconds.
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
        """What ended it, if it was an error."""
        self.needed_s = float("-inf")
        """When polling alone was too slow for the shard, the last time."""
        self.unread_since_ms: int | None = None
        """Moment by the service's clock, when a batch left it to the next one; what it brings then came then or later."""
        self.has_brought = False
        """Whether an event came: the first one shows whether the record is still there at which it begins."""
        self._given: RecordPage | None = None
        self._before_given = self._next = start.sequence_number

    @property
    def is_open(self) -> bool:
        """Whether an event may be asked for."""
        return self._is_open and self.end is None

    @property
    def end(self) -> SubscriptionEnd | None:
        """Why it is over; None while it is not. Events that came before the end are still given."""
        return None if self._page is not None else self._end

    def subscribe(self, fan_out: FanOut, consumer_arn: str, shard_id: str) -> None:
        """Begin to call SubscribeToShard; what comes of it is told later."""
        try:
            self._stream = fan_out.subscribe(consumer_arn, shard_id, self._start, self._tell)
        except PenstockError as error:
            self._tell_error(error)

    def give_up(self) -> None:
        """Let it be over if the service has not answered yet."""
        with self._changed:
            if not self._is_open and self._end is None:
                self._end = SubscriptionEnd.SILENT

    def wait(self, timeout_s: float) -> None:
        """Wait until it is open or over, at most so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_open or self._end is not None, timeout_s)

    def fetch(self, patience_s: float) -> RecordPage | None:
        """Return the next event; None when nothing came in time, or the subscription is over."""
        if self._page is None and self._end is None and self._stream is not None:
            self._stream.ask()
        with self._changed:
            self._changed.wait_for(lambda: self._page is not None or self._end is not None, patience_s)
            page, self._page = self._page, None
            if page is None and self._end is None:
                self._end = SubscriptionEnd.SILENT
        if page is not None:
            self.has_brought = True
            self._given = page
            self._before_given = self._next
            if page.records:
                self._next = page.records[-1].sequence_number
        return page

    def may_continue(self, sequence_number: str | None, *, is_cut: bool) -> bool:
        """Whether everything behind a record will still come; then the subscription may wait for who reads on from there.

        Args:
            sequence_number: Of the record; None: the shard's beginning.
            is_cut: The event that was given last holds more than was used. It is given once more.
        """
        if self._end is not None or self._is_closed:
            return False
        covered = self._before_given if is_cut else self._next
        if covered is not None and (sequence_number is None or int(sequence_number) < int(covered)):
            return False
        if is_cut:
            self._page, self._next = self._given, self._before_given
        self._given = None
        return True

    def close(self) -> None:
        """End it."""
        self._is_closed = True
        self._page = self._given = None
        if self._stream is not None:
            self._stream.close()

    # --- on the port's thread ---

    def _tell(self, news: StreamNews) -> None:
        if isinstance(news, Broken):
            self._tell_error(news.error)
            return
        with self._changed:
            match news:
                case Opened():
                    self._is_open = True
                case Pushed(page):
                    if self._end is None:  # later, the shard is polled already
                        self._page = page
                case Ended():
                    self._end = SubscriptionEnd.OVER if self._is_open else SubscriptionEnd.REFUSED
            self._changed.notify_all()

    def _tell_error(self, error: PenstockError) -> None:
        with self._changed:
            self.error = error
            if not self._is_open:
                self._end = SubscriptionEnd.REFUSED
            elif isinstance(error, ResourceBusy):
                self._end = SubscriptionEnd.TAKEN_OVER
            else:
                self._end = SubscriptionEnd.BROKEN
            self._changed.notify_all()
