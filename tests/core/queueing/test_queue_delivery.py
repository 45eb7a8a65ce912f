"""A queue's delivery: exact answers of the machine, and invariants over every order of events."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.core.backoff import Backoff
from penstock.core.queueing.queue_delivery import QueueDelivery
from penstock.core.queueing.queue_events import (
    Acknowledge,
    Arrival,
    DeliveryEnd,
    EntryOutcome,
    Part,
    RecordResult,
    SetVisibility,
)
from penstock.core.queueing.queueing_options import QueueingOptions

APPLIED, VOID, REFUSED, UNKNOWN = EntryOutcome


def machine(**options):
    plain = {"visibility_s": 30, "linger_s": 0.0, "return_backoff": Backoff(2.0, 300.0)}
    return QueueDelivery(QueueingOptions(**{**plain, **options}))


def arrival(name, receive_count=1, part_count=1, **more):
    return Arrival(f"h-{name}", name.partition("/")[0], receive_count, part_count, 100, **more)


def received(delivery, *names, now_s=0.0):
    return delivery.on_received([arrival(name) for name in names], now_s)


def handle_one(delivery, settled, now_s=1.0, u=0.5):
    call = delivery.take_handler_call(now_s)
    delivery.on_call_ended(call.number, settled, now_s, u)


def ends(delivery):
    return [(each.record_id, each.end) for each in delivery.take_ends()]


def test_a_record_that_is_done_is_acknowledged():
    delivery = machine()
    received(delivery, "a")
    handle_one(delivery, RecordResult.DONE)
    (call,) = delivery.take_due_calls(1.0)
    assert call == Acknowledge(call.number, ("h-a",), ("a",))
    assert ends(delivery) == []
    delivery.on_answered(call.number, [APPLIED], 1.1, 0.5)
    assert ends(delivery) == [("a", DeliveryEnd.ACKNOWLEDGED)]
    assert (delivery.in_hand_count, delivery.in_hand_bytes, delivery.is_idle) == (0, 0, True)


def test_a_record_that_failed_returns_after_its_backoff():
    delivery = machine()
    delivery.on_received([arrival("a", receive_count=3)], 0.0)
    handle_one(delivery, RecordResult.FAILED, u=0.5)
    (call,) = delivery.take_due_calls(1.0)
    assert call == SetVisibility(call.number, ("h-a",), (4,))  # half of 2 s, doubled twice
    delivery.on_answered(call.number, [APPLIED], 1.1, 0.5)
    assert ends(delivery) == [("a", DeliveryEnd.RETURNED)]
    assert delivery.in_flight_count(2.0) == 1, "it is invisible, and counts against the queue's limit"
    assert delivery.in_flight_count(5.2) == 0


@pytest.mark.parametrize(
    ("result", "receive_count", "count_max", "seconds", "end"),
    [
        (RecordResult.FAILED, 6, 6, 0, DeliveryEnd.DEAD),
        (RecordResult.FAILED, 5, 6, 16, DeliveryEnd.RETURNED),
        (RecordResult.FAILED, 50, None, 150, DeliveryEnd.RETURNED),
        (RecordResult.REJECTED, 1, 6, 0, DeliveryEnd.DEAD),
        (RecordResult.REJECTED, 1, None, 300, DeliveryEnd.RETURNED),
        (RecordResult.UNHANDLED, 1, 6, 0, DeliveryEnd.RETURNED),
    ],
)
def test_where_a_record_goes_that_is_not_done(result, receive_count, count_max, seconds, end):
    delivery = machine(receive_count_max=count_max)
    delivery.on_received([arrival("a", receive_count)], 0.0)
    handle_one(delivery, result)
    (call,) = delivery.take_due_calls(1.0)
    assert call.seconds == (seconds,)
    delivery.on_answered(call.number, [APPLIED], 1.0, 0.5)
    assert ends(delivery) == [("a", end)]


def test_a_rejected_record_is_not_handled_again_until_it_is_a_dead_letter():
    delivery = machine(receive_count_max=3)
    handled = []
    for receive_count in (1, 2, 3):
        delivery.on_received([arrival(f"a/{receive_count}", receive_count)], 0.0)
        call = delivery.take_handler_call(0.0)
        if call is not None:
            handled.append(receive_count)
            delivery.on_call_ended(call.number, RecordResult.REJECTED, 0.0, 0.5)
        (sent,) = delivery.take_due_calls(0.0)
        assert sent.seconds == (0,)
        delivery.on_answered(sent.number, [APPLIED], 0.0, 0.5)
    assert handled == [1]
    assert [end for _, end in ends(delivery)] == [DeliveryEnd.DEAD] * 3
    # Restored by an operator: its count begins again, and the handler gets it.
    delivery.on_received([arrival("a/4", 1)], 0.0)
    assert delivery.take_handler_call(0.0) is not None


def test_acknowledgements_leave_in_tens_or_after_the_linger():
    delivery = machine(linger_s=0.02, concurrency=30)
    received(delivery, *(f"r{n}" for n in range(13)))
    for _ in range(13):
        handle_one(delivery, RecordResult.DONE, now_s=1.0)
    (full,) = delivery.take_due_calls(1.0)
    assert len(full.handles) == 10
    assert delivery.next_wake_s() == pytest.approx(1.02)
    assert delivery.take_due_calls(1.01) == []
    (rest,) = delivery.take_due_calls(1.02)
    assert rest.handles == ("h-r10", "h-r11", "h-r12")


def test_visibility_is_renewed_in_tens_at_half_and_takes_along_those_that_are_nearly_due():
    delivery = machine(concurrency=30)
    received(delivery, *(f"a{n}" for n in range(8)), now_s=0.0)
    received(delivery, *(f"b{n}" for n in range(8)), now_s=4.0)
    while delivery.take_handler_call(4.0) is not None:
        pass
    assert delivery.next_wake_s() == 15.0
    assert delivery.take_due_calls(14.9) == []
    (call,) = delivery.take_due_calls(15.0)
    assert call.handles == (*(f"h-a{n}" for n in range(8)), "h-b0", "h-b1")
    assert set(call.seconds) == {30}
    delivery.on_answered(call.number, [APPLIED] * 10, 15.2, 0.5)
    assert delivery.next_wake_s() == 19.0
    (later,) = delivery.take_due_calls(19.0)
    assert later.handles == tuple(f"h-b{n}" for n in range(2, 8))
    delivery.on_answered(later.number, [APPLIED] * 6, 19.1, 0.5)
    assert delivery.next_wake_s() == 30.0, "15 s after the renewal was sent"


def test_a_renewal_counts_from_its_request_whatever_arrives_before_its_answer():
    delivery = machine(visibility_s=2)
    received(delivery, "a")
    (renewal,) = delivery.take_due_calls(1.0)
    received(delivery, "b", now_s=1.05)
    delivery.on_answered(renewal.number, [APPLIED], 1.1, 0.5)
    assert delivery.next_wake_s() == 2.0
    (again,) = delivery.take_due_calls(2.0)
    assert again.handles == ("h-a", "h-b")


def test_an_acknowledgement_waits_for_a_renewal_under_way():
    delivery = machine()
    received(delivery, "a")
    call = delivery.take_handler_call(0.0)
    (renewal,) = delivery.take_due_calls(15.0)
    delivery.on_call_ended(call.number, RecordResult.DONE, 15.1, 0.5)
    assert delivery.take_due_calls(15.1) == []
    delivery.on_answered(renewal.number, [APPLIED], 15.2, 0.5)
    (acknowledgement,) = delivery.take_due_calls(15.2)
    assert acknowledgement == Acknowledge(acknowledgement.number, ("h-a",), ("a",))


def test_a_refused_acknowledgement_is_repeated_until_the_handle_is_void():
    delivery = machine()
    received(delivery, "a")
    handle_one(delivery, RecordResult.DONE, now_s=0.0)
    now_s, sent = 0.0, 0
    while delivery.in_hand_count and now_s < 100:
        for call in delivery.take_due_calls(now_s):
            sent += 1
            assert now_s < 30.0, "a handle is not used after its visibility"
            delivery.on_answered(call.number, [REFUSED], now_s, 0.9)
        now_s = max(now_s + 0.01, delivery.next_wake_s() or now_s)
    assert sent >= 8
    assert ends(delivery) == [("a", DeliveryEnd.VOID)]


def test_an_acknowledgement_without_an_answer_is_repeated_and_reported():
    delivery = machine()
    received(delivery, "a")
    handle_one(delivery, RecordResult.DONE, now_s=0.0)
    (call,) = delivery.take_due_calls(0.0)
    delivery.on_answered(call.number, [UNKNOWN], 5.0, 0.0)
    (again,) = delivery.take_due_calls(5.0)
    assert again.handles == ("h-a",)
    delivery.on_answered(again.number, [VOID], 5.1, 0.5)  # the first one was applied, or the handle was lost
    (end,) = delivery.take_ends()
    assert (end.end, end.may_be_acknowledged) == (DeliveryEnd.VOID, True)


def test_a_stalled_handler_is_renewed_for_a_bounded_time():
    delivery = machine(handling_s_max=40.0)
    received(delivery, "a")
    delivery.take_handler_call(0.0)
    for now_s in (15.0, 30.0):
        (renewal,) = delivery.take_due_calls(now_s)
        delivery.on_answered(renewal.number, [APPLIED], now_s, 0.5)
    assert delivery.take_due_calls(45.0) == []
    assert delivery.next_wake_s() == 60.0
    assert delivery.take_due_calls(60.0) == []
    (end,) = delivery.take_ends()
    assert (end.end, end.is_in_handler) == (DeliveryEnd.VOID, True)
    assert delivery.in_hand_count == 1, "its memory is still in use"


def test_a_deadline_that_rounds_wakes_the_loop_once():
    delivery = machine(visibility_s=10, handling_s_max=1.0)
    received(delivery, "a", now_s=4.9 + 5.0)
    now_s = 4.9 + 5.0 + 10
    assert now_s - (4.9 + 5.0) < 10, "the difference is below ten seconds"
    assert delivery.next_wake_s() == now_s
    delivery.take_due_calls(now_s)
    assert delivery.next_wake_s() is None


def test_a_redelivery_follows_the_handler_that_still_has_the_record():
    delivery = machine(handling_s_max=1.0)
    received(delivery, "a/1")
    call = delivery.take_handler_call(0.0)
    assert delivery.take_due_calls(30.0) == []
    assert ends(delivery) == [("a", DeliveryEnd.VOID)]
    received(delivery, "a/2", now_s=31.0)
    assert delivery.take_handler_call(31.0) is None, "it is not handled twice at once"
    delivery.on_call_ended(call.number, RecordResult.DONE, 32.0, 0.5)
    (acknowledgement,) = delivery.take_due_calls(32.0)
    assert acknowledgement.handles == ("h-a/2",)
    delivery.on_answered(acknowledgement.number, [APPLIED], 32.1, 0.5)
    assert ends(delivery) == [("a", DeliveryEnd.ACKNOWLEDGED)]
    assert delivery.in_hand_count == 0


def test_a_record_whose_handle_ends_while_it_waits_is_handled_by_its_next_delivery():
    delivery = machine(concurrency=1, visibility_s=2)
    received(delivery, "busy", "a")
    busy = delivery.take_handler_call(0.0)
    (renewal,) = delivery.take_due_calls(1.0)
    (again,) = received(delivery, "a/2", now_s=1.5)
    delivery.on_answered(renewal.number, [APPLIED, VOID], 1.6, 0.5)
    assert ends(delivery) == [("a", DeliveryEnd.VOID)]
    delivery.on_call_ended(busy.number, RecordResult.DONE, 1.7, 0.5)
    assert delivery.take_handler_call(1.7).parts == (Part(again, 0),)


def test_an_aggregate_is_acknowledged_when_all_its_records_are_done():
    delivery = machine(batch_records_max=2)
    delivery.on_received([arrival("a", part_count=3)], 0.0)
    first, second = delivery.take_handler_call(0.0), delivery.take_handler_call(0.0)
    assert (len(first.parts), len(second.parts)) == (2, 1)
    delivery.on_call_ended(first.number, RecordResult.DONE, 1.0, 0.5)
    assert delivery.take_due_calls(1.0) == []
    delivery.on_call_ended(second.number, RecordResult.DONE, 2.0, 0.5)
    assert delivery.take_due_calls(2.0)[0].handles == ("h-a",)


@pytest.mark.parametrize(("remember_max", "repeated"), [(0, [0, 1, 2]), (10, [1])])
def test_a_redelivered_aggregate_repeats_all_or_only_the_undone_records(remember_max, repeated):
    delivery = machine(batch_records_max=3, remember_max=remember_max)
    delivery.on_received([arrival("a/1", part_count=3)], 0.0)
    call = delivery.take_handler_call(0.0)
    for place in (0, 2):
        delivery.on_result(call.number, Part(call.parts[0].delivery, place), RecordResult.DONE, 1.0, 0.5)
    delivery.on_call_ended(call.number, RecordResult.FAILED, 1.0, 0.5)
    (returned,) = delivery.take_due_calls(1.0)
    delivery.on_answered(returned.number, [APPLIED], 1.0, 0.5)
    delivery.on_received([arrival("a/2", receive_count=2, part_count=3)], 10.0)
    assert [part.place for part in delivery.take_handler_call(10.0).parts] == repeated


def test_a_remembered_record_is_acknowledged_without_a_call():
    delivery = machine(remember_max=2)
    received(delivery, "a/1")
    handle_one(delivery, RecordResult.DONE, now_s=0.0)
    (call,) = delivery.take_due_calls(0.0)
    delivery.on_answered(call.number, [VOID], 0.0, 0.5)
    received(delivery, "a/2", now_s=40.0)
    assert delivery.take_handler_call(40.0) is None
    assert delivery.take_due_calls(40.0)[0].handles == ("h-a/2",)


def test_a_durable_memory_counts_as_done():
    delivery = machine()
    delivery.on_received([arrival("a", is_finished=True)], 0.0)
    assert delivery.take_handler_call(0.0) is None
    assert delivery.take_due_calls(0.0)[0].handles == ("h-a",)


def test_a_stop_gives_waiting_records_back_at_once_and_lets_the_handler_finish():
    delivery = machine(concurrency=1)
    received(delivery, "a", "b")
    call = delivery.take_handler_call(0.0)
    delivery.on_stop(1.0)
    (returned,) = delivery.take_due_calls(1.0)
    assert returned == SetVisibility(returned.number, ("h-b",), (0,))
    delivery.on_answered(returned.number, [APPLIED], 1.0, 0.5)
    assert not delivery.is_idle
    assert delivery.fetch_room == 0
    delivery.on_call_ended(call.number, RecordResult.DONE, 2.0, 0.5)
    (acknowledgement,) = delivery.take_due_calls(2.0)
    delivery.on_answered(acknowledgement.number, [APPLIED], 2.0, 0.5)
    assert delivery.is_idle
    assert ends(delivery) == [("b", DeliveryEnd.RETURNED), ("a", DeliveryEnd.ACKNOWLEDGED)]


def test_records_are_not_returned_to_an_open_receive_of_this_consumer():
    delivery = machine()
    received(delivery, "a")
    delivery.on_stop(1.0)
    delivery.holds_returns = True
    assert delivery.take_due_calls(1.0) == []
    assert delivery.next_wake_s() > 1.0
    delivery.holds_returns = False
    assert [(call.handles, call.seconds) for call in delivery.take_due_calls(2.0)] == [(("h-a",), (0,))]


@pytest.mark.parametrize("outcome", [APPLIED, REFUSED])
def test_a_record_whose_return_is_held_is_renewed(outcome):
    """Otherwise it would be visible, and the open receive could take it."""
    delivery = machine()
    received(delivery, "a")
    delivery.on_stop(1.0)
    delivery.holds_returns = True
    assert delivery.next_wake_s() == 15.0
    (renewal,) = delivery.take_due_calls(15.0)
    assert (renewal.handles, renewal.seconds) == (("h-a",), (30,))
    delivery.on_answered(renewal.number, [outcome], 16.0, 0.5)
    assert delivery.take_due_calls(16.0) == []
    delivery.holds_returns = False
    assert [(call.handles, call.seconds) for call in delivery.take_due_calls(17.0)] == [(("h-a",), (0,))]


def test_a_stop_finishes_an_aggregate_that_the_handler_has_begun():
    delivery = machine(concurrency=1)
    delivery.on_received([arrival("a", part_count=3), arrival("b", part_count=2)], 0.0)
    first = delivery.take_handler_call(0.0)
    delivery.on_stop(0.5)
    (returned,) = delivery.take_due_calls(0.5)
    assert (returned.handles, returned.seconds) == (("h-b",), (0,))
    delivery.on_call_ended(first.number, RecordResult.DONE, 1.0, 0.5)
    handle_one(delivery, RecordResult.DONE)
    assert not delivery.is_idle
    handle_one(delivery, RecordResult.DONE)
    assert delivery.take_handler_call(1.0) is None
    assert [call.handles for call in delivery.take_due_calls(1.0)] == [("h-a",)]


def test_an_aggregate_that_has_begun_is_returned_when_the_stop_takes_too_long():
    delivery = machine(concurrency=1)
    delivery.on_received([arrival("a", part_count=3)], 0.0)
    handle_one(delivery, RecordResult.DONE)
    delivery.on_stop(1.5)
    delivery.on_abandon(2.0)
    assert delivery.take_handler_call(2.0) is None
    assert [(call.handles, call.seconds) for call in delivery.take_due_calls(2.0)] == [(("h-a",), (0,))]
    assert delivery.is_starving


def test_a_stop_begins_no_more_of_an_aggregate_that_failed_in_part():
    delivery = machine(concurrency=1)
    delivery.on_received([arrival("a", part_count=3)], 0.0)
    handle_one(delivery, RecordResult.FAILED)
    delivery.take_handler_call(1.0)
    delivery.on_stop(1.5)
    assert delivery.take_handler_call(1.5) is None


def test_an_abandoned_handler_gives_its_records_to_others_at_once():
    delivery = machine()
    received(delivery, "a")
    call = delivery.take_handler_call(0.0)
    delivery.on_abandon(5.0)
    (returned,) = delivery.take_due_calls(5.0)
    assert returned.seconds == (0,)
    delivery.on_answered(returned.number, [APPLIED], 5.0, 0.5)
    assert delivery.is_idle
    assert ends(delivery) == [("a", DeliveryEnd.RETURNED)]
    delivery.on_call_ended(call.number, RecordResult.DONE, 9.0, 0.5)
    assert delivery.take_due_calls(9.0) == []


def test_records_are_fetched_ahead_as_fast_as_the_handler_works():
    delivery = machine(concurrency=2, records_max=50)
    assert delivery.fetch_room == 2
    received(delivery, "a")
    call = delivery.take_handler_call(0.0)
    delivery.on_call_ended(call.number, RecordResult.DONE, 60.0, 0.5)
    assert delivery.fetch_room == 2, "a handler of minutes takes nothing from others ahead"
    for n in range(60):
        received(delivery, f"r{n}", now_s=60.0)
        call = delivery.take_handler_call(60.0)
        delivery.on_call_ended(call.number, RecordResult.DONE, 60.001, 0.5)
    assert delivery.target_count == 50


# --- invariants -------------------------------------------------------------------------------------


class Checked:
    """Runs the machine beside a model of the service's handles."""

    def __init__(self, options):
        self.delivery = QueueDelivery(options)
        self.options = options
        self.now_s = 0.0
        self.valid_until_s = {}
        self.calls = []
        self.handler = []
        self.received = {}
        self.ended = {}
        self.count = 0

    def receive(self, record, parts):
        handle = f"h{self.count}"
        self.count += 1
        self.valid_until_s[handle] = self.now_s + self.options.visibility_s
        arrived = Arrival(handle, f"r{record}", 1 + self.count % 4, parts, 10)
        (number,) = self.delivery.on_received([arrived], self.now_s)
        self.received[number] = handle
        self.after()

    def take(self):
        call = self.delivery.take_handler_call(self.now_s)
        if call is not None:
            self.handler.append(call)
            assert len(self.handler) <= self.options.concurrency

    def handled(self, which, result, u):
        if self.handler:
            call = self.handler.pop(which % len(self.handler))
            self.delivery.on_call_ended(call.number, result, self.now_s, u)
            self.after()

    def send(self):
        for call in self.delivery.take_due_calls(self.now_s):
            assert 1 <= len(call.handles) <= 10
            assert len(set(call.handles)) == len(call.handles)
            for handle in call.handles:
                assert self.now_s < self.valid_until_s[handle], "used after its end"
                assert all(handle not in other.handles for other in self.calls), "in two calls at once"
            self.calls.append(call)
        wake_s = self.delivery.next_wake_s()
        assert wake_s is None or wake_s > self.now_s, "the loop would spin"
        self.after()

    def answer(self, which, outcomes, u):
        if not self.calls:
            return
        call = self.calls.pop(which % len(self.calls))
        given = [outcomes[n % len(outcomes)] for n in range(len(call.handles))]
        for n, (handle, outcome) in enumerate(zip(call.handles, given, strict=True)):
            if outcome is APPLIED and isinstance(call, SetVisibility) and call.seconds[n]:
                self.valid_until_s[handle] = max(
                    self.valid_until_s[handle], self.now_s + self.options.visibility_s
                )
            if outcome is VOID or (outcome is APPLIED and isinstance(call, Acknowledge)):
                self.valid_until_s[handle] = float("-inf")
        self.delivery.on_answered(call.number, given, self.now_s, u)
        self.after()

    def after(self):
        for each in self.delivery.take_ends():
            assert each.delivery not in self.ended, "ended twice"
            self.ended[each.delivery] = each.end
            assert isinstance(each.end, DeliveryEnd)
        assert self.delivery.in_hand_count >= 0
        assert self.delivery.in_hand_bytes == 10 * self.delivery.in_hand_count
        assert self.delivery._waiting_count >= 0
        assert self.delivery._running_parts >= 0


