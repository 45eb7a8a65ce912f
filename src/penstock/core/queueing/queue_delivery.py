"""The machine that delivers a queue's records: received, handled, then acknowledged, returned, dead or void. Pure.

Rules that hold at every moment:

- A handle is valid until its visibility timeout ends by the caller's clock, or until the service refuses it as unknown. Then it is
  void, and no further call contains it.
- A handle is in at most one call at a time. An acknowledgement waits for a renewal under way; otherwise the renewal could arrive
  after it and be refused, and the refusal would look like a lost handle.
- Every delivery ends once, in one of the ways of `DeliveryEnd`.
- If a record is delivered again while the handler still has its earlier delivery, the handler is not called for the new one. The new
  delivery follows the earlier one and gets its result.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec import Struct

from penstock.core.backoff import Backoff
from penstock.core.queueing.held_record import HeldDelivery, Phase
from penstock.core.queueing.queue_events import (
    Acknowledge,
    Arrival,
    DeliveryEnd,
    EndedDelivery,
    EntryOutcome,
    HandlerCall,
    Part,
    QueueCall,
    RecordResult,
    SetVisibility,
)
from penstock.core.queueing.queue_limits import RECORDS_PER_CALL_MAX, VISIBILITY_S_MAX
from penstock.core.queueing.queueing_options import QueueingOptions
from penstock.core.queueing.visibility_order import VisibilityOrder

RENEWAL_SHARE: Final = 0.5
"""A visibility timeout is renewed when this share of it has passed. This leaves a sixth of it for late timers
and retries before two thirds have passed."""
_EARLY_SHARE: Final = 1 / 3
"""When a renewal is sent, its call also renews deliveries of which this share has passed."""
_MEAN_WEIGHT: Final = 0.2
_PREFETCH_S: Final = 0.5
"""Records are fetched ahead of the handler for about this many seconds of its work."""
_CALL_BACKOFF: Final = Backoff(0.1, 5.0)
"""Pauses before entries that the service refused are sent again."""
_REJECTED_MAX: Final = 10_000
"""Rejected records that are remembered until the service makes them dead letters."""
_V = TypeVar("_V")


class _UserCall(Struct):
    parts: set[Part]
    began_s: float


class _SentCall(Struct):
    numbers: tuple[int, ...]
    sent_s: float
    are_renewals: tuple[bool, ...]
    is_acknowledgement: bool


class QueueDelivery:
    """Decides which records are handled, acknowledged, renewed and returned.

    Not thread-safe. Its owner feeds it events and runs its calls.
    """

    def __init__(self, options: QueueingOptions) -> None:
        self._options = options
        # Deliveries, handler calls and calls to the service have numbers of one sequence, by which they are kept here.
        self._held: dict[int, HeldDelivery] = {}
        # By record id: the delivery whose parts wait for the handler or run in it.
        self._in_handler: dict[str, HeldDelivery] = {}
        self._waiting_parts: deque[Part] = deque()
        self._waiting_count = 0  # without parts whose delivery ended while they waited
        self._user_calls: dict[int, _UserCall] = {}
        self._running_parts = 0
        self._sent_calls: dict[int, _SentCall] = {}  # calls to the service under way
        # Numbers of deliveries: to acknowledge (since when), to return, and whose call failed (a heap: when to try again).
        self._acknowledgements: deque[tuple[float, int]] = deque()
        self._returns: deque[int] = deque()
        self._retry_heap: list[tuple[float, int]] = []
        self._valid_handles = VisibilityOrder()  # deliveries whose handle can be used
        # When records that were returned with a back-off are visible again.
        self._visible_again_heap: list[float] = []
        self._ends: list[EndedDelivery] = []
        self.in_hand_bytes: int = 0
        self._next_number = 0
        self._is_stopping = False
        self.holds_returns = False
        """Whether records are returned later, and renewed until then: a receive of this consumer is open and could take them."""
        self._mean_s: float | None = None  # of a handler call
        # Of the latest records, by id; in an aggregate, the places of the user records that are done.
        self._finished_ids: OrderedDict[str, None] = OrderedDict()
        self._done_places: OrderedDict[str, frozenset[int]] = OrderedDict()
        self._rejected_ids: OrderedDict[str, None] = OrderedDict()

    # --- state for the owner --------------------------------------------------------------------------

    @property
    def in_hand_count(self) -> int:
        """Number of deliveries in hand, including those whose handle has ended while the handler still has them."""
        return len(self._held)

    @property
    def running_calls(self) -> int:
        """Number of handler calls under way."""
        return len(self._user_calls)

    @property
    def is_starving(self) -> bool:
        """Whether the handler has a free slot and no record waits for it."""
        return not self._waiting_count and self.running_calls < self._options.concurrency

    @property
    def is_idle(self) -> bool:
        """Whether no handle is in use. The handler may still run."""
        return not self._sent_calls and all(delivery.phase is Phase.ENDED for delivery in self._held.values())

    def in_flight_count(self, now_s: float) -> int:
        """Return how many records of the queue are invisible because of this consumer: in hand, or returned with a back-off."""
        while self._visible_again_heap and self._visible_again_heap[0] <= now_s:
            heapq.heappop(self._visible_again_heap)
        return len(self._held) + len(self._visible_again_heap)

    def oldest_age_s(self, now_s: float) -> float | None:
        """Return the age of the oldest delivery that has not ended, or None."""
        oldest = next(
            (delivery for delivery in self._held.values() if delivery.phase is not Phase.ENDED), None
        )
        return None if oldest is None else now_s - oldest.received_s

    def longest_call_s(self, now_s: float) -> float:
        """Return for how long the oldest handler call under way has run; 0 without one."""
        oldest = next(iter(self._user_calls.values()), None)
        return 0.0 if oldest is None else now_s - oldest.began_s

    @property
    def target_count(self) -> int:
        """Number of user records to have in hand: those in the handler, and those that it will begin within `_PREFETCH_S`."""
        options = self._options
        slots = options.concurrency * options.batch_records_max
        ahead = 0 if self._mean_s is None else int(slots / max(self._mean_s, 1e-4) * _PREFETCH_S)
        return min(options.records_max, slots + ahead)

    @property
    def fetch_room(self) -> int:
        """Number of records that may be fetched now. The limits of open receives are not subtracted."""
        options = self._options
        if self._is_stopping or self.in_hand_bytes >= options.bytes_max:
            return 0
        by_parts = self.target_count - self._waiting_count - self._running_parts
        return max(0, min(by_parts, options.records_max - len(self._held)))

    def take_ends(self) -> list[EndedDelivery]:
        """Return the deliveries that have ended since the last call."""
        ends, self._ends = self._ends, []
        return ends

    # --- records arrive and are handled ---------------------------------------------------------------

    def on_received(self, arrivals: Sequence[Arrival], now_s: float) -> list[int]:
        """Handle the records of an answer; return the number of each delivery.

        The visibility timeout counts from the answer. The service counts from a moment before it; the renewal at half of the timeout
        leaves room for the difference.
        """
        return [self._on_arrival(arrival, now_s) for arrival in arrivals]

    def _on_arrival(self, arrival: Arrival, now_s: float) -> int:
        number = self._next_number
        self._next_number += 1
        delivery = HeldDelivery(number, arrival, now_s, now_s, now_s + self._options.visibility_s)
        self._held[number] = delivery
        self.in_hand_bytes += arrival.memory_bytes
        self._valid_handles.add(delivery)
        earlier = self._in_handler.get(arrival.record_id)
        if arrival.is_finished or arrival.record_id in self._finished_ids:
            self._queue_last_call(delivery, RecordResult.DONE, now_s, 0.0)
        elif arrival.record_id in self._rejected_ids:
            self._queue_last_call(delivery, RecordResult.REJECTED, now_s, 0.0)
        elif self._is_stopping:
            self._queue_last_call(delivery, RecordResult.UNHANDLED, now_s, 0.0)
        elif earlier is not None:
            delivery.unsettled_count = arrival.part_count
            earlier.followers.append(delivery)
        else:
            self._queue_parts(delivery, now_s)
        return number

    def _queue_parts(self, delivery: HeldDelivery, now_s: float) -> None:
        done_places = self._done_places.get(delivery.arrival.record_id, frozenset())
        places = [place for place in range(delivery.arrival.part_count) if place not in done_places]
        delivery.done_places.update(done_places)
        delivery.unsettled_count = len(places)
        if not places:
            self._queue_last_call(delivery, RecordResult.DONE, now_s, 0.0)
            return
        self._in_handler[delivery.arrival.record_id] = delivery
        self._waiting_parts.extend(Part(delivery.number, place) for place in places)
        self._waiting_count += len(places)

    def take_handler_call(self, now_s: float) -> HandlerCall | None:
        """Return the next call of the handler, which counts as begun; None if no record waits or no slot is free."""
        if self.running_calls >= self._options.concurrency:
            return None
        parts: list[Part] = []
        while self._waiting_parts and len(parts) < self._options.batch_records_max:
            part = self._waiting_parts.popleft()
            delivery = self._held.get(part.delivery)
            if delivery is None or delivery.phase is not Phase.OPEN:
                continue  # its handle ended while it waited
            if delivery.expires_s <= now_s and delivery.call is None:
                self._waiting_parts.appendleft(part)
                self._end(delivery, DeliveryEnd.VOID, now_s)
                continue
            parts.append(part)
            delivery.running_count += 1
            if delivery.handler_began_s is None:
                delivery.handler_began_s = now_s
        if not parts:
            return None
        self._waiting_count -= len(parts)
        self._running_parts += len(parts)
        number = self._next_number
        self._next_number += 1
        self._user_calls[number] = _UserCall(set(parts), now_s)
        return HandlerCall(number, tuple(parts))

    def on_result(self, call: int, part: Part, result: RecordResult, now_s: float, chance: float) -> None:
        """Handle the result of one user record while its call runs; a second result of the same record is ignored."""
        user_call = self._user_calls.get(call)
        if user_call is not None and part in user_call.parts:
            user_call.parts.remove(part)
            self._settle(part, result, now_s, chance)

    def on_call_ended(self, call: int, result_of_rest: RecordResult, now_s: float, chance: float) -> None:
        """Handle the end of a call of the handler.

        Args:
            call: The call's number, from `take_handler_call`.
            result_of_rest: The result of its user records that have none yet.
        """
        user_call = self._user_calls.pop(call)
        took_s = now_s - user_call.began_s
        mean_s = self._mean_s
        self._mean_s = took_s if mean_s is None else mean_s + _MEAN_WEIGHT * (took_s - mean_s)
        for part in sorted(user_call.parts):
            self._settle(part, result_of_rest, now_s, chance)

    def _settle(self, part: Part, result: RecordResult, now_s: float, chance: float) -> None:
        """Store the result of one user record; conclude its delivery if it was the last one."""
        delivery = self._held[part.delivery]
        delivery.running_count -= 1
        delivery.unsettled_count -= 1
        self._running_parts -= 1
        delivery.results.add(result)
        if result is RecordResult.DONE:
            delivery.done_places.add(part.place)
        if not delivery.unsettled_count:
            self._conclude(delivery, now_s, chance)

    def _conclude(self, delivery: HeldDelivery, now_s: float, chance: float) -> None:
        """Handle a delivery whose user records all have a result: queue its last call, and those of its followers.

        Followers are later deliveries of the same record, which were not handled because the handler had this one.
        """
        record_id = delivery.arrival.record_id
        if self._in_handler.get(record_id) is delivery:
            del self._in_handler[record_id]
        result = delivery.result
        self._remember_done_places(delivery, result)
        followers, delivery.followers = delivery.followers, []
        if delivery.phase is Phase.OPEN:
            self._queue_last_call(delivery, result, now_s, chance)
        elif delivery.phase is Phase.ENDED:
            self._forget(delivery)
        waiting = [follower for follower in followers if follower.phase is Phase.OPEN]
        if result is RecordResult.UNHANDLED and waiting and not self._is_stopping:
            # The handle ended before the handler had every user record: the first follower is handled in its place.
            self._queue_parts(waiting[0], now_s)
            waiting[0].followers = waiting[1:]
            return
        for follower in waiting:
            follower.unsettled_count = 0
            self._queue_last_call(follower, result, now_s, chance)

    def _remember_done_places(self, delivery: HeldDelivery, result: RecordResult) -> None:
        """Keep which user records are done, so that the handler does not get them again with a later delivery of the record."""
        if not self._options.remember_max:
            return
        record_id = delivery.arrival.record_id
        if result is RecordResult.DONE:
            self._done_places.pop(record_id, None)
            _keep(self._finished_ids, record_id, None, self._options.remember_max)
        elif delivery.done_places:
            _keep(self._done_places, record_id, frozenset(delivery.done_places), self._options.remember_max)

    def _queue_last_call(
        self, delivery: HeldDelivery, result: RecordResult, now_s: float, chance: float
    ) -> None:
        """Queue the call that ends a delivery: an acknowledgement, or a return with its delay."""
        count, count_max = delivery.arrival.receive_count, self._options.receive_count_max
        # A record that was received more often than the limit shows that the queue's limit was changed since. The known limit is then
        # not used: a record that is returned at once would be received again at once, without end.
        may_be_dead = count_max is not None and count <= count_max
        delivery.phase = Phase.RETURNING
        delivery.attempts = 0
        if result is RecordResult.DONE:
            delivery.phase = Phase.ACKNOWLEDGING
        elif result is RecordResult.UNHANDLED:
            delivery.return_s, delivery.end = 0, DeliveryEnd.RETURNED
        elif may_be_dead and count == count_max:
            # Visible at once: the service makes it a dead letter instead of delivering it.
            delivery.return_s, delivery.end = 0, DeliveryEnd.DEAD
            self._rejected_ids.pop(delivery.arrival.record_id, None)
        elif may_be_dead and result is RecordResult.REJECTED:
            delivery.return_s, delivery.end = 0, DeliveryEnd.DEAD
            _keep(self._rejected_ids, delivery.arrival.record_id, None, _REJECTED_MAX)
        else:
            delivery.end = DeliveryEnd.RETURNED
            delivery.return_s = self._return_delay_s(result, count, chance)
        if delivery.call is None:
            self._queue_call(delivery, now_s)

    def _return_delay_s(self, result: RecordResult, receive_count: int, chance: float) -> int:
        """Return the delay after which a returned record becomes visible; `chance` is drawn from [0, 1), for the back-off."""
        backoff = self._options.return_backoff
        # In a queue without dead letters, a rejected record is delivered again until its retention ends.
        is_rejected = result is RecordResult.REJECTED
        delay_s = backoff.cap_s if is_rejected else backoff.delay_s(max(1, receive_count), chance)
        return min(VISIBILITY_S_MAX, max(1, round(delay_s)))

    def _queue_call(self, delivery: HeldDelivery, now_s: float) -> None:
        if delivery.phase is Phase.ACKNOWLEDGING:
            self._acknowledgements.append((now_s, delivery.number))
        else:
            self._returns.append(delivery.number)

    # --- calls to the service -------------------------------------------------------------------------

    def take_due_calls(self, now_s: float) -> list[QueueCall]:
        """Return the calls to send now; each is answered by `on_answered`."""
        self._end_expired_deliveries(now_s)
        while self._retry_heap and self._retry_heap[0][0] <= now_s:
            _, number = heapq.heappop(self._retry_heap)
            delivery = self._held.get(number)
            if delivery is not None and delivery.call is None and delivery.phase is Phase.ACKNOWLEDGING:
                # It has waited and does not linger again.
                self._acknowledgements.appendleft((float("-inf"), number))
            elif delivery is not None and delivery.call is None and delivery.phase is Phase.RETURNING:
                self._returns.append(number)
        return [*self._due_acknowledgements(now_s), *self._due_visibilities(now_s)]

    def _due_acknowledgements(self, now_s: float) -> list[QueueCall]:
        calls: list[QueueCall] = []
        queue = self._acknowledgements
        while queue:
            is_full = len(queue) >= RECORDS_PER_CALL_MAX
            if not (is_full or self._is_stopping or queue[0][0] + self._options.linger_s <= now_s):
                break
            batch: list[HeldDelivery] = []
            while queue and len(batch) < RECORDS_PER_CALL_MAX:
                delivery = self._usable_delivery(queue.popleft()[1], Phase.ACKNOWLEDGING, now_s)
                if delivery is not None:
                    batch.append(delivery)
            if batch:
                number = self._send(batch, now_s, is_acknowledgement=True)
                calls.append(
                    Acknowledge(
                        number,
                        tuple(delivery.arrival.handle for delivery in batch),
                        tuple(delivery.arrival.record_id for delivery in batch),
                    )
                )
        return calls

    def _due_visibilities(self, now_s: float) -> list[QueueCall]:
        """Return the calls that make returned records visible, and those that renew visibility timeouts."""
        returned: dict[int, HeldDelivery] = {}  # a held return that was renewed is queued twice
        while self._returns and not self.holds_returns:
            delivery = self._usable_delivery(self._returns.popleft(), Phase.RETURNING, now_s)
            if delivery is not None:
                returned[delivery.number] = delivery
        entries = [*returned.values(), *self._due_renewals(len(returned), now_s)]
        calls: list[QueueCall] = []
        for start in range(0, len(entries), RECORDS_PER_CALL_MAX):
            batch = entries[start : start + RECORDS_PER_CALL_MAX]
            number = self._send(batch, now_s, is_acknowledgement=False)
            seconds = tuple(
                self._options.visibility_s if self._is_renewable(delivery) else delivery.return_s
                for delivery in batch
            )
            calls.append(SetVisibility(number, tuple(delivery.arrival.handle for delivery in batch), seconds))
        return calls

    def _due_renewals(self, other_count: int, now_s: float) -> list[HeldDelivery]:
        """Return the deliveries to renew now: those that are due, and nearly due ones that fit into the last call.

        Args:
            other_count: Entries that are sent before them in the same calls.
        """
        visibility_s = self._options.visibility_s
        due: list[HeldDelivery] = []
        if not self._has_oldest_timeout_lasted(visibility_s * RENEWAL_SHARE, now_s):
            return due
        for delivery in list(self._valid_handles):  # the oldest visibility timeout first
            if delivery.timeout_began_s + visibility_s * _EARLY_SHARE > now_s:
                break
            is_due = delivery.timeout_began_s + visibility_s * RENEWAL_SHARE <= now_s
            has_place = bool(due) and (len(due) + other_count) % RECORDS_PER_CALL_MAX != 0
            if not is_due and not has_place:
                break
            is_paused = delivery.not_before_s > now_s or self._renewal_due_s(delivery) == float("inf")
            if self._is_renewable(delivery) and not is_paused:
                usable = self._usable_delivery(delivery.number, delivery.phase, now_s)
                if usable is not None:
                    due.append(usable)
        return due

    def _is_renewable(self, delivery: HeldDelivery) -> bool:
        return delivery.phase is Phase.OPEN or (self.holds_returns and delivery.phase is Phase.RETURNING)

    def _usable_delivery(self, number: int, phase: Phase, now_s: float) -> HeldDelivery | None:
        """Return a delivery if its handle may be used for a call of this phase, else None. End it if its handle has expired."""
        delivery = self._held.get(number)
        if delivery is None or delivery.phase is not phase or delivery.call is not None:
            return None
        if delivery.expires_s <= now_s:
            self._end(delivery, DeliveryEnd.VOID, now_s)
            return None
        return delivery

    def _renewal_due_s(self, delivery: HeldDelivery) -> float:
        """Return when to renew a visibility timeout; infinity if the record will have been handled for `handling_s_max` by then.

        Handling counts from the first call of the handler with the record; before that call, from the receive.
        """
        since_s = delivery.received_s if delivery.handler_began_s is None else delivery.handler_began_s
        due_s = delivery.timeout_began_s + self._options.visibility_s * RENEWAL_SHARE
        return due_s if due_s - since_s < self._options.handling_s_max else float("inf")

    def _send(self, batch: list[HeldDelivery], now_s: float, *, is_acknowledgement: bool) -> int:
        number = self._next_number
        self._next_number += 1
        for delivery in batch:
            assert delivery.call is None, "a handle is in one call at a time"
            assert delivery.expires_s > now_s, "a void handle is used no more"
            delivery.call = number
        self._sent_calls[number] = _SentCall(
            tuple(delivery.number for delivery in batch),
            now_s,
            tuple(self._is_renewable(delivery) for delivery in batch),
            is_acknowledgement,
        )
        return number

    def on_answered(self, call: int, outcomes: Sequence[EntryOutcome], now_s: float, chance: float) -> None:
        """Handle the answer to a call.

        Args:
            outcomes: One outcome for each handle, in order.
        """
        sent = self._sent_calls.pop(call)
        assert len(outcomes) == len(sent.numbers), "one outcome for each handle"
        for number, is_renewal, outcome in zip(sent.numbers, sent.are_renewals, outcomes, strict=True):
            delivery = self._held[number]
            assert delivery.call == call, "the answer is of the call that has the handle"
            delivery.call = None
            if is_renewal:
                self._on_renewal(delivery, outcome, sent.sent_s, now_s, chance)
                continue
            if outcome is EntryOutcome.APPLIED:
                self._end(
                    delivery, DeliveryEnd.ACKNOWLEDGED if sent.is_acknowledgement else delivery.end, now_s
                )
                continue
            delivery.may_be_acknowledged |= sent.is_acknowledgement and outcome is EntryOutcome.UNKNOWN
            if outcome is EntryOutcome.VOID or delivery.expires_s <= now_s:
                self._end(delivery, DeliveryEnd.VOID, now_s)
            else:
                delivery.attempts += 1
                retry_s = now_s + _CALL_BACKOFF.delay_s(delivery.attempts, chance)
                heapq.heappush(self._retry_heap, (retry_s, number))

    def _on_renewal(
        self, delivery: HeldDelivery, outcome: EntryOutcome, sent_s: float, now_s: float, chance: float
    ) -> None:
        if outcome is EntryOutcome.APPLIED:
            delivery.attempts = 0
            delivery.timeout_began_s = sent_s
            delivery.expires_s = sent_s + self._options.visibility_s
            delivery.not_before_s = float("-inf")
            self._valid_handles.on_renewed(delivery)
        if outcome is EntryOutcome.VOID or delivery.expires_s <= now_s:
            self._end(delivery, DeliveryEnd.VOID, now_s)
            return
        if outcome is not EntryOutcome.APPLIED:
            delivery.attempts += 1
            delivery.not_before_s = now_s + _CALL_BACKOFF.delay_s(delivery.attempts, chance)
        if delivery.phase is not Phase.OPEN:  # handled meanwhile, or its return is held
            delivery.attempts = 0
            self._queue_call(delivery, now_s)

    # --- the ends -------------------------------------------------------------------------------------

    def _has_oldest_timeout_lasted(self, duration_s: float, now_s: float) -> bool:
        """Return whether the oldest visibility timeout began this long ago or longer; False without one."""
        oldest = self._valid_handles.oldest
        # Compare the same sum that `next_wake_s` returns: a difference could round to less, and the loop would wake again at once.
        return oldest is not None and oldest.timeout_began_s + duration_s <= now_s

    def _end_expired_deliveries(self, now_s: float) -> None:
        if not self._has_oldest_timeout_lasted(self._options.visibility_s, now_s):
            return
        for delivery in list(self._valid_handles):
            if delivery.timeout_began_s + self._options.visibility_s > now_s:
                break
            if delivery.call is None:  # a delivery in a call waits for the answer
                self._end(delivery, DeliveryEnd.VOID, now_s)

    def _end(self, delivery: HeldDelivery, end: DeliveryEnd, now_s: float) -> None:
        """End the use of a delivery's handle, and drop user records that wait for the handler."""
        if delivery.phase is Phase.ENDED:
            return
        assert delivery.call is None, "a delivery in a call ends by its answer"
        was_open = delivery.phase is Phase.OPEN
        self._valid_handles.discard(delivery)
        delivery.phase = Phase.ENDED
        if end is DeliveryEnd.RETURNED and delivery.return_s:
            heapq.heappush(self._visible_again_heap, now_s + delivery.return_s)
        self._ends.append(
            EndedDelivery(
                delivery.number,
                delivery.arrival.record_id,
                end,
                now_s - delivery.received_s,
                may_be_acknowledged=delivery.may_be_acknowledged,
                is_in_handler=delivery.running_count > 0,
            )
        )
        if was_open and not delivery.running_count and delivery.unsettled_count:
            # Its user records wait for the handler, or it follows another delivery: the handler gets none of them.
            if self._in_handler.get(delivery.arrival.record_id) is delivery:
                self._waiting_count -= delivery.unsettled_count
            delivery.unsettled_count = 0
            delivery.results.add(RecordResult.UNHANDLED)
            self._conclude(delivery, now_s, 0.0)
        elif was_open and delivery.unsettled_count > delivery.running_count:
            self._drop_waiting_parts(delivery)
        elif not delivery.running_count:
            self._forget(delivery)

    def _drop_waiting_parts(self, delivery: HeldDelivery) -> None:
        """Drop the user records of a delivery that wait for the handler, which still finishes those that it has."""
        if delivery.unsettled_count == delivery.running_count:
            return
        self._waiting_count -= delivery.unsettled_count - delivery.running_count
        self._waiting_parts = deque(part for part in self._waiting_parts if part.delivery != delivery.number)
        delivery.unsettled_count = delivery.running_count
        delivery.results.add(RecordResult.UNHANDLED)

    def _forget(self, delivery: HeldDelivery) -> None:
        if self._held.pop(delivery.number, None) is not None:
            self.in_hand_bytes -= delivery.arrival.memory_bytes

    # --- the end of the consumer ----------------------------------------------------------------------

    def on_stop(self, now_s: float) -> None:
        """Return to the queue the records that the handler has not begun. It finishes its calls and the aggregates that it has begun."""
        self._is_stopping = True
        for delivery in list(self._held.values()):
            if delivery.phase is not Phase.OPEN:
                continue
            is_failed = bool(delivery.results & {RecordResult.FAILED, RecordResult.UNHANDLED})
            if delivery.handler_began_s is not None and not is_failed:
                continue  # an aggregate that has begun: its user records that are done would be repeated
            if delivery.running_count:
                self._drop_waiting_parts(delivery)
                continue
            delivery.results.add(RecordResult.UNHANDLED)
            if self._in_handler.get(delivery.arrival.record_id) is delivery:
                self._waiting_count -= delivery.unsettled_count
                delivery.unsettled_count = 0
                self._conclude(delivery, now_s, 0.0)
            else:  # it follows an earlier delivery, so its user records are not queued for the handler
                delivery.unsettled_count = 0
                self._queue_last_call(delivery, RecordResult.UNHANDLED, now_s, 0.0)

    def on_abandon(self, now_s: float) -> None:
        """Return to the queue the records that the handler still has; its later results are ignored."""
        if not self._is_stopping:
            self.on_stop(now_s)
        for delivery in list(self._held.values()):
            if delivery.phase is not Phase.OPEN:
                continue
            self._drop_waiting_parts(delivery)
            if delivery.running_count:
                self._queue_last_call(delivery, RecordResult.UNHANDLED, now_s, 0.0)
            else:
                self._conclude(delivery, now_s, 0.0)

    def next_wake_s(self) -> float | None:
        """Return when `take_due_calls` may have a call next, or None."""
        if self._returns and not self.holds_returns:
            return float("-inf")
        times = [self._retry_heap[0][0]] if self._retry_heap else []
        visibility_s = self._options.visibility_s
        for delivery in self._valid_handles:
            if delivery.call is not None:
                continue  # nothing happens to it before its answer
            times.append(delivery.timeout_began_s + visibility_s)
            if self._is_renewable(delivery):
                due_s = self._renewal_due_s(delivery)
                times.append(max(due_s, delivery.not_before_s))
                if delivery.not_before_s <= due_s < float("inf"):
                    break  # the others are due later
        if self._acknowledgements:
            is_full = len(self._acknowledgements) >= RECORDS_PER_CALL_MAX or self._is_stopping
            times.append(float("-inf") if is_full else self._acknowledgements[0][0] + self._options.linger_s)
        return min(times, default=None)


def _keep(kept: OrderedDict[str, _V], key: str, value: _V, count_max: int) -> None:
    """Remember a value, and forget the oldest if there are too many."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > count_max:
        kept.popitem(last=False)
