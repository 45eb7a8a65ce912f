"""Planted bugs of a queue's consumer."""

from __future__ import annotations

from penstock.core.queueing.held_record import HeldDelivery, Phase
from penstock.core.queueing.queue_delivery import QueueDelivery
from penstock.core.queueing.queue_events import EntryOutcome, RecordResult
from penstock.core.queueing.receive_pace import ReceivePace
from penstock.core.queueing.visibility_order import VisibilityOrder
from sim.mutants import Mutants

QUEUE_MUTANTS = Mutants()
planted = QUEUE_MUTANTS.planted
OWN = "Penstock, found by the simulator"

RESULT = HeldDelivery.result
ON_ANSWERED = QueueDelivery.on_answered
ON_RENEWAL = QueueDelivery._on_renewal
TAKE_IN = QueueDelivery._on_arrival
USABLE = QueueDelivery._usable_delivery


@planted(
    "a failed record is acknowledged",
    "SQS consumers that delete before they handle",
    0,
    HeldDelivery,
    "result",
)
@property
def takes_failures_for_done(self):
    return RecordResult.DONE


@planted(
    "an aggregate is done with its first record",
    "Lambda batches without partial failures",
    0,
    HeldDelivery,
    "result",
)
@property
def takes_the_last_result(self):
    return RecordResult.DONE if RecordResult.DONE in self.results else RESULT.fget(self)


@planted(
    "a refused entry counts as acknowledged",
    "SQS: DeleteMessageBatch answers 200",
    48,
    QueueDelivery,
    "on_answered",
)
def takes_refused_entries_for_done(self, call, outcomes, now_s, u):
    outcomes = [EntryOutcome.APPLIED if each is EntryOutcome.REFUSED else each for each in outcomes]
    ON_ANSWERED(self, call, outcomes, now_s, u)


@planted(
    "visibility is never renewed", "SQS consumers without a heartbeat", 0, QueueDelivery, "_renewal_due_s"
)
def never_renews(self, held):
    return float("inf")


@planted(
    "a stop keeps the waiting records", "SQS consumers with a prefetch buffer", 2, QueueDelivery, "on_stop"
)
def keeps_its_records_at_the_stop(self, now_s):
    """The waiting records are visible again when their timeout ends, not when the consumer stops."""
    self._is_stopping = True
    for held in list(self._held.values()):
        if held.phase is Phase.OPEN and not held.running_count:
            held.phase = Phase.ENDED
            self._valid_handles.discard(held)
            self._forget(held)


@planted(
    "two handlers have one record", "SQS consumers that know no record ids", 0, QueueDelivery, "_on_arrival"
)
def handles_each_delivery(self, arrival, now_s):
    self._in_handler.pop(arrival.record_id, None)
    return TAKE_IN(self, arrival, now_s)


@planted(
    "a record that was handled during a renewal stays in hand",
    "heartbeats beside the acknowledgement",
    0,
    QueueDelivery,
    "_on_renewal",
)
def forgets_to_acknowledge_after_a_renewal(self, held, outcome, sent_s, now_s, u):
    """The handler returns during a renewal, and nothing follows its answer."""
    if held.phase is Phase.OPEN or outcome is EntryOutcome.VOID:
        ON_RENEWAL(self, held, outcome, sent_s, now_s, u)


@planted("failed receives stay open", "pollers that end with their first errors", 6, ReceivePace, "on_failed")
def keeps_the_room_of_failed_receives(self, number, now_s, u):
    self.failure_count += 1
    self.resumes_s = now_s + 1.0


@planted(
    "a handle is in two calls", "heartbeats that race with deletes", 0, QueueDelivery, "_usable_delivery"
)
def uses_handles_that_have_ended(self, number, phase, now_s):
    held = self._held.get(number)
    if held is not None and held.call is not None:
        held.call = None
    return USABLE(self, number, phase, now_s)


@planted("renewals are ordered by their answers", OWN, 0, VisibilityOrder, "on_renewed")
def sorts_by_the_answer(self, renewed):
    """The oldest visibility is not the first one: the loop wakes for the one, and looks at the other."""
    self._held.move_to_end(renewed.number)
