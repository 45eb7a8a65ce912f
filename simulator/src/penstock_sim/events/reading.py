"""Events of readers: where they begin, the records that a handler gets, and the losses that they report."""

from __future__ import annotations

from typing import ClassVar

from penstock.core.position import Position
from penstock_sim.events.base import ProcessEvent
from penstock_sim.kinds import SeedKind, situation

_CONSUMERS = (SeedKind.CONSUMERS, SeedKind.STREAMS)
INSIDE_AGGREGATE = situation("a reader begins inside an aggregate", *_CONSUMERS)


class ReaderEvent(ProcessEvent, frozen=True):
    """An event of one reader: the process, the shard, and a number that distinguishes the readers of both."""

    key: str
    epoch: int

    @property
    def reader(self) -> tuple[str, str, int]:
        return self.who, self.key, self.epoch


class ReaderStarted(ReaderEvent, frozen=True):
    position: Position

    def situation(self) -> str:
        return INSIDE_AGGREGATE if self.position.sub_sequence_number else ""


class ReaderEnded(ReaderEvent, frozen=True):
    """A process has stopped reading a shard."""


class ShardStopped(ReaderEvent, frozen=True):
    """A shard is held and not read until its process starts again."""

    reason: str
    meets: ClassVar = situation("a shard stops for good", *_CONSUMERS)


class RecordsDelivered(ReaderEvent, frozen=True):
    numbers: tuple[int, ...]


class RecordsRedelivered(ReaderEvent, frozen=True):
    numbers: tuple[int, ...]


class RecordsHandled(ReaderEvent, frozen=True):
    """A handler has returned, or a query's batch with these records is committed (epoch -1)."""

    numbers: tuple[int, ...]


class RecordsDeadLettered(ReaderEvent, frozen=True):
    numbers: tuple[int, ...]
    meets: ClassVar = situation("a record goes to the dead letters", *_CONSUMERS)


class HandlerRaised(ReaderEvent, frozen=True):
    numbers: tuple[int, ...]


class DeliveredFrom(ReaderEvent, frozen=True):
    """The streams and shards that delivered records name."""

    places: tuple[tuple[str, str], ...]


class DeliveredTexts(ReaderEvent, frozen=True):
    """The texts of delivered records that a producer or a sink has put, each with its partition key."""

    records: tuple[tuple[str, str], ...]


class TipReached(ReaderEvent, frozen=True):
    server_ms: int


class LossReported(ReaderEvent, frozen=True):
    meets: ClassVar = situation("a loss is reported", *_CONSUMERS)
