"""One delivery in hand: its handle, its user records and their results."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field

from penstock.core.queueing.queue_events import Arrival, End, Settled


class Phase(Enum):
    """What is done with a delivery."""

    OPEN = "open"
    """Its user records wait for the handler or are in it; the visibility is renewed."""
    ACKNOWLEDGING = "acknowledging"
    RETURNING = "returning"
    ENDED = "ended"
    """The handle is not used any more. The delivery stays in hand while the handler has records of it."""


class HeldRecord(Struct, eq=False):
    """One delivery in hand. Mutable; only `QueueDelivery` changes it.

    Args:
        number: Of the delivery.
        arrival: As it was received.
        received_s: When the answer came.
        visible_from_s: The start of the present visibility.
        expires_s: The end of it, and of the handle.
        unsettled: User records that wait or run.
        running: Those that run.
        not_before_s: A refused renewal is sent again no sooner.
        call: The service call that has the handle, or None. A handle is in one call at a time.
    """

    number: int
    arrival: Arrival
    received_s: float
    visible_from_s: float
    expires_s: float
    phase: Phase = Phase.OPEN
    unsettled: int = 0
    running: int = 0
    done: set[int] = field(default_factory=set)
    results: set[Settled] = field(default_factory=set)
    handed_out_s: float | None = None
    call: int | None = None
    return_s: int = 0
    end: End = End.RETURNED
    attempts: int = 0
    not_before_s: float = float("-inf")
    is_unknown: bool = False
    followers: list[HeldRecord] = field(default_factory=list)

    @property
    def result(self) -> Settled:
        """The result of the whole record, by its user records."""
        for each in (Settled.FAILED, Settled.UNHANDLED, Settled.REJECTED):
            if each in self.results:
                return each
        return Settled.DONE
