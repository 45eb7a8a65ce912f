"""What must hold when several queries and workers share an application: each check takes a history and returns what is wrong.

The order of events comes from the lease table's change stream: every row as every write left it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import checks
from checks import History, differing_replays, miscounted_batches

from penstock.core.leases.lease import Lease
from penstock.core.position import Position, at_record


@dataclass(frozen=True)
class Taken:
    """A KCL worker took a lease; `counter` is what it wrote."""

    shard: str
    owner: str | None
    counter: int


@dataclass(frozen=True)
class Began:
    """A worker began to read a shard behind a position that it was told; what every worker with a lifecycle can note."""

    shard: str
    position: Position


@dataclass(frozen=True)
class Processed:
    """A worker processed one record."""

    shard: str
    sequence_number: int
    sub_sequence_number: int
    key: str
    data: str


@dataclass
class CompanyHistory:
    """A run of several queries and workers.

    Attributes:
        put: (key, data) in the order in which they were put.
        queries: By worker id, the rows and executions of each query.
        workers: By worker id, what each worker did, in its order: what it took or began, and what it processed.
        log: (shard, its row) after every write on the lease table; None where the row was deleted.
    """

    put: list[tuple[str, str]] = field(default_factory=list)
    queries: dict[str, History] = field(default_factory=dict)
    workers: dict[str, list[Taken | Began | Processed]] = field(default_factory=dict)
    log: list[tuple[str, Lease | None]] = field(default_factory=list)

    def rows_of(self, shard):
        """Return (place in the log, row) of each write on one lease."""
        return [(at, row) for at, (key, row) in enumerate(self.log) if key == shard]


def place(record):
    return at_record(str(record.sequence_number), record.sub_sequence_number)


def processed(history):
    """Everything that a query or a worker has in its output, once for each time."""
    yield from (row for query in history.queries.values() for row in query.rows)
    yield from (each for did in history.workers.values() for each in did if isinstance(each, Processed))


def takeovers(history, shard):
    """Return (place in the log, checkpoint, reader) of each time that somebody began to read a shard.

    That is when the reader becomes another one, and when a lease is taken by its counter. The request of a hand-over names
    the next owner too, but it leaves the counter, and the old owner reads on.
    """
    found, before = [], Lease(shard)
    for at, row in history.rows_of(shard):
        now = row or Lease(shard)
        has_new_reader = now.reader is not None and now.reader != before.reader
        is_taken = now.owner not in (None, before.owner) and now.counter != before.counter
        if has_new_reader or is_taken:
            found.append((at, now.checkpoint, now.reader))
        before = now
    for name, did in history.workers.items():
        # A KCL worker that lost its lease to its own slowness takes it again under the same name.
        again = {each.counter for each in did if isinstance(each, Taken) and each.owner == name}
        for at, row in history.rows_of(shard):
            if row is not None and row.owner == name and row.counter in again:
                taken = Taken(shard, name, row.counter)
                if taken in did and (at, row.checkpoint, name) not in found:
                    found.append((at, row.checkpoint, name))
    return sorted(found, key=lambda each: each[0])


def differing_executions(history):
    """(query, batch) of which two executions held different rows."""
    return [(name, batch) for name, query in history.queries.items() for batch in differing_replays(query)]


def miscounted(history):
    """(query, batch) that holds another number of rows than the first action on it saw."""
    return [(name, batch) for name, query in history.queries.items() for batch in miscounted_batches(query)]


def nowhere(history):
    """Records that were put and that nobody processed."""
    return sorted(set(history.put) - {(each.key, each.data) for each in processed(history)})


def invented(history):
    """Records that somebody processed and that nobody put."""
    return sorted({(each.key, each.data) for each in processed(history)} - set(history.put))


def starts_of(history, shard):
    """Return the position of each time that somebody began to read a shard: as it was told, or as the log has it."""
    told = {
        name: [each.position for each in did if isinstance(each, Began) and each.shard == shard]
        for name, did in history.workers.items()
        if any(isinstance(each, Began) for each in did)
    }
    logged = [checkpoint for _, checkpoint, reader in takeovers(history, shard) if reader not in told]
    return logged + [position for positions in told.values() for position in positions]


def too_often(history):
    """Records that were processed more often than readers began before them.

    Each takeover may repeat what lies behind the checkpoint of that moment, once; nothing else may repeat anything.
    """
    counts = Counter((each.shard, place(each)) for each in processed(history))
    starts = {shard: starts_of(history, shard) for shard in {shard for shard, _ in counts}}
    return sorted(
        (shard, str(position), count)
        for (shard, position), count in counts.items()
        if count > sum(start < position for start in starts[shard])
    )


def stretches_of_query(history, name):
    """Return each list of a query's rows between two takeovers of their shard."""
    by_shard = defaultdict(lambda: defaultdict(list))
    for row in history.queries[name].rows:
        by_shard[row.shard][row.batch].append(row)
    for shard, batches in by_shard.items():
        claims = list(claims_of(history, shard, name))
        begun = [at for at, _, _ in takeovers(history, shard)]
        stretch, last = [], None
        for _, rows in sorted(batches.items()):
            rows.sort(key=place)
            first, end = place(rows[0]), place(rows[-1])
            at = next(
                (at for at, low, high in claims if low < first and end <= high and at > (last or -1)), None
            )
            if last is None or at is None or any(last < each <= at for each in begun):
                yield stretch
                stretch = []
            stretch += rows
            last = at
        yield stretch


