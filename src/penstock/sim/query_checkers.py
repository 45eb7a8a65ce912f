"""What a Spark query guarantees, as checkers over the history: replays, once each, parents before children."""

from __future__ import annotations

from typing import Any

from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Create, Release, Take
from penstock.sim.checkers import Broken, Checker
from penstock.sim.history import History, name_of


class _Followed(Checker):
    """Follows whether a shard was one query's without a break, from the first attempt of a batch on."""

    def __init__(self, history: History, options: CoordinatorOptions) -> None:
        super().__init__(history, options)
        self._changes: dict[str, list[str]] = {}
        self._begun: dict[tuple[str, int, str], int] = {}

    def on_write(self, who: str, write: Any, before: Lease | None, after: Lease | None) -> None:
        """Note every change of hands that could cost the claim."""
        del before, after
        if isinstance(write, Take | Release | Create):
            self._changes.setdefault(write.key, []).append(name_of(who))

    def on_attempt(self, name: str, batch: int, key: str) -> None:
        """Remember how things stood when the batch was first begun."""
        self._begun.setdefault((name, batch, key), self._mark(key, name))

    def _mark(self, key: str, name: str) -> int:
        """Return a number that rises whenever the shard had another owner than `name`, or got a new row."""
        return sum(1 for other in self._changes.get(key, ()) if other != name)

    def was_kept(self, name: str, batch: int, key: str) -> bool:
        """Whether the shard was the query's alone since that batch was begun, and nobody damaged its row."""
        begun = self._begun.get((name, batch, key), self._mark(key, name))
        return begun == self._mark(key, name) and not self.history.is_forgiven(key)


class SameReplays(Checker):
    """Q1: every execution of a batch, until it is committed, holds the same records, whoever had the lease in between.

    The one exception is a row that was deleted or damaged: its claims are gone with it.
    """

    invariant = "Q1"

    def __init__(self, history: History, options: CoordinatorOptions) -> None:
        super().__init__(history, options)
        self._held: dict[tuple[str, int, str], tuple[int, ...]] = {}
        self._committed: dict[str, int] = {}

    def on_committed(self, name: str, batch: int, _results: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        """What ends later is the business of nobody."""
        self._committed[name] = batch

    def on_executed(self, name: str, batch: int, key: str, rows: tuple[int, ...]) -> None:
        """Compare with the first execution."""
        first = self._held.setdefault((name, batch, key), rows)
        is_late = batch <= self._committed.get(name, -1)
        if rows != first and not is_late and not self.history.is_forgiven(key):
            raise Broken(f"batch {batch} of {name} held {first} of {key}, and now {rows}")


class OnceInQuery(_Followed):
    """Q2: a query's batches hold a record once, as long as its shard stays the query's."""

    invariant = "Q2"

    def __init__(self, history: History, options: CoordinatorOptions) -> None:
        super().__init__(history, options)
        self._seen: dict[tuple[str, str, int], int] = {}

    def on_committed(self, name: str, batch: int, results: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        """Look at every record."""
        for key, rows in results:
            for row in rows:
                before = self._seen.setdefault((name, key, row), batch)
                if before != batch and self.was_kept(name, before, key):
                    raise Broken(f"record {row} of {key} is in batches {before} and {batch} of {name}")


class ParentsInEarlierBatches(Checker):
    """Q3: a child's first record comes in a later batch than its parents' last one."""

    invariant = "Q3"

    def __init__(self, history: History, options: CoordinatorOptions) -> None:
        super().__init__(history, options)
        self._last: dict[tuple[str, str], int] = {}
        self._first: dict[tuple[str, str], int] = {}

    def on_committed(self, name: str, batch: int, results: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        """Look at the families of what a batch held."""
        held = [key for key, rows in results if rows and not self.history.is_forgiven(key)]
        for key in held:
            self._last[name, key] = batch
            self._first.setdefault((name, key), batch)
        for key in held:
            for parent in self.history.shards[key].parents:
                if self._last.get((name, parent), -1) >= self._first[name, key]:
                    raise Broken(f"batch {batch} of {name} holds records of {key} and of its parent {parent}")
            for child in self.history.shards[key].children:
                if (name, child) in self._first and not self.history.is_forgiven(child):
                    raise Broken(f"batch {batch} of {name} holds records of {key} after its child {child}")


QUERIES = (SameReplays, OnceInQuery, ParentsInEarlierBatches)
