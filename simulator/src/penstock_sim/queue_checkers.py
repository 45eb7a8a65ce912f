"""Checkers of a queue's consumers: nothing is lost, handles are used while they are valid, redeliveries have a cause."""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec import Struct

from penstock_sim.checker import CLOCK_TOLERANCE, Broken, Checker, NoCrash
from penstock_sim.events import processes, queues
from penstock_sim.plan import QueuePlan

_RETRIED_WITHIN_S: Final = 12.0
"""A refused or unanswered entry is sent again within this time: the longest pause, and calls before it that get no answer."""
_LAST_CALLS_S: Final = 5.0
"""As `penstock.queues.queue_loop`: a stop takes no longer than its timeout and this."""
_SLACK_S: Final = 4.0
_DELIVERIES_MAX: Final = 1.01
"""Deliveries of a record without faults, on average."""


class EachRecordEnds(NoCrash):
    """U1: a record is acknowledged once, by a process whose handler is done with each of its user records.

    Or it becomes a dead letter, or retention takes it.
    """

    invariant = "U1"

    def _begin(self) -> None:
        self._part_counts: dict[str, int] = {}
        self._open: set[str] = set()
        self._done: set[tuple[str, str, int]] = set()

    def _on_put(self, event: queues.QueueRecordPut) -> None:
        self._part_counts[event.record] = event.part_count
        self._open.add(event.record)

    def _on_handler_ended(self, event: queues.QueueHandlerEnded) -> None:
        self._done.update((event.who, *part) for part in event.done)

    def _on_acknowledged(self, event: queues.QueueRecordAcknowledged) -> None:
        who, record = event.who, event.record
        if record not in self._open:
            raise Broken(f"{who} acknowledges {record}, which has ended before")
        self._open.remove(record)
        for place in range(self._part_counts[record]):
            if (who, record, place) not in self._done:
                raise Broken(f"{who} acknowledges {record}, and its user record {place} is not done")

    def _on_forgotten(self, event: queues.AcknowledgementForgotten) -> None:
        self._open.add(event.record)

    def _on_gone(self, event: queues.QueueRecordDied | queues.QueueRecordExpired) -> None:
        self._open.discard(event.record)

    def at_end(self) -> None:
        if self._open:
            raise Broken(f"{min(self._open)} is neither acknowledged nor a dead letter nor expired")


class _Delivery(Struct, eq=False):
    who: str
    record: str
    received_s: float
    visible_s: float
    has_arrived: bool = False
    has_ended: bool = False
    call: int | None = None
    disturbed_s: float = float("-inf")


class _DeliveryChecker(Checker):
    """Follows deliveries by their handles."""

    def _begin(self) -> None:
        self.deliveries: dict[str, _Delivery] = {}

    @property
    def plan(self) -> QueuePlan:
        assert self.history.queues is not None
        return self.history.queues

    def _on_received(self, event: queues.QueueRecordReceived) -> None:
        now_s = self.history.now
        self.deliveries[event.handle] = _Delivery(
            event.who, event.record, now_s, now_s + self.plan.visibility_s
        )

    def _on_arrived(self, event: queues.QueueAnswerArrived) -> None:
        for handle in event.handles:
            self.deliveries[handle].has_arrived = True


class HandlesEnd(_DeliveryChecker):
    """U2: a process sends a handle after it has received it, in one call at a time, and not after its known end.

    A handle ends when its acknowledgement or its return is confirmed, and when the service refuses it as unknown.
    """

    invariant = "U2"

    def _begin(self) -> None:
        super()._begin()
        self._sent: dict[tuple[str, int], queues.QueueCallSent] = {}

    def _on_sent(self, event: queues.QueueCallSent) -> None:
        who = event.who
        self._sent[who, event.number] = event
        if not 1 <= len(event.handles) <= 10:
            raise Broken(f"{who} sends {len(event.handles)} handles in a call")
        for handle in event.handles:
            delivery = self.deliveries[handle]
            if delivery.who != who or not delivery.has_arrived:
                raise Broken(f"{who} sends {handle}, which {delivery.who} received")
            if delivery.call is not None:
                raise Broken(f"{who} sends {handle} of {delivery.record}, which is in another call")
            if delivery.has_ended:
                raise Broken(f"{who} sends {handle} of {delivery.record}, which has ended")
            delivery.call = event.number

    def _on_answered(self, event: queues.QueueCallAnswered) -> None:
        sent = self._sent.pop((event.who, event.number))
        for place, (handle, outcome) in enumerate(zip(sent.handles, event.outcomes, strict=True)):
            delivery = self.deliveries[handle]
            delivery.call = None
            may_be_renewal = bool(sent.seconds) and sent.seconds[place] == self.plan.visibility_s
            delivery.has_ended |= outcome == "void" or (outcome == "applied" and not may_be_renewal)


