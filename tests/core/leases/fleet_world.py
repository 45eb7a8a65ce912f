"""Run a fleet in virtual time: real coordinators and models of Java KCL 2.x workers on one lease table, without faults.

The simulator (`penstock_sim`) has the faults. This module has fleets of any composition, and counts what moves.
"""

import heapq
import random

from msgspec.structs import replace

from penstock.core.hash_key import HASH_KEY_MAX, HashRange
from penstock.core.leases.coordinator import Coordinator
from penstock.core.leases.coordinator_effects import (
    AuditReaders,
    EnsureTable,
    FetchLease,
    ListShards,
    Report,
    ScanTable,
    StartReader,
    StopReader,
    WriteLease,
)
from penstock.core.leases.coordinator_events import (
    LeaseFetched,
    ListingDone,
    ReadersFound,
    ReaderStopped,
    ScanDone,
    TableReady,
    Tick,
    WriteDone,
)
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Applied
from penstock.core.position import TRIM_HORIZON
from penstock.core.starting import StartingPosition


def leases(count, owner=None, **more):
    """Leases that cover the hash range."""
    step = (HASH_KEY_MAX + 1) // count
    return [
        Lease(
            f"s{number:03}",
            counter=1,
            owner=owner,
            hash_range=HashRange(
                number * step, HASH_KEY_MAX if number == count - 1 else (number + 1) * step - 1
            ),
            **more,
        )
        for number in range(count)
    ]


class World:
    """Workers, their time, and the table."""

    def __init__(self, *rows, seed=1, latency_s=0.03):
        self.rows = {row.key: row for row in rows}
        self.now = 0.0
        self.chance = random.Random(seed)
        self.latency_s = latency_s
        self.workers = {}
        self.listing = ()
        self.moves = []  # (seconds, lease, from, to): changes of who reads
        self._events = []
        self._count = 0

    def later(self, delay_s, action, *args):
        self._count += 1
        heapq.heappush(self._events, (self.now + delay_s, self._count, action, args))

    def at(self, at_s, action, *args):
        self.later(at_s - self.now, action, *args)

    def run_until(self, until_s):
        while self._events and self._events[0][0] <= until_s:
            self.now, _, action, args = heapq.heappop(self._events)
            action(*args)
        self.now = until_s

    def scan(self, part):
        return tuple(row for row in self.rows.values() if part is None or part.holds(row.key))

    def write(self, write):
        before = self.rows.get(write.key)
        outcome = apply_write(before, write)
        if isinstance(outcome, Applied):
            if outcome.lease is None:
                del self.rows[write.key]
            else:
                self.put(outcome.lease)
        return outcome

    def put(self, row):
        before = self.rows.get(row.key)
        self.rows[row.key] = row
        old = None if before is None else before.reader
        if row.reader is not None and row.reader != old:
            self.moves.append((round(self.now, 3), row.key, old, row.reader))

    def start(self, name, **options):
        self.workers[name] = Penstock(self, name, **options)

    def start_java(self, name, **how):
        self.workers[name] = Java(self, name, **how)

    def kill(self, name):
        self.workers.pop(name).is_alive = False

    def counts(self, of=None):
        """How many leases each living worker really reads."""
        return {name: len(worker.reads()) for name, worker in sorted(self.workers.items())}

    def unread(self):
        read = set().union(*(worker.reads() for worker in self.workers.values()))
        return sorted(set(self.rows) - read)

    def when(self, condition, limit_s, step_s=0.25):
        """Advance the time until the condition is met; return the seconds that it took, or fail."""
        began_s = self.now
        while not condition():
            assert self.now < began_s + limit_s, f"not within {limit_s} s: {self.counts()}, {self.unread()}"
            self.run_until(self.now + step_s)
        return self.now - began_s


class Penstock:
    """A worker with the real coordinator."""

    def __init__(self, world, name, *, finishing_s=0.05, **options):
        self.world = world
        self.name = name
        self.is_alive = True
        self.finishing_s = finishing_s  # seconds that a reader needs to stop
        self.reports = []
        self.readers = {}
        self.machine = Coordinator(
            name, CoordinatorOptions(**{"start": StartingPosition(default=TRIM_HORIZON), **options})
        )
        self._wake_s = None
        self.feed(Tick())

    def reads(self):
        return set(self.readers)

    def feed(self, event):
        if not self.is_alive:
            return
        for effect in self.machine.handle(event, self.world.now, self.world.chance.random()):
            self._do(effect)
        wake_s = self.machine.next_wake_s
        if wake_s != self._wake_s:
            self._wake_s = wake_s
            self.world.at(max(wake_s, self.world.now) + 1e-6, self._tick, wake_s)

    def _tick(self, wake_s):
        if wake_s == self._wake_s:
            self._wake_s = None
            self.feed(Tick())

    def _call(self, serve):
        world = self.world
        world.later(world.latency_s * world.chance.random(), self._serve, serve)

    def _serve(self, serve):
        self.world.later(self.world.latency_s * self.world.chance.random(), self.feed, serve())

    def _do(self, effect):
        world = self.world
        match effect:
            case EnsureTable():
                self._call(TableReady)
            case ScanTable(part):
                began_s = world.now
                self._call(lambda: ScanDone(world.scan(part), (), began_s, part))
            case WriteLease(write_id, write):
                self._call(lambda: WriteDone(write_id, write, world.write(write)))
            case FetchLease(key):
                self._call(lambda: LeaseFetched(key, world.rows.get(key)))
            case ListShards(purpose):
                self._call(lambda: ListingDone(purpose, tuple(world.listing), 1000))
            case StartReader():
                self.readers[effect.key] = effect.epoch
            case StopReader(key, epoch):
                world.later(self.finishing_s, self._stopped, key, epoch)
            case AuditReaders():
                self.feed(ReadersFound(frozenset(self.readers.items())))
            case Report():
                self.reports.append(effect)

    def _stopped(self, key, epoch):
        if self.readers.get(key) == epoch and self.is_alive:
            del self.readers[key]
            self.feed(ReaderStopped(key, epoch, None))


class Java:
    """A KCL 2.x worker that renews its leases by the counter alone; with `takes` it also takes free ones."""

    def __init__(self, world, name, *, takes=False):
        self.world = world
        self.name = name
        self.is_alive = True
        self.takes = takes
        self.held = {key: row.counter for key, row in world.rows.items() if row.owner == name}
        world.later(world.chance.random(), self._renew)

    def reads(self):
        return set(self.held)

    def take(self, key):
        """KCL 2.x's take: owner and counter, and the reader's field stays as it was."""
        row = self.world.rows[key]
        self.held[key] = row.counter + 1
        self.world.put(replace(row, owner=self.name, counter=row.counter + 1))

    def _renew(self):
        if not self.is_alive:
            return
        for key, counter in list(self.held.items()):
            row = self.world.rows.get(key)
            if row is None or row.counter != counter:
                del self.held[key]
            else:
                self.held[key] = counter + 1
                self.world.put(replace(row, counter=counter + 1))
        if self.takes:
            for key, row in list(self.world.rows.items()):
                if row.owner is None:
                    self.take(key)
        self.world.later(3.3, self._renew)
