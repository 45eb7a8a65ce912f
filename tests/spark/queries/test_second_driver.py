"""A second driver on one checkpoint location: identical rows if a claim exists, an error otherwise, never fewer rows.

The reader is driven without Spark. The first driver is paused like a stopped machine: its threads are paused too.
"""

from __future__ import annotations

import random

import pytest

from penstock.core.batches.claims import PAST_CLAIMS_MAX
from penstock.errors import AnotherDriver
from spark_support import numbered, put

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"
QUERY_OPTIONS = {"leaseDuration": "30s"}


def beside(server, query, first):
    """A second driver on the same checkpoint location."""
    second = query(stream=first.stream)
    second.done = first.done
    return second


def key_of(client, q, shard):
    """A partition key whose records go to a shard."""
    for number in range(100):
        answer = client.put_record(StreamName=q.stream, PartitionKey=f"p{number}", Data=b"0")
        if answer["ShardId"] == shard:
            return f"p{number}"
    raise AssertionError(shard)


def on_key(key, start, end):
    return [(key, f"{number:08d}") for number in range(start, end)]


def attempt(q, end):
    """Execute a batch; gives its rows, or None where it failed because another driver is there."""
    try:
        return q.execute(end)
    except AnotherDriver:
        return None


@pytest.mark.parametrize("behind", [1, PAST_CLAIMS_MAX, PAST_CLAIMS_MAX + 1])
@pytest.mark.parametrize("pauses", ["before its first execution", "between two executions"])
def test_a_paused_driver_repeats_a_known_claim_and_fails_without_one(server, query, client, pauses, behind):
    one = query()
    quiet = key_of(client, one, FIRST)
    busy = key_of(client, one, SECOND)
    one.next_batch()
    put(client, one.stream, on_key(quiet, 10, 20) + on_key(busy, 20, 30))
    end = one.next_plan()
    parts = {part.parts[0].shard_id: part for part in one.reader.partitions(one.done, end)}
    before = one.execute(end) if pauses == "between two executions" else None
    two = beside(server, query, one)
    put(client, one.stream, on_key(busy, 30, 40))
    replayed = two.execute(end)
    assert before in (None, replayed)
    two.commit(end, replayed)
    for begin in range(40, 40 + 10 * behind, 10):
        put(client, one.stream, on_key(busy, begin, begin + 10))
        assert two.next_batch()
    # The batches after it were in the busy shard only: the quiet one still has the batch's claim.
    assert one.read(parts[FIRST]) == [row for row in replayed if row[0] == FIRST]
    try:
        again = one.read(parts[SECOND])
    except AnotherDriver:
        again = None
    known = [row for row in replayed if row[0] == SECOND]
    assert again == (known if count_of_batches_in(two, SECOND, end) <= PAST_CLAIMS_MAX else None)
    two.drain()
    sent = 40 + 10 * behind
    assert sorted(row[3] for row in two.rows if row[3] >= 10) == list(range(10, sent))


def count_of_batches_in(q, shard, end):
    """How many batches behind one have claimed a shard."""
    claim = q.table.fetch(shard).claim_of(q.done["worker"])
    return claim.batch - end["batch"]


def test_a_paused_driver_that_plans_on_is_refused(server, query, client):
    one = query(shards=1)
    put(client, one.stream, numbered(0, 10))
    end = one.next_plan()
    rows = one.execute(end)
    two = beside(server, query, one)
    two.commit(end, two.execute(end))
    for begin in (10, 20):
        put(client, one.stream, numbered(begin, begin + 10))
        two.next_batch()
    one.commit(end, rows)
    with pytest.raises(AnotherDriver, match="this query is at batch 1"):
        one.plan()


def test_two_drivers_with_other_starts_of_one_batch_never_give_fewer_rows(server, query, client):
    one = query(shards=1)
    put(client, one.stream, numbered(0, 10))
    one.next_batch()
    two = beside(server, query, one)
    put(client, one.stream, numbered(10, 20))
    end_one = one.next_plan()
    put(client, one.stream, numbered(20, 30))
    end_two = two.next_plan()
    first = attempt(one, end_one)
    second = attempt(two, end_two)
    given = [rows for rows in (first, second) if rows is not None]
    assert given
    assert all(rows == given[0] for rows in given)
    assert [row[3] for row in given[0]] == list(range(10, 30))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_two_drivers_do_in_turn_no_batch_has_two_sets_of_rows(server, query, client, seed):
    chance = random.Random(seed)
    one = query(maxRecordsPerTrigger="8")
    put(client, one.stream, numbered(0, 20))
    one.next_batch()
    two = beside(server, query, one)
    two.rows = list(one.rows)
    pair = Pair(chance, one, two)
    for _ in range(24):
        pair.step()
    assert pair.held
    pair.finish()


class Pair:
    """Two drivers in turn, each until it is refused."""

    def __init__(self, chance, one, two):
        self.chance = chance
        self.drivers = {"one": one, "two": two}
        self.all = (one, two)
        self.planned = {}
        self.held = {}  # (batch, shard, start) -> the rows of every execution of it
        self.sent = 20

    def step(self):
        if self.chance.random() < 0.4:
            put(self.all[0].client, self.all[0].stream, numbered(self.sent, self.sent + 6))
            self.sent += 6
        if not self.drivers:
            return
        name = self.chance.choice(sorted(self.drivers))
        try:
            self._go_on(name, self.drivers[name])
        except AnotherDriver:
            del self.drivers[name]

    def _go_on(self, name, q):
        if name not in self.planned:
            end = q.plan()
            if end is not None:
                self.planned[name] = end
            return
        end = self.planned[name]
        rows = q.execute(end)
        for shard in end["limit"]["shards"]:
            mine = [row for row in rows if row[0] == shard]
            key = (end["batch"], shard, tuple(end["shards"][shard]))
            assert self.held.setdefault(key, mine) == mine
        if self.chance.random() < 0.6:
            q.commit(end, rows)
            del self.planned[name]

    def finish(self):
        """Start the query that got further again, and read the rest."""
        for q in self.all:
            q.die()
        last = max(self.all, key=lambda q: q.done["batch"])
        end = max(self.planned.values(), key=lambda end: end["batch"], default=None)
        if end is not None and end["batch"] > last.done["batch"]:
            last.commit(end, last.execute(end))
        last.drain()
        assert {number for q in self.all for number in q.numbers()} == set(range(self.sent))
