"""Values that enter and leave the machine of a queue's delivery."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from msgspec import Struct


class Arrival(Struct, frozen=True):
    """One delivery of one Kinesis record, as a receive returned it.

    Args:
        handle: The receipt handle: names this delivery only.
        record_id: The same in every delivery.
        receive_count: This delivery included.
        part_count: User records in it, at least 1.
        memory_bytes: What it counts against the limit of bytes in hand.
        is_finished: Whether a durable memory has it as done: it is acknowledged without a call of the handler.
    """

    handle: str
    record_id: str
    receive_count: int
    part_count: int = 1
    memory_bytes: int = 0
    is_finished: bool = False


class Part(NamedTuple):
    """One user record of a delivery: the delivery's number, and the place in the aggregate."""

    delivery: int
    place: int


class HandlerCall(Struct, frozen=True):
    """Call the handler with these user records."""

    number: int
    parts: tuple[Part, ...]


class Settled(Enum):
    """How the handler left a user record."""

    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    UNHANDLED = "unhandled"
    """The call did not begin: the record is given back at once, without a back-off."""


class Acknowledge(Struct, frozen=True):
    """Acknowledge these handles, at most ten; answer with `on_answered`."""

    number: int
    handles: tuple[str, ...]
    record_ids: tuple[str, ...] = ()


class SetVisibility(Struct, frozen=True):
    """Set the visibility of these handles, at most ten, to so many seconds; answer with `on_answered`."""

    number: int
    handles: tuple[str, ...]
    seconds: tuple[int, ...]


QueueCall = Acknowledge | SetVisibility


class EntryOutcome(Enum):
    """What became of one entry of a call."""

    APPLIED = "applied"
    VOID = "void"
    """The service does not know the handle, or no longer."""
    REFUSED = "refused"
    """Nothing happened; it may succeed later."""
    UNKNOWN = "unknown"
    """The request was sent and not answered: it may have been applied."""


class End(Enum):
    """How a delivery ended. Every delivery ends in exactly one of these ways."""

    ACKNOWLEDGED = "acknowledged"
    RETURNED = "returned"
    """It is visible again, at once or after its back-off."""
    DEAD = "dead"
    """Given back so that the service makes it a dead letter: it was rejected, or failed at its last receive."""
    VOID = "void"
    """Its handle ended first: the record will be, or was, delivered again."""


class Ended(Struct, frozen=True):
    """A delivery has ended.

    Args:
        delivery: Its number.
        record_id: The record.
        end: How.
        held_s: Since it was received.
        is_unknown: Whether an acknowledgement of it was sent without an answer: it may have been applied.
        is_in_handler: Whether the handler still had it.
    """

    delivery: int
    record_id: str
    end: End
    held_s: float
    is_unknown: bool = False
    is_in_handler: bool = False