class RedeliveriesHaveCauses(_DeliveryChecker):
    """U3: while a process holds a record, it is not delivered again; a graceful stop ends in time and leaves no record held.

    Causes of a redelivery: the process has ended, was paused or stops; its handler failed, rejected the record or takes longer than
    the longest handling time; the service has lost, refused or shortened something.
    """

    invariant = "U3"

    def _begin(self) -> None:
        super()._begin()
        self._latest: dict[str, _Delivery] = {}
        self._exited: set[str] = set()
        self._stopping_s: dict[str, float] = {}
        self._unsuccessful: set[tuple[str, str]] = set()
        self._begun_s: dict[tuple[str, str], float] = {}

    def _on_received(self, event: queues.QueueRecordReceived) -> None:
        earlier = self._latest.get(event.record)
        if earlier is not None and not self._may_be_received_again(earlier):
            raise Broken(
                f"{event.who} receives {event.record} again, and {earlier.who}, which holds it since {earlier.received_s:.2f} s, has "
                "neither failed nor returned it"
            )
        super()._on_received(event)
        self._latest[event.record] = self.deliveries[event.handle]

    def _may_be_received_again(self, earlier: _Delivery) -> bool:
        who, now_s = earlier.who, self.history.now
        since_s = self._begun_s.get((who, earlier.record), earlier.received_s)
        return (
            earlier.has_ended
            or who in self._exited
            or who in self._stopping_s
            or (who, earlier.record) in self._unsuccessful
            or earlier.visible_s - earlier.disturbed_s <= _RETRIED_WITHIN_S
            or now_s - since_s >= self.plan.options.handling_time_max_s * (1 - CLOCK_TOLERANCE)
            or self._was_paused(who, earlier.received_s)
        )

    def _was_paused(self, who: str, since_s: float) -> bool:
        return any(until_s >= since_s for _, until_s in self.history.pauses.get(who, ()))

    def _on_handler_began(self, event: queues.QueueHandlerBegan) -> None:
        """Remember when a handler first got a record; before that, the handling time counts from the receive."""
        for record, _ in event.parts:
            self._begun_s.setdefault((event.who, record), self.history.now)

    def _on_handler_ended(self, event: queues.QueueHandlerEnded) -> None:
        """Remember failures: they return the record."""
        self._unsuccessful.update((event.who, record) for record, _ in (*event.failed, *event.rejected))

    def _on_acknowledged(self, event: queues.QueueRecordAcknowledged) -> None:
        self.deliveries[event.handle].has_ended = True

    def _on_gone(self, event: queues.QueueRecordDied | queues.QueueRecordExpired) -> None:
        if event.record in self._latest:
            self._latest[event.record].has_ended = True

    def _on_visibility_set(self, event: queues.VisibilitySet) -> None:
        """Remember until when the record is invisible."""
        self.deliveries[event.handle].visible_s = self.history.now + event.seconds

    def _on_disturbed(self, event: queues.HandleDisturbed) -> None:
        """The service may deliver the record again; for a lost delivery, at any time."""
        delivery = self.deliveries[event.handle]
        delivery.disturbed_s = max(delivery.disturbed_s, float("inf") if event.is_lost else self.history.now)

    def _on_stopping(self, event: processes.ProcessStopping) -> None:
        self._stopping_s.setdefault(event.who, self.history.now)

    def _on_exited(self, event: processes.ProcessExited) -> None:
        who, now_s = event.who, self.history.now
        self._exited.add(who)
        began_s = self._stopping_s.get(who)
        if event.how != "stopped" or began_s is None or self._was_paused(who, began_s):
            return
        timeout_s = self.plan.options.shutdown_timeout_s
        if now_s - began_s > timeout_s + _LAST_CALLS_S + _SLACK_S:
            raise Broken(f"{who} has stopped after {now_s - began_s:.1f} s")
        for delivery in self.deliveries.values():
            is_held = delivery.who == who and delivery.has_arrived and not delivery.has_ended
            is_late = delivery.received_s > began_s and now_s - began_s >= timeout_s
            is_excused = delivery.disturbed_s > float("-inf") or (who, delivery.record) in self._unsuccessful
            if is_held and delivery.visible_s > now_s and not (is_late or is_excused):
                raise Broken(
                    f"{who} has stopped, and {delivery.record} is invisible for another {delivery.visible_s - now_s:.1f} s"
                )


class OneHandlerAtATime(Checker):
    """U4: in a process, no user record is in two calls of the handler at once; nor in another one after it was done, if it is remembered."""

    invariant = "U4"

    def _begin(self) -> None:
        self._running: set[tuple[str, str, int]] = set()
        self._done: set[tuple[str, str, int]] = set()

    def _on_handler_began(self, event: queues.QueueHandlerBegan) -> None:
        for part in event.parts:
            key = (event.who, *part)
            if key in self._running:
                raise Broken(f"{event.who} calls the handler with {part}, which another call has")
            if key in self._done:
                raise Broken(f"{event.who} calls the handler with {part}, which is done and remembered")
            self._running.add(key)

    def _on_handler_ended(self, event: queues.QueueHandlerEnded) -> None:
        assert self.history.queues is not None
        for part in (*event.done, *event.failed, *event.rejected):
            self._running.discard((event.who, *part))
        if self.history.queues.options.remember:
            self._done.update((event.who, *part) for part in event.done)


class DeliveredOnce(Checker):
    """U5: without faults, a record is received and handled once; graceful stops repeat nothing that a handler has begun."""

    invariant = "U5"

    def _begin(self) -> None:
        self._put_count = 0
        self._calls: Counter[tuple[str, int]] = Counter()
        self._received_count = 0
        self._has_stopped = False

    def _on_put(self, event: queues.QueueRecordPut) -> None:
        self._put_count += 1

    def _on_received(self, event: queues.QueueRecordReceived) -> None:
        self._received_count += 1

    def _on_handler_began(self, event: queues.QueueHandlerBegan) -> None:
        self._calls.update(event.parts)

    def _on_stopping(self, event: processes.ProcessStopping) -> None:
        self._has_stopped = True

    def at_end(self) -> None:
        if self._calls.total() > _DELIVERIES_MAX * len(self._calls):
            raise Broken(f"{self._calls.total()} calls for {len(self._calls)} user records")
        if not self._has_stopped and self._received_count > _DELIVERIES_MAX * self._put_count:
            raise Broken(f"{self._received_count} deliveries of {self._put_count} records")


QUEUES = (EachRecordEnds, HandlesEnd, RedeliveriesHaveCauses, OneHandlerAtATime)
