"""Checkers of a producer's promises: acknowledged records are there, in order, and rarely twice.

If consumers read the streams of the producers, every record reaches a handler, in the order of its key.
"""

from __future__ import annotations

from collections import Counter, deque

from penstock_sim.checker import Broken, Checker, NoCrash
from penstock_sim.events import processes, producers, reading


class AcknowledgedIsThere(NoCrash):
    """P1: an acknowledged record is at the acknowledged place, and its readers see it; every record is settled."""

    invariant = "P1"

    def _begin(self) -> None:
        self._stored: dict[tuple[str, int], tuple[str, ...]] = {}
        self._open: set[str] = set()

    def _on_record_added(self, event: producers.RecordAdded) -> None:
        self._open.add(event.text)

    def _on_records_stored(self, event: producers.RecordsStored) -> None:
        if event.is_read:
            self._stored[event.key, event.number] = event.texts

    def _on_records_acknowledged(self, event: producers.RecordsAcknowledged) -> None:
        texts = event.texts
        if self._stored.get((event.key, event.number)) != texts:
            raise Broken(
                f"{event.who} has acknowledged {texts} as {event.number} of {event.key}, which readers do not see there"
            )
        if not self._open.issuperset(texts):
            raise Broken(f"{event.who} has acknowledged {texts} twice")
        self._open.difference_update(texts)

    def _on_records_given_up(self, event: producers.RecordsGivenUp) -> None:
        raise Broken(f"{event.who} gives up {event.texts}: {event.why}")

    def _on_process_exited(self, event: processes.ProcessExited) -> None:
        """Check that a stopped producer has settled its records; a crashed one need not."""
        left = {text for text in self._open if text.startswith(f"{event.who}:")}
        if left and event.how == "stopped":
            raise Broken(f"{event.who} has stopped, and {min(left)} is neither acknowledged nor given up")
        self._open -= left

    def at_end(self) -> None:
        if self._open:
            raise Broken(f"{min(self._open)} is neither acknowledged nor given up")


class KeysInOrder(Checker):
    """P2: the records of one key are first seen in the order in which they were put.

    A copy of a record that was sent again may follow later ones.
    """

    invariant = "P2"

    def _begin(self) -> None:
        self._waiting: dict[str, list[str]] = {}

    def _on_record_added(self, event: producers.RecordAdded) -> None:
        self._waiting.setdefault(event.key, []).append(event.text)

    def _on_records_stored(self, event: producers.RecordsStored) -> None:
        for text in event.texts if event.is_read else ():
            waiting = self._waiting[self.history.key_of[text]]
            if text in waiting:
                if waiting[0] != text:
                    raise Broken(f"{event.number} of {event.key} holds {text}, {waiting[0]} is not there yet")
                waiting.pop(0)


class RarelyTwice(Checker):
    """P3: readers see the records of a writer once, and at most one more time for each call without an answer.

    An aggregate that was accepted by another shard than predicted may be sent again until a listing shows which shard owns its
    records.
    """

    invariant = "P3"

    def _on_records_stored(self, event: producers.RecordsStored) -> None:
        attempt = self.history.attempts[event.attempt]
        for text, count in Counter(event.texts if event.is_read else ()).items():
            seen = attempt.seen[text] + count
            if seen > 1 + attempt.excused[text]:
                raise Broken(
                    f"{event.number} of {event.key} holds {text} of {event.attempt} for the {seen}. time, and "
                    f"{attempt.excused[text]} calls without an answer explain it"
                )


class ArrivesInOrder(Checker):
    """P4: each record of a producer that a reader reads reaches a handler with its key, and each key's records keep their order.

    A handler gets a record again after a failure or a change of owner; only the first delivery counts.
    """

    invariant = "P4"

    def _begin(self) -> None:
        self._waiting: dict[str, deque[str]] = {}
        self._seen: set[str] = set()
        self._arrived: set[str] = set()

    def _on_records_stored(self, event: producers.RecordsStored) -> None:
        for text in event.texts if event.is_read else ():
            if text not in self._seen:
                self._seen.add(text)
                self._waiting.setdefault(self.history.key_of[text], deque()).append(text)

    def _on_delivered_texts(self, event: reading.DeliveredTexts) -> None:
        for text, key in event.records:
            if self.history.key_of.get(text) != key:
                raise Broken(
                    f"{event.who} is given {text} of {event.key} under key {key}, put under {self.history.key_of.get(text)}"
                )
            if text in self._arrived:
                continue
            waiting = self._waiting.get(key)
            if not waiting or waiting[0] != text:
                first = waiting[0] if waiting else "nothing"
                raise Broken(f"{event.who} is given {text} of {event.key}, and {first} of its key comes next")
            waiting.popleft()
            self._arrived.add(text)

    def at_end(self) -> None:
        for key, waiting in self._waiting.items():
            if waiting:
                raise Broken(f"{waiting[0]} of key {key} was stored, and no handler was given it")


PRODUCERS = (AcknowledgedIsThere, KeysInOrder, RarelyTwice)