RESULTS = st.sampled_from(list(RecordResult))
STEPS = st.one_of(
    st.tuples(st.just("receive"), st.integers(0, 4), st.integers(1, 3)),
    st.tuples(st.just("take")),
    st.tuples(st.just("handled"), st.integers(0, 5), RESULTS, st.floats(0, 0.99)),
    st.tuples(st.just("send")),
    st.tuples(
        st.just("answer"),
        st.integers(0, 5),
        st.lists(st.sampled_from(list(EntryOutcome)), min_size=1, max_size=3),
        st.floats(0, 0.99),
    ),
    st.tuples(st.just("pass"), st.sampled_from([0.0, 0.1, 1.0, 4.9, 5.0, 11.0])),
    st.tuples(st.just("stop")),
    st.tuples(st.just("hold"), st.booleans()),
)


# An aggregate with one failed, one running and one waiting record: after the stop the handler does not get the last one.
@example(
    [
        ("receive", 0, 3),
        ("take",),
        ("take",),
        ("handled", 0, RecordResult.FAILED, 0.0),
        ("stop",),
        ("take",),
        ("receive", 0, 1),
    ],
    0,
    1,
    None,
    12.0,
)
@settings(max_examples=400)
@given(
    st.lists(STEPS, max_size=60),
    st.sampled_from([0, 3]),
    st.sampled_from([1, 2]),
    st.sampled_from([None, 2]),
    st.sampled_from([12.0, 1e9]),
)
def test_every_received_record_ends_once_and_no_handle_is_used_after_its_end(
    steps, remember, batch, dead, handling_s
):
    run = Checked(
        QueueingOptions(
            visibility_s=10,
            concurrency=2,
            batch_records_max=batch,
            remember_max=remember,
            receive_count_max=dead,
            linger_s=0.05,
            handling_s_max=handling_s,
        )
    )
    for name, *arguments in steps:
        if name == "pass":
            run.now_s += arguments[0]
        elif name == "stop":
            run.delivery.on_stop(run.now_s)
            run.after()
        elif name == "hold":
            run.delivery.holds_returns = arguments[0]
        else:
            getattr(run, name)(*arguments)
    # The consumer stops, its handlers are abandoned, the service answers nothing but refusals.
    run.delivery.on_abandon(run.now_s)
    run.delivery.holds_returns = False
    for _ in range(40):
        run.now_s += 1.0
        run.send()
        while run.calls:
            run.answer(0, [REFUSED], 0.5)
    while run.handler:
        run.handled(0, RecordResult.DONE, 0.5)
    assert run.ended.keys() == run.received.keys()
    assert run.delivery.is_idle
    assert run.delivery.in_hand_count == 0
    assert (run.delivery._waiting_count, run.delivery._running_parts) == (0, 0)
    assert not run.delivery._in_handler
    assert not list(run.delivery._valid_handles)


@pytest.mark.parametrize(
    ("receive_count", "settled", "return_s", "end"),
    [
        (6, RecordResult.FAILED, 0, DeliveryEnd.DEAD),
        (6, RecordResult.REJECTED, 0, DeliveryEnd.DEAD),
        (7, RecordResult.FAILED, 128, DeliveryEnd.RETURNED),
        (7, RecordResult.REJECTED, 300, DeliveryEnd.RETURNED),
    ],
)
def test_a_record_beyond_the_known_limit_returns_after_a_backoff(receive_count, settled, return_s, end):
    """The queue's limit was raised or its dead letters were switched off: returned at once, the record would go round and round."""
    delivery = machine(receive_count_max=6)
    delivery.on_received([arrival("a", receive_count)], 0.0)
    handle_one(delivery, settled, u=0.999)
    (call,) = delivery.take_due_calls(1.0)
    assert isinstance(call, SetVisibility)
    assert call.seconds == (return_s,)
    delivery.on_answered(call.number, [APPLIED], 1.1, 0.5)
    assert ends(delivery) == [("a", end)]
