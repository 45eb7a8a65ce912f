"""A fleet of any size in virtual time: the production coordinator of every worker on one lease table, and its cost.

The seeded simulator (`penstock_sim.world`) looks for broken invariants in small fleets with every fault. This one counts:
read and write units of DynamoDB, moves, and for how long a shard has no reader. A worker is a coordinator and a set of
readers that take a moment to stop; a call takes a few milliseconds, and the service may refuse some.

Rows are immutable and shared: a thousand workers' views of ten thousand leases are one set of rows and their ages.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct, field

from penstock.core.leases import coordinator_effects as effects
from penstock.core.leases import coordinator_events as events
from penstock.core.leases.coordinator import Coordinator
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.lease import Lease, TablePart, number_of_part
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Applied, LeaseWrite, Outcome, Take
from penstock.core.shard import ChildShard, Shard
from penstock_sim.table_units import get_units, row_bytes, scan_units, write_units

_LATENCY_MIN_S: Final = 0.003  # of a call, there and back
_LATENCY_MAX_S: Final = 0.015
_FINISHING_S: Final = 0.2  # a reader needs so long to stop
_DRAINING_MAX_S: Final = 2.0  # a reader reaches the end of a closed shard within so long
_HAIR_S: Final = 1e-6


class FleetCosts(Struct):
    """The cost of a fleet, second by second, and the history of its shards."""

    reads: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # read units by second
    writes: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # write units by second
    moves: list[float] = field(default_factory=list)  # times at which a shard went from one reader to another
    # When a shard began to be unread, for how long it was, and which it was; a shard that is not read yet is not here.
    gaps: list[tuple[float, float, str]] = field(default_factory=list)


class Fleet:
    """Workers, their time, and the table.

    Args:
        options: As for every coordinator.
    """

    def __init__(self, options: CoordinatorOptions, seed: int = 1) -> None:
        self.options = options
        self.chance = random.Random(seed)
        self.now = 0.0
        self.costs = FleetCosts()
        self.rows: dict[str, Lease] = {}
        self.row_count_hint = 0
        self.workers: dict[str, FleetWorker] = {}
        self.shards: dict[str, Shard] = {}
        self.children: dict[str, tuple[ChildShard, ...]] = {}  # of closed shards
        self.refused_share = 0.0
        self.event_count = 0
        self._bytes: dict[str, int] = {}
        self._parts: dict[int, list[dict[str, None]]] = {}
        self._readers: dict[str, int] = {}
        self._last_reader: dict[str, str] = {}
        self._unread_since_s: dict[str, float] = {}
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    # --- time -----------------------------------------------------------------------------------------

    def at(self, at_s: float, action: Callable[..., None], *args: Any) -> None:
        self.event_count += 1
        heapq.heappush(self._heap, (at_s, self.event_count, action, args))

    def run_until(self, until_s: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now, _, action, args = heapq.heappop(heap)
            action(*args)
        self.now = until_s

    def latency_s(self) -> float:
        """Draw half of the time that a call takes."""
        return (_LATENCY_MIN_S + (_LATENCY_MAX_S - _LATENCY_MIN_S) * self.chance.random()) / 2

    # --- workers --------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        self.workers[name] = FleetWorker(self, name)
        self.workers[name].feed(events.Tick())

    def kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.is_alive = False
        for key in list(worker.readers):
            worker.end_reader(key)

    def stop(self, name: str) -> None:
        self.workers[name].feed(events.StopRequested())

    def counts(self) -> list[int]:
        """Return how many shards each worker reads, most first."""
        return sorted((len(worker.readers) for worker in self.workers.values()), reverse=True)

    # --- who reads ------------------------------------------------------------------------------------

    @property
    def unread(self) -> int:
        return len(self._unread_since_s)

    def oldest_unread_s(self) -> float:
        """Return for how long a shard has been unread by now."""
        return self.now - min(self._unread_since_s.values(), default=self.now)

    def is_unread_since(self, since_s: float) -> bool:
        """Whether a shard has not been read from that moment on."""
        return min(self._unread_since_s.values(), default=self.now + 1) <= since_s

    def on_reader_started(self, key: str, worker: str) -> None:
        """Add a reader of a shard, and record how long the shard was unread."""
        self._readers[key] = self._readers.get(key, 0) + 1
        since_s = self._unread_since_s.pop(key, None)
        if since_s is not None:
            self.costs.gaps.append((since_s, self.now - since_s, key))
        before = self._last_reader.get(key)
        if before is not None and before != worker:
            self.costs.moves.append(self.now)
        self._last_reader[key] = worker

    def on_reader_ended(self, key: str) -> None:
        """Remove a reader of a shard; without readers, an unfinished shard counts as unread from now on."""
        self._readers[key] -= 1
        row = self.rows.get(key)
        if not self._readers[key] and row is not None and not row.is_ended:
            self._unread_since_s[key] = self.now

    def on_drained(self, key: str) -> None:
        """Record that a closed shard was read to its end: it needs no reader any more."""
        self._unread_since_s.pop(key, None)

    # --- the stream -----------------------------------------------------------------------------------

    def split(self, key: str, children: Sequence[ChildShard]) -> None:
        """Close a shard; its reader reaches its end."""
        self.children[key] = tuple(children)
        for child in children:
            self.shards[child.shard_id] = Shard(child.shard_id, child.hash_range, child.parents)
        for worker in self.workers.values():
            worker.drain_later(key)

    # --- the table ------------------------------------------------------------------------------------

    def put(self, row: Lease) -> None:
        key = row.key
        before = self.rows.get(key)
        self.rows[key] = row
        self._bytes[key] = row_bytes(row)
        if before is None:
            for count, parts in self._parts.items():
                parts[number_of_part(key, count)][key] = None
            if not row.parents and not self._readers.get(key):
                self._unread_since_s[key] = self.now
        if row.is_ended:
            self._unread_since_s.pop(key, None)
            self._free_children(key)

    def _free_children(self, parent: str) -> None:
        for child in self.children.get(parent, ()):
            key = child.shard_id
            ended = [self.rows[name].is_ended for name in child.parents if name in self.rows]
            if key in self.rows and all(ended) and not self._readers.get(key):
                self._unread_since_s.setdefault(key, self.now)

    def _delete(self, key: str) -> None:
        del self.rows[key], self._bytes[key]
        for count, parts in self._parts.items():
            del parts[number_of_part(key, count)][key]

    def _keys(self, part: TablePart | None) -> Sequence[str] | dict[str, None]:
        if part is None or part.is_whole_table:
            return list(self.rows)
        if part.count not in self._parts:
            found: list[dict[str, None]] = [{} for _ in range(part.count)]
            for key in self.rows:
                found[number_of_part(key, part.count)][key] = None
            self._parts[part.count] = found
        return self._parts[part.count][part.number]

    def scan(self, part: TablePart | None) -> tuple[Lease, ...]:
        keys = self._keys(part)
        size = sum(map(self._bytes.__getitem__, keys))
        is_consistent = part is None and self.options.policy is not BalancePolicy.KCL2  # Java's scans are not
        self.costs.reads[int(self.now)] += scan_units(size, is_consistent=is_consistent)
        return tuple(map(self.rows.__getitem__, keys))

    def fetch(self, key: str) -> Lease | None:
        self.costs.reads[int(self.now)] += get_units(self._bytes.get(key, 0))
        return self.rows.get(key)

    def write(self, write: LeaseWrite) -> Outcome:
        key = write.key
        before = self.rows.get(key)
        if isinstance(write, Take):
            self.fetch(key)  # the adapter reads the row before a take, to get its owner
        outcome = apply_write(before, write)
        size = self._bytes.get(key, 0)
        if isinstance(outcome, Applied):
            if outcome.lease is None:
                self._delete(key)
            else:
                self.put(outcome.lease)
        self.costs.writes[int(self.now)] += write_units(max(size, self._bytes.get(key, 0)))
        return outcome

    def is_refused(self) -> bool:
        return bool(self.refused_share) and self.chance.random() < self.refused_share


class FleetWorker:
    """One process: the production coordinator, and readers that read nothing.

    Args:
        options: Its coordinator's, if they are not the fleet's.
    """

    def __init__(self, fleet: Fleet, name: str, options: CoordinatorOptions | None = None) -> None:
        self.fleet = fleet
        self.name = name
        self.is_alive = True
        self.readers: dict[str, int] = {}
        self.machine = Coordinator(name, options or fleet.options)
        self._wake_s: float | None = None

    def feed(self, event: events.Event) -> None:
        """Feed the coordinator an event, and begin the effects that it returns."""
        if not self.is_alive:
            return
        fleet = self.fleet
        for effect in self.machine.handle(event, fleet.now, fleet.chance.random()):
            self._do(effect)
        wake_s = self.machine.next_wake_s
        if self.is_alive and (self._wake_s is None or wake_s < self._wake_s) and wake_s != float("inf"):
            self._wake_s = wake_s
            fleet.at(max(wake_s, fleet.now) + _HAIR_S, self._tick, wake_s)

    def _tick(self, wake_s: float) -> None:
        if wake_s == self._wake_s:
            self._wake_s = None
            self.feed(events.Tick())

    # --- calls ----------------------------------------------------------------------------------------

    def _call(self, serve: Callable[[], events.Event]) -> None:
        self.fleet.at(self.fleet.now + self.fleet.latency_s(), self._serve, serve)

    def _serve(self, serve: Callable[[], events.Event]) -> None:
        answer = serve()
        self.fleet.at(self.fleet.now + self.fleet.latency_s(), self.feed, answer)

    def _do(self, effect: effects.Effect) -> None:
        fleet = self.fleet
        match effect:
            case effects.WriteLease():
                self._call(lambda: self._write(effect))
            case effects.ScanTable(part):
                began_s = fleet.now
                self._call(lambda: self._scan(part, began_s))
            case effects.FetchLease(key):
                self._call(lambda: self._fetch(key))
            case effects.EnsureTable():
                self._call(lambda: events.TableReady(fleet.row_count_hint))
            case effects.ListShards(purpose):
                moment_ms = int(fleet.now * 1000)
                self._call(lambda: events.ListingDone(purpose, tuple(fleet.shards.values()), moment_ms))
            case effects.StartReader(key, epoch):
                self.readers[key] = epoch
                fleet.on_reader_started(key, self.name)
                self.drain_later(key)
            case effects.StopReader(key, epoch):
                fleet.at(fleet.now + _FINISHING_S, self._stopped, key, epoch)
            case effects.AuditReaders():
                self.feed(events.ReadersFound(frozenset(self.readers.items())))
            case effects.Stopped():
                self.is_alive = False
                fleet.workers.pop(self.name, None)
            case _:
                pass

    def _write(self, effect: effects.WriteLease) -> events.Event:
        if self.fleet.is_refused():
            return events.WriteDone(effect.write_id, effect.write, events.NotDone(events.Problem.THROTTLED))
        return events.WriteDone(effect.write_id, effect.write, self.fleet.write(effect.write))

    def _scan(self, part: TablePart | None, began_s: float) -> events.Event:
        if self.fleet.is_refused():
            return events.CallFailed(events.LeaseCall.SCAN, events.Problem.THROTTLED)
        return events.ScanDone(self.fleet.scan(part), (), began_s, part)

    def _fetch(self, key: str) -> events.Event:
        if self.fleet.is_refused():
            return events.CallFailed(events.LeaseCall.FETCH, events.Problem.THROTTLED, key=key)
        return events.LeaseFetched(key, self.fleet.fetch(key))

    # --- readers --------------------------------------------------------------------------------------

    def end_reader(self, key: str) -> None:
        del self.readers[key]
        self.fleet.on_reader_ended(key)

    def _stopped(self, key: str, epoch: int) -> None:
        if self.readers.get(key) == epoch:
            self.end_reader(key)
            self.feed(events.ReaderStopped(key, epoch, None))

    def drain_later(self, key: str) -> None:
        epoch = self.readers.get(key)
        if epoch is not None and key in self.fleet.children:
            fleet = self.fleet
            fleet.at(fleet.now + _DRAINING_MAX_S * fleet.chance.random(), self._drained, key, epoch)

    def _drained(self, key: str, epoch: int) -> None:
        if self.readers.get(key) == epoch:
            self.end_reader(key)
            self.fleet.on_drained(key)
            self.feed(events.ShardDrained(key, epoch, self.fleet.children[key]))
