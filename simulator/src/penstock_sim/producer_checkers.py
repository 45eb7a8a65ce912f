"""Checkers of a producer's promises: acknowledged records are there, in order, and rarely twice.

Where consumers read what producers put, all of it reaches a handler, in the order of each key.
"""

from __future__ import annotations

from collections import Counter, deque

from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock_sim.checker import Broken, Checker
from penstock_sim.history import History


class AcknowledgedIsThere(Checker):
    """P1: an acknowledged record is at the acknowledged place, and its readers see it; every record is settled."""

    invariant = "P1"

    def __init__(self, history: History, options: CoordinatorOptions) -> None:
        super().__init__(history, options)
        self._stored: dict[tuple[str, int], tuple[str, ...]] = {}
        self._open: set[str] = set()

    def on_added(self, text: str, _key: str) -> None:
        """Remember a record that must be settled."""
        self._open.add(text)

    def on_stored(self, key: str, number: int, texts: tuple[str, ...], is_read: bool) -> None:
        """Remember the records that readers see."""
        if is_read:
            self._stored[key, number] = texts

    def on_acknowledged(self, who: str, key: str, number: int, texts: tuple[str, ...]) -> None:
        """Compare an acknowledgement with the stream."""
        if self._stored.get((key, number)) != texts:
            raise Broken(
                f"{who} has acknowledged {texts} as {number} of {key}, which readers do not see there"
            )
        if not self._open.issuperset(texts):
            raise Broken(f"{who} has acknowledged {texts} twice")
        self._open.difference_update(texts)

    def on_given_up(self, who: str, texts: tuple[str, ...], why: str) -> None:
        """No record here is refused finally."""
        raise Broken(f"{who} gives up {texts}: {why}")

    def on_log(self, who: str, level: str, text: str, error: str) -> None:
        """Nothing fails in an unexpected way."""
        if level == "CRITICAL":
            raise Broken(f"{who}: {text}: {error}")

    def on_down(self, who: str, how: str) -> None:
        """Check that a stopped producer has settled its records; a crashed one need not."""
        left = {text for text in self._open if text.startswith(f"{who}:")}
        if left and how == "stopped":
            raise Broken(f"{who} has stopped, and {min(left)} is neither acknowledged nor given up")
        self._open -= left

    def at_end(self) -> None:
        """Nothing is left open."""
        if self._open:
            raise Broken(f"{min(self._open)} is neither acknowledged nor given up")


class KeysInOrder(Checker):
    """P2: the records of one key are first seen in the order in which they were put.

    A copy of a record that was sent again may follow later ones.
    """

    invariant = "P2"

    def __init__(self, history: History, options: CoordinatorOptions) -> None:
        super().__init__(history, options)
        self._key_of: dict[str, str] = {}
        self._waiting: dict[str, list[str]] = {}

    def on_added(self, text: str, key: str) -> None:
        """Remember the next record of a key."""
        self._key_of[text] = key
        self._waiting.setdefault(key, []).append(text)

    def on_stored(self, key: str, number: int, texts: tuple[str, ...], is_read: bool) -> None:
        """Compare with the record that must be first."""
        for text in texts if is_read else ():
            waiting = self._waiting[self._key_of[text]]
            if text in waiting:
                if waiting[0] != text:
                    raise Broken(f"{number} of {key} holds {text}, and {waiting[0]} is not there yet")
                waiting.pop(0)


class RarelyTwice(Checker):
    """P3: readers see a record once, and at most one more time for each call without an answer.

    An aggregate that the shard of another prediction took may have to be sent again until a listing shows whose it is.
    """

    invariant = "P3"

    def __init__(self, history: History, options: CoordinatorOptions) -> None:
        super().__init__(history, options)
        self._seen: Counter[str] = Counter()
        self._allowed: Counter[str] = Counter()

    def on_unanswered(self, texts: tuple[str, ...]) -> None:
        """One more copy is allowed."""
        self._allowed.update(texts)

    def on_misrouted(self, texts: tuple[str, ...], _is_read: bool) -> None:
        """One more copy is allowed."""
        self._allowed.update(texts)

    def on_stored(self, key: str, number: int, texts: tuple[str, ...], is_read: bool) -> None:
        """Count the copies that readers see."""
        for text in texts if is_read else ():
            self._seen[text] += 1
            if self._seen[text] > 1 + self._allowed[text]:
                raise Broken(
                    f"{number} of {key} holds {text} for the {self._seen[text]}. time, and {self._allowed[text]} "
                    "calls without an answer explain it"
                )


class ArrivesInOrder(Checker):
    """P4: what readers see of a producer's records reaches a handler under its key, and each key's records in their order.

    A handler gets a record again after a failure or a change of hands; the first time counts.
    """

    invariant = "P4"

    def __init__(self, history: History, options: CoordinatorOptions) -> None:
        super().__init__(history, options)
        self._key_of: dict[str, str] = {}
        self._waiting: dict[str, deque[str]] = {}
        self._seen: set[str] = set()
        self._arrived: set[str] = set()

    def on_added(self, text: str, key: str) -> None:
        """Remember a record's key."""
        self._key_of[text] = key

    def on_stored(self, _key: str, _number: int, texts: tuple[str, ...], is_read: bool) -> None:
        """Remember the expected records, in the order in which readers first see them."""
        for text in texts if is_read else ():
            if text not in self._seen:
                self._seen.add(text)
                self._waiting.setdefault(self._key_of[text], deque()).append(text)

    def on_handed(self, who: str, shard: str, _epoch: int, records: tuple[tuple[str, str], ...]) -> None:
        """Compare a handler's record with the one that must be first."""
        for text, key in records:
            if self._key_of.get(text) != key:
                raise Broken(
                    f"{who} is given {text} of {shard} under key {key}, put under {self._key_of.get(text)}"
                )
            if text in self._arrived:
                continue
            waiting = self._waiting.get(key)
            if not waiting or waiting[0] != text:
                first = waiting[0] if waiting else "nothing"
                raise Broken(f"{who} is given {text} of {shard}, and {first} of its key comes next")
            waiting.popleft()
            self._arrived.add(text)

    def at_end(self) -> None:
        """Nothing is left on its way."""
        for key, waiting in self._waiting.items():
            if waiting:
                raise Broken(f"{waiting[0]} of key {key} was stored, and no handler was given it")


PRODUCERS = (AcknowledgedIsThere, KeysInOrder, RarelyTwice)
