"""A subscription: what it does next, given what came. Each failure here was seen in some client of enhanced fan-out."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.reading.resume import IteratorStart, IteratorType
from penstock.core.reading.subscription import (
    CloseConnection,
    Connect,
    DeliverFailure,
    DeliverIterator,
    DeliverPage,
    ReportRefusal,
    ReportTakeover,
    RequestEvent,
    Subscription,
)
from penstock.errors import ExpiredIterator, NotFound, Rejected, ResourceBusy, Throttled, Unavailable

AT = IteratorStart(IteratorType.AT_SEQUENCE_NUMBER, "7")
LATEST = IteratorStart(IteratorType.LATEST)
BUSY = ResourceBusy("another subscription is active")
APART_S = 5.2


@dataclass(frozen=True)
class Page:
    next_iterator: str | None


def after(number: str) -> IteratorStart:
    return IteratorStart(IteratorType.AFTER_SEQUENCE_NUMBER, number)


def new(**options) -> Subscription:
    return Subscription("shardId-0", **options)


def opened(start: IteratorStart = AT, at_s: float = 0.0, **options) -> Subscription:
    machine = new(**options)
    assert machine.on_iterator_request(start, at_s) == [Connect(1, start)]
    assert machine.on_opened(1, at_s) == [DeliverIterator()]
    return machine


def reading(at_s: float = 0.0, **options) -> Subscription:
    """A subscription whose reader has taken the page with continuation 10, and wants the next one."""
    machine = opened(at_s=at_s, **options)
    assert machine.on_page_request(at_s) == [RequestEvent(1)]
    assert machine.on_page(1, Page("10"), at_s) == [DeliverPage(Page("10"))]
    assert machine.on_page_request(at_s) == [RequestEvent(1)]
    return machine


def failure(effects) -> Exception:
    (found,) = [each.error for each in effects if isinstance(each, DeliverFailure)]
    return found


# --- the life of a subscription ---------------------------------------------------------------------------


def test_after_five_minutes_it_goes_on_behind_the_last_event_at_once_and_the_reader_learns_nothing():
    machine = reading()
    machine.on_page(1, Page("10"), 295.0)  # an idle shard sends empty events
    machine.on_page_request(295.0)
    assert machine.on_ended(1, 300.0) == [Connect(2, after("10"))]
    assert machine.on_opened(2, 300.1) == [RequestEvent(2)]
    assert machine.on_page(2, Page("11"), 300.1) == [DeliverPage(Page("11"))]


def test_one_that_ends_early_is_not_begun_again_before_the_service_allows_it():
    machine = reading()
    assert machine.on_ended(1, 1.0) == []
    assert machine.wake_s == APART_S
    assert machine.on_time(5.0) == []
    assert machine.on_time(APART_S) == [Connect(2, after("10"))]


def test_an_answer_that_ends_before_its_first_event_is_a_failure():
    machine = new()
    machine.on_iterator_request(AT, 0.0)
    error = failure(machine.on_ended(1, 0.1))
    assert isinstance(error, Unavailable)
    assert str(error) == "SubscribeToShard on shard shardId-0: the answer has no events"


def test_one_that_ends_while_nothing_is_wanted_is_begun_again_when_something_is():
    machine = reading()
    machine.on_page(1, Page("11"), 290.0)
    assert machine.on_ended(1, 300.0) == []
    assert machine.wake_s is None
    assert machine.on_page_request(590.0) == [Connect(2, after("11"))]


def test_the_last_event_of_a_shard_ends_it():
    machine = reading()
    assert machine.on_page(1, Page(None), 0.0) == [CloseConnection(1), DeliverPage(Page(None))]
    assert machine.wake_s is None
    assert machine.on_ended(1, 1.0) == []


def test_a_reader_that_asks_on_behind_a_last_event_is_told_to_begin_at_its_position():
    machine = reading()
    machine.on_page(1, Page(None), 0.0)
    assert isinstance(failure(machine.on_page_request(1.0)), ExpiredIterator)


def test_beginning_anew_ends_what_was_open_and_waits_until_the_service_allows_it():
    machine = reading()
    assert machine.on_iterator_request(after("3"), 2.0) == [CloseConnection(1)]
    assert machine.on_time(APART_S) == [Connect(2, after("3"))]


def test_closing_ends_what_is_open_and_nothing_follows():
    machine = reading()
    assert machine.on_close() == [CloseConnection(1)]
    assert machine.on_page(1, Page("11"), 0.0) == []
    assert machine.on_failed(1, Unavailable("reset"), 1.0, 0.5) == []
    assert machine.wake_s is None
    assert machine.on_close() == []


# --- a continuation that is too old -----------------------------------------------------------------------


def test_a_page_that_is_wanted_long_after_the_last_event_is_the_readers_to_begin_at_its_own_record():
    machine = reading()
    machine.on_page(1, Page("11"), 290.0)
    machine.on_ended(1, 300.0)
    assert isinstance(failure(machine.on_page_request(590.1)), ExpiredIterator)
    assert machine.wake_s is None
    assert machine.on_iterator_request(AT, 590.2) == [Connect(2, AT)]


def test_an_event_that_waited_here_is_as_old_as_its_connection():
    machine = reading()
    machine.on_page(1, Page("11"), 9000.0)  # a handler blocked for hours; these events came before
    assert machine.on_page_request(9000.0) == [RequestEvent(1)]
    machine.on_page(1, Page("12"), 9000.1)
    machine.on_page_request(9000.1)
    assert isinstance(failure(machine.on_ended(1, 9000.2)), ExpiredIterator)


def test_a_failure_that_outlasts_the_continuation_sends_the_reader_to_its_own_record():
    machine = reading()
    error = Unavailable("no route")
    machine.on_failed(1, error, 100.0, 0.5)
    machine.on_page_request(299.0)
    assert machine.on_failed(2, BUSY, 299.5, 0.5) == [ReportRefusal(BUSY)]
    assert isinstance(failure(machine.on_time(301.0)), ExpiredIterator)


def test_a_call_at_the_readers_own_position_never_grows_too_old():
    machine = new()
    machine.on_iterator_request(AT, 0.0)
    machine.on_failed(1, BUSY, 400.0, 0.0)
    assert machine.on_time(900.0) == [Connect(2, AT)]


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [BUSY], ids=["5-second rule, or not ACTIVE yet"])
def test_a_refused_first_call_is_made_again_and_the_reader_waits(error):
    machine = new()
    machine.on_iterator_request(AT, 0.0)
    assert machine.on_failed(1, error, 1.0, 0.0) == [ReportRefusal(error)]
    assert machine.wake_s == 2.0
    assert machine.on_time(2.0) == [Connect(2, AT)]
    assert machine.on_opened(2, 2.1) == [DeliverIterator()]


def test_a_refusal_after_the_end_of_a_connection_leaves_no_dead_subscription_behind():
    machine = reading(at_s=200.0)
    machine.on_ended(1, 300.0)
    now_s = 300.0
    for number in range(2, 12):
        assert machine.on_failed(number, BUSY, now_s, 0.0) == [ReportRefusal(BUSY)]
        now_s += 1.0
        assert machine.on_time(now_s) == [Connect(number + 1, after("10"))]
    assert failure(machine.on_failed(12, BUSY, now_s, 0.5)) is BUSY
    assert machine.on_page_request(now_s) == [Connect(13, after("10"))]


@pytest.mark.parametrize("error", [Throttled("slow"), NotFound("gone"), Rejected("bad"), Unavailable("5xx")])
def test_any_other_failure_of_the_call_is_the_readers(error):
    machine = new()
    machine.on_iterator_request(AT, 0.0)
    assert failure(machine.on_failed(1, error, 1.0, 0.5)) is error
    assert machine.wake_s is None


# --- failures of an open connection -----------------------------------------------------------------------


def test_a_reset_is_told_and_the_next_page_comes_from_behind_the_last_event():
    machine = reading()
    error = Unavailable("reset")
    assert machine.on_failed(1, error, 100.0, 0.5) == [DeliverFailure(error)]
    assert machine.on_page_request(100.2) == [Connect(2, after("10"))]


def test_a_connection_that_fails_before_its_first_event_is_begun_at_the_readers_position():
    machine = opened(LATEST)
    machine.on_page_request(0.0)
    error = Unavailable("reset")
    assert failure(machine.on_failed(1, error, 10.0, 0.5)) is error
    assert isinstance(
        failure(machine.on_page_request(10.5)), ExpiredIterator
    )  # LATEST would be a later moment now


def test_a_failure_while_nothing_is_wanted_is_told_to_nobody_and_mended_by_the_next_page():
    machine = reading()
    machine.on_page(1, Page("11"), 0.0)
    assert machine.on_failed(1, Unavailable("reset"), 60.0, 0.5) == []
    assert machine.on_page_request(61.0) == [Connect(2, after("11"))]


def test_a_takeover_waits_until_the_lease_was_renewed_or_lost():
    machine = reading(takeover_pause_s=8.0)
    assert machine.on_failed(1, BUSY, 100.0, 0.0) == [ReportTakeover(BUSY)]
    assert machine.wake_s == 108.0
    assert machine.on_time(108.0) == [Connect(2, after("10"))]


def test_a_takeover_before_the_first_event_goes_on_at_the_readers_position_after_the_pause():
    machine = opened(takeover_pause_s=8.0)
    machine.on_page_request(0.0)
    effects = machine.on_failed(1, BUSY, 100.0, 0.0)
    assert effects[0] == ReportTakeover(BUSY)
    assert isinstance(failure(effects), ExpiredIterator)
    assert machine.on_iterator_request(AT, 100.1) == []
    assert machine.wake_s == 108.0


# --- silence ----------------------------------------------------------------------------------------------


def test_a_half_open_connection_is_given_up_after_its_silence():
    machine = reading()
    assert machine.on_time(34.9) == []
    reset, told = machine.on_time(35.0)
    assert reset == CloseConnection(1)
    assert isinstance(told.error, Unavailable)
    assert "35 s" in str(told.error)
    assert machine.on_page_request(36.0) == [Connect(2, after("10"))]


def test_a_call_that_is_never_answered_is_given_up_too():
    machine = new()
    machine.on_iterator_request(AT, 0.0)
    assert machine.on_time(35.0)[0] == CloseConnection(1)


def test_silence_counts_only_while_the_reader_waits():
    machine = reading()
    machine.on_page(1, Page("11"), 0.0)  # a slow handler: nothing is asked for during ten minutes
    assert machine.wake_s is None
    assert machine.on_time(600.0) == []
    assert machine.on_page_request(600.0) == [RequestEvent(1)]
    assert machine.wake_s == 635.0


def test_events_of_an_earlier_connection_are_ignored():
    machine = reading(at_s=200.0)
    machine.on_ended(1, 300.0)
    assert machine.on_page(1, Page("99"), 300.0) == []
    assert machine.on_opened(1, 300.0) == []
    assert machine.on_opened(2, 300.0) == [RequestEvent(2)]


# --- any order of events ----------------------------------------------------------------------------------

WHAT = st.sampled_from(["page", "end", "fail", "busy", "time", "stale"])


class Reader:
    """Asks again whatever it is answered; checks that it is brought on from where it was."""

    def __init__(self):
        self.machine, self.now_s, self.last, self.number, self.is_open = new(), 0.0, 0, 0, False

    def place(self) -> IteratorStart:
        return after(str(self.last)) if self.last else AT

    def run(self, effects):
        for effect in effects:
            match effect:
                case Connect():
                    self.number, self.is_open = effect.number, False
                    assert effect.start == self.place()
                case DeliverPage(page):
                    self.last = int(page.next_iterator)
                    self.run(self.machine.on_page_request(self.now_s))
                case DeliverFailure(error=ExpiredIterator()):
                    self.run(self.machine.on_iterator_request(self.place(), self.now_s))
                case DeliverIterator() | DeliverFailure():
                    self.run(self.machine.on_page_request(self.now_s))

    def meet(self, what, chance):
        if what == "time":
            self.run(self.machine.on_time(self.now_s))
        elif what == "stale":
            assert self.machine.on_page(self.number - 1, Page("0"), self.now_s) == []
        elif self.machine.is_connected:
            self.meet_connected(what, chance)

    def meet_connected(self, what, chance):
        number, now_s = self.number, self.now_s
        if what in {"busy", "fail"}:
            self.run(
                self.machine.on_failed(number, BUSY if what == "busy" else Unavailable("x"), now_s, chance)
            )
        elif not self.is_open:
            self.is_open = True
            self.run(self.machine.on_opened(number, now_s))
        elif what == "page":
            self.run(self.machine.on_page(number, Page(str(self.last + 1)), now_s))
        else:
            self.run(self.machine.on_ended(number, now_s))


@settings(max_examples=200)
@given(st.lists(st.tuples(WHAT, st.floats(0, 60), st.floats(0, 0.99)), max_size=60))
def test_whatever_happens_a_reader_that_waits_is_never_forgotten_and_goes_on_where_it_was(story):
    reader = Reader()
    reader.run(reader.machine.on_iterator_request(AT, 0.0))
    for what, passed_s, chance in story:
        reader.now_s += passed_s
        reader.meet(what, chance)
        assert reader.machine.wake_s is not None, "the reader waits, and nothing will ever happen"