def claims_of(history, shard, worker):
    """Return (place in the log, start, end) of each claim of a query that holds something."""
    before = None
    for at, row in history.rows_of(shard):
        claim = None if row is None else row.claim_of(worker)
        if claim is not None and claim.identity != before and claim.start < claim.end:
            before = claim.identity
            yield at, claim.start, claim.end


def stretches_of_worker(did):
    """Return each list of records that a worker processed between taking a lease and taking it again."""
    running = defaultdict(list)
    for each in did:
        if isinstance(each, Taken | Began):
            yield running.pop(each.shard, [])
        else:
            running[each.shard].append(each)
    yield from running.values()


def out_of_order(history):
    """(who, key, data, next data) where an owner's stretch skips, repeats or reorders a record of a key."""
    found = []
    stretches = [(name, stretch) for name in history.queries for stretch in stretches_of_query(history, name)]
    stretches += [(name, each) for name, did in history.workers.items() for each in stretches_of_worker(did)]
    for name, stretch in stretches:
        by_key = defaultdict(list)
        for record in stretch:
            by_key[record.key].append(record.data)
        for key, datas in by_key.items():
            numbers = [int(data.rpartition("/")[2]) for data in datas]
            found += [
                (name, key, f"{one} then {other}") for one, other in pairwise(numbers) if other != one + 1
            ]
    return found


def unclaimed(history):
    """(query, shard, batch) whose rows no claim of that query covers."""
    found = []
    for name, query in history.queries.items():
        spans = defaultdict(set)
        for row in query.rows:
            spans[row.shard, row.batch].add(place(row))
        for (shard, batch), places in spans.items():
            low, high = min(places), max(places)
            if not any(start < low and high <= end for _, start, end in claims_of(history, shard, name)):
                found.append((name, shard, batch))
    return found


def children_before_parents(history):
    """Shards in which something was done while the lease of a parent was not at its end."""
    now, found = {}, set()
    for shard, row in history.log:
        now[shard] = row
        if row is not None and is_begun(row):
            parents = [now.get(parent) for parent in row.parents]
            if any(parent is not None and not parent.is_ended for parent in parents):
                found.add(shard)
    return sorted(found)


def is_begun(row):
    return row.checkpoint.is_record or any(claim.start < claim.end for claim in row.claims)


CHECKS = (
    differing_executions,
    miscounted,
    nowhere,
    invented,
    too_often,
    out_of_order,
    unclaimed,
    children_before_parents,
)


def everything_wrong(history):
    """Return each check that found something, with the first few of it."""
    return checks.everything_wrong(history, CHECKS)
