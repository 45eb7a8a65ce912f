"""What a Spark query guarantees, as checkers over the history: replays, once each, parents before children."""

from __future__ import annotations

from typing import Any

from penstock.core.coordination import CoordinatorOptions
from penstock.core.lease import Create, Lease, Release, Take
from penstock.sim.checkers import Broken, Checker
from penstock.sim.facts import Facts, name_of


class _Followed(Checker):
    """Follows since when a shard has been one query's without a break."""

    def __init__(self, facts: Facts, options: CoordinatorOptions) -> None:
        super().__init__(facts, options)
        self._changes: dict[str, list[str]] = {}

    def on_write(self, who: str, write: Any, before: Lease | None, after: Lease | None) -> None:
        """Note every change of hands that could cost the claim."""
        del before, after
        if isinstance(write, Take | Release | Create):
            self._changes.setdefault(write.key, []).append(name_of(who))

    def mark(self, key: str, name: str) -> int:
        """Give a number that rises whenever the shard was in other hands than `name`'s, or came anew."""
        return sum(1 for other in self._changes.get(key, ()) if other != name)


class SameReplays(_Followed):
    """Q1: every execution of a batch holds the same records of a shard, as long as the shard stays the query's."""

    invariant = "Q1"

    def __init__(self, facts: Facts, options: CoordinatorOptions) -> None:
        super().__init__(facts, options)
        self._held: dict[tuple[str, int, str], tuple[tuple[int, ...], int]] = {}

    def on_executed(self, name: str, batch: int, key: str, rows: tuple[int, ...]) -> None:
        """Compare with the first execution."""
        mark = self.mark(key, name)
        first, at_mark = self._held.setdefault((name, batch, key), (rows, mark))
        if rows != first and at_mark == mark and not self.facts.is_forgiven(key):
            raise Broken(f"batch {batch} of {name} held {first} of {key}, and now {rows}")


class OnceInQuery(_Followed):
    """Q2: a query's batches hold a record once, as long as its shard stays the query's."""

    invariant = "Q2"

    def __init__(self, facts: Facts, options: CoordinatorOptions) -> None:
        super().__init__(facts, options)
        self._seen: dict[tuple[str, str, int], tuple[int, int]] = {}

    def on_committed(self, name: str, batch: int, results: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        """Look at every record."""
        for key, rows in results:
            mark = self.mark(key, name)
            for row in rows:
                before, at_mark = self._seen.setdefault((name, key, row), (batch, mark))
                if before != batch and at_mark == mark and not self.facts.is_forgiven(key):
                    raise Broken(f"record {row} of {key} is in batches {before} and {batch} of {name}")


class ParentsInEarlierBatches(Checker):
    """Q3: a child's first record comes in a later batch than its parents' last one."""

    invariant = "Q3"

    def __init__(self, facts: Facts, options: CoordinatorOptions) -> None:
        super().__init__(facts, options)
        self._last: dict[tuple[str, str], int] = {}
        self._first: dict[tuple[str, str], int] = {}

    def on_committed(self, name: str, batch: int, results: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        """Look at the families of what a batch held."""
        held = [key for key, rows in results if rows and not self.facts.is_forgiven(key)]
        for key in held:
            self._last[name, key] = batch
            self._first.setdefault((name, key), batch)
        for key in held:
            for parent in self.facts.shards[key].parents:
                if self._last.get((name, parent), -1) >= self._first[name, key]:
                    raise Broken(f"batch {batch} of {name} holds records of {key} and of its parent {parent}")
            for child in self.facts.shards[key].children:
                if (name, child) in self._first and not self.facts.is_forgiven(child):
                    raise Broken(f"batch {batch} of {name} holds records of {key} after its child {child}")


QUERIES = (SameReplays, OnceInQuery, ParentsInEarlierBatches)
