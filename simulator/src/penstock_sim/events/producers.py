"""Events of producers: their records on the way to a stream, and from there to a handler."""

from __future__ import annotations

from typing import Final

from penstock_sim.events.base import Event, ProcessEvent, SituationFinder
from penstock_sim.events.processes import ProcessExited
from penstock_sim.events.reading import DeliveredTexts, RecordsDelivered, RecordsRedelivered
from penstock_sim.kinds import SeedKind, situation

_PRODUCERS: Final = SeedKind.PRODUCERS
_WRITERS: Final = (SeedKind.PRODUCERS, SeedKind.SINKS)
STORED_TWICE: Final = situation("a record is stored twice", *_WRITERS)
MISROUTED_READ: Final = situation("another shard takes an aggregate, and its readers see it", *_WRITERS)
MISROUTED_DROPPED: Final = situation("another shard takes an aggregate, and its readers drop it", *_WRITERS)
ABANDONED: Final = situation("a record arrives whose producer has crashed", _PRODUCERS)
KEY_MOVED: Final = situation("the handler of another shard goes on with a key", _PRODUCERS)
COPY_DELIVERED: Final = situation(
    "a handler gets a record again, from another place of the stream", _PRODUCERS
)


class RecordAdded(Event, frozen=True):
    """A producer gets a record to put, or a batch has a row that the service can accept."""

    text: str
    key: str  # records with one key have an order


class RecordsSent(ProcessEvent, frozen=True):
    texts: tuple[str, ...]


class RecordsStored(Event, frozen=True):
    """A shard takes an entry."""

    key: str
    number: int
    texts: tuple[str, ...]  # the records of the entry
    is_read: bool  # whether readers of the stream see them: they drop aggregates of another shard
    attempt: str = "a producer"  # who has put them: a producer, or an attempt of a task that writes


class RecordsAcknowledged(ProcessEvent, frozen=True):
    key: str
    number: int
    texts: tuple[str, ...]


class RecordsUnanswered(Event, frozen=True):
    texts: tuple[str, ...]  # of a call that gets no answer
    attempt: str = "a producer"


class RecordsMisrouted(Event, frozen=True):
    """Another shard than the predicted one takes an aggregate."""

    texts: tuple[str, ...]
    is_read: bool
    attempt: str = "a producer"


class RecordsGivenUp(ProcessEvent, frozen=True):
    texts: tuple[str, ...]
    why: str


class ProducerSituations(SituationFinder):
    def _begin(self) -> None:
        self._seen: set[str] = set()
        self._crashed: set[str] = set()
        self._numbers: tuple[int, ...] = ()
        self._shard_of: dict[str, str] = {}
        self._number_of: dict[str, int] = {}

    def _on_process_exited(self, event: ProcessExited) -> None:
        if event.how == "crashed":
            self._crashed.add(event.who)

    def _on_records_stored(self, event: RecordsStored) -> None:
        if event.is_read:
            self.met[STORED_TWICE] += len(self._seen.intersection(event.texts))
            self._seen.update(event.texts)
        self.met[ABANDONED] += event.texts[0].partition(":")[0] in self._crashed

    def _on_records_delivered(self, event: RecordsDelivered | RecordsRedelivered) -> None:
        self._numbers = event.numbers

    def _on_delivered_texts(self, event: DeliveredTexts) -> None:
        for (text, key), number in zip(event.records, self._numbers, strict=False):
            self.met[KEY_MOVED] += self._shard_of.get(key, event.key) != event.key
            self._shard_of[key] = event.key
            self.met[COPY_DELIVERED] += self._number_of.setdefault(text, number) != number

    def _on_records_misrouted(self, event: RecordsMisrouted) -> None:
        self.met[MISROUTED_READ if event.is_read else MISROUTED_DROPPED] += 1
