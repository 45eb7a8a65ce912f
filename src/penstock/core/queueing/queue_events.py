"""Events and calls of `QueueDelivery`."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from msgspec import Struct


class Arrival(Struct, frozen=True):
    """One delivery of one Kinesis record, as a receive returned it.

    Args:
        handle: The receipt handle, valid for this delivery only.
        record_id: The record's id, the same in every delivery.
        receive_count: Number of receives, including this one.
        part_count: Number of user records in it, at least 1.
        memory_bytes: Bytes that it uses of the limit of bytes in hand.
        is_finished: Whether a durable memory lists it as done: it is acknowledged without a call of the handler.
    """

    handle: str
    record_id: str
    receive_count: int
    part_count: int = 1
    memory_bytes: int = 0
    is_finished: bool = False


class Part(NamedTuple):
    """One user record of a delivery: the delivery's number, and its place in the aggregate."""

    delivery: int
    place: int


class HandlerCall(Struct, frozen=True):
    """Call the handler with these user records."""

    number: int
    parts: tuple[Part, ...]


class RecordResult(Enum):
    """The result of one user record in the handler."""

    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    UNHANDLED = "unhandled"
    """The handler was not called, or is not waited for any more: the record is returned at once, without a back-off."""


class Acknowledge(Struct, frozen=True):
    """Acknowledge these handles, at most ten. The owner passes the answer to `on_answered`."""

    number: int
    handles: tuple[str, ...]
    record_ids: tuple[str, ...] = ()


class SetVisibility(Struct, frozen=True):
    """Set the visibility timeouts of these handles, at most ten. The owner passes the answer to `on_answered`."""

    number: int
    handles: tuple[str, ...]
    seconds: tuple[int, ...]


QueueCall = Acknowledge | SetVisibility


class EntryOutcome(Enum):
    """The outcome of one entry of a call."""

    APPLIED = "applied"
    VOID = "void"
    """The service refused the handle as unknown or expired."""
    REFUSED = "refused"
    """The entry was not applied; a retry may succeed."""
    UNKNOWN = "unknown"
    """The request was sent and not answered: it may have been applied."""


class DeliveryEnd(Enum):
    """How a delivery ended. Every delivery ends in exactly one of these ways."""

    ACKNOWLEDGED = "acknowledged"
    RETURNED = "returned"
    """It is visible again, at once or after its back-off."""
    DEAD = "dead"
    """Returned so that the service makes it a dead letter: it was rejected, or it failed at its last receive."""
    VOID = "void"
    """Its handle ended before it was acknowledged or returned: the record is delivered again."""


class EndedDelivery(Struct, frozen=True):
    """A delivery that has ended.

    Args:
        held_s: Seconds from the receive to the end.
        may_be_acknowledged: Whether an acknowledgement was sent and not answered, so that it may have been applied.
        is_in_handler: Whether the handler still has it.
    """

    delivery: int
    record_id: str
    end: DeliveryEnd
    held_s: float
    may_be_acknowledged: bool = False
    is_in_handler: bool = False
