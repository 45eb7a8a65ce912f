"""Drive one coordinator by hand over a lease table in memory."""

from penstock.core.hash_key import HASH_KEY_MAX, HashRange
from penstock.core.leases.coordinator import Coordinator
from penstock.core.leases.coordinator_effects import (
    EnsureTable,
    FetchLease,
    ListShards,
    Report,
    ScanTable,
    WriteLease,
)
from penstock.core.leases.coordinator_events import (
    LeaseFetched,
    ListingDone,
    NotDone,
    Problem,
    ScanDone,
    TableReady,
    Tick,
    WriteDone,
)
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Applied
from penstock.core.position import TRIM_HORIZON
from penstock.core.starting import StartingPosition

WHOLE = HashRange(0, HASH_KEY_MAX)
LEFT = HashRange(0, 99)
RIGHT = HashRange(100, HASH_KEY_MAX)


class Table:
    """The lease table, for tests that are about the machine and not about writes."""

    def __init__(self, *leases):
        self.rows = {lease.key: lease for lease in leases}

    def write(self, write):
        outcome = apply_write(self.rows.get(write.key), write)
        if isinstance(outcome, Applied):
            if outcome.lease is None:
                del self.rows[write.key]
            else:
                self.rows[write.key] = outcome.lease
        return outcome


class Bench:
    """One coordinator, driven by hand; `run` answers its calls from a table until nothing is left to do."""

    def __init__(self, *leases, worker="me", now=0.0, run_name="", **options):
        self.options = CoordinatorOptions(**{"start": StartingPosition(default=TRIM_HORIZON), **options})
        self.machine = Coordinator(worker, self.options, run_name)
        self.table = Table(*leases)
        self.now = now
        self.seen = []
        self.slow = ()  # kinds of writes, and ListShards, that are not answered
        self.listing = ()
        self.damaged = {}  # rows that cannot be read, with why

    def feed(self, event):
        effects = self.machine.handle(event, self.now, 0.5)
        self.seen += effects
        return effects

    def run(self, event):
        """Feed an event, and answer every call that follows; gives all effects in order."""
        begin = len(self.seen)
        queue = list(self.feed(event))
        while queue:
            effect = queue.pop(0)
            answer = self.answer(effect)
            if answer is not None:
                queue += self.feed(answer)
        return self.seen[begin:]

    def answer(self, effect):
        match effect:
            case EnsureTable():
                return TableReady()
            case ScanTable(part):
                rows = [
                    row
                    for key, row in self.table.rows.items()
                    if key not in self.damaged and (part is None or part.holds(key))
                ]
                return ScanDone(tuple(rows), tuple(self.damaged.items()), None, part)
            case WriteLease(write_id, write) if not isinstance(write, self.slow):
                is_damaged = write.key in self.damaged
                outcome = NotDone(Problem.REFUSED, "unreadable") if is_damaged else self.table.write(write)
                return WriteDone(write_id, write, outcome)
            case FetchLease(key):
                return LeaseFetched(key, self.table.rows.get(key))
            case ListShards(purpose) if ListShards not in self.slow:
                return ListingDone(purpose, self.listing, 1000)
        return None

    def start(self):
        return self.run(Tick())

    def at(self, now):
        """Advance the time, with all the ticks that the machine asks for."""
        begin = len(self.seen)
        while self.machine.next_wake_s <= now:
            self.now = max(self.now, self.machine.next_wake_s)
            self.run(Tick())
        self.now = now
        self.run(Tick())
        return self.seen[begin:]

    def writes(self, kind):
        return [
            effect.write
            for effect in self.seen
            if isinstance(effect, WriteLease) and isinstance(effect.write, kind)
        ]

    def reports(self, topic):
        return [effect for effect in self.seen if isinstance(effect, Report) and effect.topic is topic]

    def of(self, kind):
        return [effect for effect in self.seen if isinstance(effect, kind)]
