"""One delivery in hand: its handle, its user records and their results."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field

from penstock.core.queueing.queue_events import Arrival, DeliveryEnd, RecordResult


class Phase(Enum):
    """The phase of a delivery in hand."""

    OPEN = "open"
    """Its user records wait for the handler or run in it; the visibility is renewed."""
    ACKNOWLEDGING = "acknowledging"
    RETURNING = "returning"
    ENDED = "ended"
    """No call uses the handle any more. The delivery stays in hand while the handler still has some of its records."""


class HeldDelivery(Struct, eq=False):
    """One delivery in hand. Mutable; only `QueueDelivery` changes it.

    Args:
        received_s: When the answer arrived.
        timeout_began_s: When the current visibility timeout began.
        expires_s: When it ends. The handle is void from then on.
        unsettled_count: Number of user records that wait for the handler or run in it.
        running_count: Number of user records that run in the handler.
        done_places: Places in the aggregate of the user records that the handler has done, in this delivery or an earlier one.
        results: The different results of its user records so far.
        handler_began_s: When the handler was first called with one of them, or None.
        return_s: Seconds after which a returned record becomes visible.
        end: How the delivery ends once its return is applied.
        attempts: How often its current renewal, acknowledgement or return was sent and not applied.
        may_be_acknowledged: Whether an acknowledgement was sent and not answered, so that it may have been applied.
        not_before_s: The earliest time at which a refused renewal is sent again.
        followers: Later deliveries of the same record, which get the result of this one.
        call: The service call that has the handle, or None. A handle is in one call at a time.
    """

    number: int
    arrival: Arrival
    received_s: float
    timeout_began_s: float
    expires_s: float
    phase: Phase = Phase.OPEN
    unsettled_count: int = 0
    running_count: int = 0
    done_places: set[int] = field(default_factory=set)
    results: set[RecordResult] = field(default_factory=set)
    handler_began_s: float | None = None
    call: int | None = None
    return_s: int = 0
    end: DeliveryEnd = DeliveryEnd.RETURNED
    attempts: int = 0
    not_before_s: float = float("-inf")
    may_be_acknowledged: bool = False
    followers: list[HeldDelivery] = field(default_factory=list)

    @property
    def result(self) -> RecordResult:
        """The result of the whole record: FAILED if a user record has failed, else UNHANDLED, else REJECTED, else DONE."""
        for each in (RecordResult.FAILED, RecordResult.UNHANDLED, RecordResult.REJECTED):
            if each in self.results:
                return each
        return RecordResult.DONE
