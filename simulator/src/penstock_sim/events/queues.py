"""Events of queues: records and their deliveries, calls with their handles, and calls of handlers."""

from __future__ import annotations

from typing import ClassVar, Final

from penstock_sim.events.base import Event, ProcessEvent
from penstock_sim.kinds import SeedKind, situation

_QUEUES: Final = SeedKind.QUEUES
_AGAIN: Final = situation("a record is received again", _QUEUES)
_DEAD: Final = situation("a record becomes a dead letter", _QUEUES)
_EXPIRED: Final = situation("retention takes a record of a queue", _QUEUES)
_FORGOTTEN: Final = situation("fault: forgotten_acknowledgement", _QUEUES)
SEVERAL_PARTS: Final = situation("a handler gets records of an aggregate one by one", _QUEUES)
for _end in ("acknowledged", "returned", "dead", "void"):
    situation(f"a delivery of a queue ends: {_end}", _QUEUES)


class QueueRecordPut(Event, frozen=True):
    record: str
    part_count: int  # user records in it


class QueueRecordReceived(ProcessEvent, frozen=True):
    """The service takes a record into the answer to a receive."""

    record: str
    handle: str
    count: int

    def situation(self) -> str:
        return _AGAIN if self.count > 1 else ""


class QueueAnswerArrived(Event, frozen=True):
    """The answer to a receive reaches its process."""

    handles: tuple[str, ...]


class QueueCallSent(ProcessEvent, frozen=True):
    """A process sends handles to the service: to acknowledge them, or to set their visibility."""

    number: int  # names the call
    handles: tuple[str, ...]
    seconds: tuple[int, ...]  # the visibility of each; empty for an acknowledgement


class QueueCallAnswered(ProcessEvent, frozen=True):
    number: int
    outcomes: tuple[str, ...]


class QueueHandlerBegan(ProcessEvent, frozen=True):
    """A handler is called with user records, each named by its record and its place in it."""

    parts: tuple[tuple[str, int], ...]


class QueueHandlerEnded(ProcessEvent, frozen=True):
    done: tuple[tuple[str, int], ...] = ()
    failed: tuple[tuple[str, int], ...] = ()
    rejected: tuple[tuple[str, int], ...] = ()


class QueueRecordAcknowledged(ProcessEvent, frozen=True):
    record: str
    handle: str


class AcknowledgementForgotten(Event, frozen=True):
    record: str
    meets: ClassVar = _FORGOTTEN


class QueueRecordDied(Event, frozen=True):
    record: str
    meets: ClassVar = _DEAD


class QueueRecordExpired(Event, frozen=True):
    record: str
    meets: ClassVar = _EXPIRED


class HandleDisturbed(Event, frozen=True):
    """A fault of the service concerns a handle: it may be void before its time, or its call must be repeated."""

    handle: str
    why: str
    is_lost: bool = False
    """Whether its process cannot keep it: the answer with it is lost, or the record is visible before its time."""


class VisibilitySet(Event, frozen=True):
    handle: str
    seconds: int
