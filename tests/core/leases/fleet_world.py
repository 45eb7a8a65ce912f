"""Run a fleet in virtual time: real coordinators and models of Java KCL 2.x workers on one lease table, without faults.

The workers and their table are those of `penstock_sim.fleet`. Here each worker has options of its own, and moves are counted.
"""

from msgspec.structs import replace

from penstock.core.hash_key import HASH_KEY_MAX, HashRange
from penstock.core.leases.coordinator_events import Tick
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.lease import Lease
from penstock.core.position import TRIM_HORIZON
from penstock.core.starting import StartingPosition
from penstock_sim.fleet import Fleet, FleetWorker


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


class World(Fleet):
    """Workers, their time, and the table."""

    def __init__(self, *rows, seed=1):
        super().__init__(CoordinatorOptions(start=StartingPosition(default=TRIM_HORIZON)), seed)
        self.moves = []  # (seconds, lease, from, to): changes of who reads
        for row in rows:
            super().put(row)

    def later(self, delay_s, action, *args):
        self.at(self.now + delay_s, action, *args)

    def put(self, row):
        before = self.rows.get(row.key)
        super().put(row)
        old = None if before is None else before.reader
        if row.reader is not None and row.reader != old:
            self.moves.append((round(self.now, 3), row.key, old, row.reader))

    def start(self, name, **options):
        self.workers[name] = FleetWorker(self, name, replace(self.options, **options))
        self.workers[name].feed(Tick())

    def start_java(self, name):
        self.workers[name] = Java(self, name)

    def kill(self, name):
        self.workers.pop(name).is_alive = False

    def loads(self):
        """How many leases each living worker really reads."""
        return {name: len(worker.readers) for name, worker in sorted(self.workers.items())}

    def unread_keys(self):
        read = {key for worker in self.workers.values() for key in worker.readers}
        return sorted(set(self.rows) - read)

    def when(self, condition, limit_s, step_s=0.25):
        """Advance the time until the condition is met; return the seconds that it took, or fail."""
        began_s = self.now
        while not condition():
            assert self.now < began_s + limit_s, (
                f"not within {limit_s} s: {self.loads()}, {self.unread_keys()}"
            )
            self.run_until(self.now + step_s)
        return self.now - began_s


class Java:
    """A KCL 2.x worker that renews its leases by the counter alone."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.is_alive = True
        self.readers = {key: row.counter for key, row in world.rows.items() if row.owner == name}
        world.later(world.chance.random(), self._renew)

    def take(self, key):
        """KCL 2.x's take: owner and counter, and the reader's field stays as it was."""
        row = self.world.rows[key]
        self.readers[key] = row.counter + 1
        self.world.put(replace(row, owner=self.name, counter=row.counter + 1))

    def _renew(self):
        if not self.is_alive:
            return
        for key, counter in list(self.readers.items()):
            row = self.world.rows.get(key)
            if row is None or row.counter != counter:
                del self.readers[key]
            else:
                self.readers[key] = counter + 1
                self.world.put(replace(row, counter=counter + 1))
        self.world.later(3.3, self._renew)
