"""An older copy of the checkpoint location, or an emptied lease table: all records after the copy are read again, or named.

The reader is driven without Spark.
"""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from lease_hands import Hands
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import (
    Applied,
    Create,
    Delete,
    Take,
)
from penstock.core.leases.required_leases import plan_deletions
from penstock.core.position import at_record
from penstock.errors import AnotherDriver, DataLossError
from penstock.ports.lease_table import LeaseScan
from penstock.runtime.system_clock import SystemClock
from penstock.spark.driver.startup_checks import refuse_living_driver
from spark_support import numbered, put
from waiting import wait_until

HALF = str(2**127)
FIRST = "shardId-000000000000"
QUERY_OPTIONS = {"shards": 1, "leaseDuration": "2s"}


def restore(q, copy, *, kill=False):
    """Start the query again from an older copy of its checkpoint location."""
    if kill:
        q.die()
    else:
        q.reader.stop()
        q.reader = q.fresh()
    q.done, q.rows = copy, []


def split(q):
    q.client.split_shard(StreamName=q.stream, ShardToSplit=FIRST, NewStartingHashKey=HALF)


def ended(q):
    return [row for row in q.table.scan().leases if row.is_ended]


@pytest.mark.parametrize("kill", [True, False])
def test_everything_behind_the_copy_comes_again(query, client, kill):
    q = query()
    put(client, q.stream, numbered(0, 10))
    q.next_batch()
    copy = q.done
    for begin in (10, 20, 30):
        put(client, q.stream, numbered(begin, begin + 10))
        q.next_batch()
    q.drain()
    restore(q, copy, kill=kill)
    q.drain()
    assert set(q.numbers()) >= set(range(10, 40))
    assert len(q.numbers()) == len(set(q.numbers()))
    put(client, q.stream, numbered(40, 50))
    q.drain()
    assert set(q.numbers()) >= set(range(10, 50))


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("uncommitted", [False, True])
def test_everything_behind_the_copy_comes_again_across_a_split(query, client, uncommitted, cleared):
    q = query()
    put(client, q.stream, numbered(0, 10))
    q.next_batch()
    copy = q.done
    put(client, q.stream, numbered(10, 20))
    last = q.next_plan()
    q.commit(last, q.execute(last))
    put(client, q.stream, numbered(20, 25))
    split(q)
    put(client, q.stream, numbered(25, 40))
    q.drain()
    assert q.numbers() == list(range(40))
    wait_until(lambda: ended(q), "the parent to be ended")
    q.reader.stop()
    if cleared:  # as a Java KCL worker does
        row = q.table.fetch(FIRST)
        q.table.write(Delete(FIRST, row.counter, row.checkpoint))
    q.reader = q.fresh()
    q.rows, q.done = [], copy
    if uncommitted:
        rows = q.execute(last)
        q.commit(last, rows)
    q.drain()
    assert set(q.numbers()) >= set(range(10, 40))


@pytest.mark.parametrize("lost", ["claims", "leases"])
def test_a_copy_that_has_begun_the_children_does_not_read_their_parent_again(query, client, lost):
    q = query()
    put(client, q.stream, numbered(0, 10))
    q.next_batch()
    split(q)
    put(client, q.stream, numbered(10, 20))
    while len({row[0] for row in q.rows}) < 3:
        q.next_batch()
    copy = q.done
    put(client, q.stream, numbered(20, 40))
    q.drain()
    q.reader.stop()
    for row in q.table.scan().leases:
        if row.key == FIRST or lost == "leases":
            q.table.write(Delete(row.key, row.counter, row.checkpoint))
    q.reader = q.fresh()
    q.rows, q.done = [], copy
    q.plan()
    assert q.table.fetch(FIRST).is_ended
    q.drain()
    assert set(q.numbers()) >= set(range(20, 40))
    assert FIRST not in {row[0] for row in q.rows}


@pytest.mark.parametrize("uncommitted", [False, True])
def test_a_shard_that_another_worker_holds_is_named_and_the_others_come_again(
    server, query, client, caplog, uncommitted
):
    q = query(shards=2, leaseDuration="4s")
    put(client, q.stream, numbered(0, 20))
    q.next_batch()
    copy = q.done
    put(client, q.stream, numbered(20, 40))
    last = q.next_plan()
    q.commit(last, q.execute(last))
    put(client, q.stream, numbered(40, 60))
    q.drain()
    q.reader.stop()
    theirs = Hands(server, q, FIRST)
    theirs.take()
    places = {row[3]: row[0] for row in q.rows}
    q.reader = q.fresh()
    q.rows, q.done = [], copy
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        if uncommitted:
            rows = q.execute(last)
            q.commit(last, rows)
        q.drain()
    assert f"Shards {FIRST} are left" in caplog.text or f"shards {FIRST} are left" in caplog.text
    mine = {number for number in range(20, 60) if places[number] != FIRST}
    assert mine <= set(q.numbers())


def test_a_copy_from_before_a_split_names_children_that_another_worker_holds(server, query, client, caplog):
    """The parent was ended and its row is gone; its children are another worker's, so no row has a claim of the query."""
    q = query(leaseDuration="60s")
    put(client, q.stream, numbered(0, 10))
    q.next_batch()
    copy = q.done
    put(client, q.stream, numbered(10, 20))
    split(q)
    q.next_batch()
    put(client, q.stream, numbered(20, 40))
    wait_until(lambda: q.plan() is not None and ended(q), "the children")
    q.reader.stop()
    for key in (f"shardId-{number:012}" for number in (1, 2)):
        Hands(server, q, key).take()
    row = q.table.fetch(FIRST)
    q.table.write(Delete(FIRST, row.counter, row.checkpoint))
    q.reader = q.fresh()
    q.rows, q.done = [], copy
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        q.drain()
    assert set(q.numbers()) >= set(range(10, 20)) or f"the lease of shard {FIRST} is gone" in caplog.text


@pytest.mark.parametrize(("later", "repeated"), [(4, []), (5, list(range(10, 20)))])
def test_the_copys_last_batch_comes_again_where_five_batches_followed_it(query, client, later, repeated):
    q = query()
    for begin in (0, 10):
        put(client, q.stream, numbered(begin, begin + 10))
        q.next_batch()
    copy = q.done
    for begin in range(20, 20 + 10 * later, 10):
        put(client, q.stream, numbered(begin, begin + 10))
        q.next_batch()
    restore(q, copy)
    q.drain()
    assert q.numbers() == [*repeated, *range(20, 20 + 10 * later)]


def test_the_copys_last_batch_is_the_same_if_no_later_batch_read_the_shard(query, client):
    q = query(shards=2)
    put(client, q.stream, numbered(0, 20))
    q.next_batch()
    put(client, q.stream, numbered(20, 40))
    last = q.next_plan(FIRST, SECOND)
    before = q.done
    first = q.execute(last)
    q.commit(last, first)
    put(client, q.stream, [("k0", f"{number:08d}") for number in range(40, 50)])  # one of the two shards only
    q.drain()
    quiet = ({row[0] for row in first} - {row[0] for row in q.rows if row[3] >= 40}).pop()
    q.reader.stop()
    put(client, q.stream, numbered(50, 70))
    q.reader = q.fresh()
    q.done = before
    again = q.execute(last)
    assert [row for row in again if row[0] == quiet] == [row for row in first if row[0] == quiet]
    put(client, q.stream, numbered(70, 90))
    q.die()
    assert q.execute(last) == again
    q.commit(last, again)
    q.drain()
    assert set(q.numbers()) >= set(range(20, 90))


# --- a copy that is used beside the location ------------------------------------------------------------------


def beside(q, query):
    """A query that works from a copy of the checkpoint location."""
    other = query(stream=q.stream)
    other.done = q.done
    return other


def on_shards(q, client):
    """Return for each of two shards a function that puts a range of records there."""
    hashes = {
        shard["ShardId"]: shard["HashKeyRange"]["StartingHashKey"]
        for shard in client.list_shards(StreamName=q.stream)["Shards"]
    }

    def put_to(shard, numbers):
        for number in numbers:
            client.put_record(
                StreamName=q.stream,
                PartitionKey="k",
                ExplicitHashKey=hashes[shard],
                Data=f"{number:08d}".encode(),
            )

    return put_to


SECOND = "shardId-000000000001"


def test_a_copys_claim_of_the_same_number_is_read_by_the_query_without_it(query, client):
    # The query ends once it has seen its copy renew twice.
    one = query(shards=2, leaseDuration="15s")
    put_to = on_shards(one, client)
    put_to(FIRST, range(5))
    put_to(SECOND, range(5, 10))
    one.drain()
    two = beside(one, query)
    two.plan()
    put_to(SECOND, range(10, 20))
    end_one = one.next_plan()
    assert end_one["limit"]["shards"] == [SECOND]
    put_to(FIRST, range(20, 30))
    end_two = two.next_plan(FIRST, SECOND)
    assert end_two["batch"] == end_one["batch"]
    one.commit(end_one, one.execute(end_one))
    parts = {part.parts[0].shard_id: part for part in two.reader.partitions(two.done, end_two)}
    assert len(two.read(parts[FIRST])) == 10
    two.die()
    one.die()
    one.drain()
    assert one.numbers() == list(range(30))


def test_the_second_of_two_copies_that_claim_one_number_ends_with_the_reason(query, client):
    one = query(leaseDuration="30s")
    put(client, one.stream, numbered(0, 10))
    one.drain()
    two = beside(one, query)
    put(client, one.stream, numbered(10, 20))
    end_one, end_two = one.next_plan(), two.next_plan()
    assert (end_one["batch"], end_one["shards"]) == (end_two["batch"], end_two["shards"])
    rows = one.execute(end_one)
    with pytest.raises(AnotherDriver, match="another query works from the same"):
        two.execute(end_two)
    one.commit(end_one, rows)
    assert one.numbers() == list(range(20))


def test_a_running_query_ends_when_a_copy_claimed_a_number_that_it_has_used(query, client):
    one = query(shards=2, leaseDuration="30s")
    put_to = on_shards(one, client)
    put_to(FIRST, range(5))
    one.drain()
    two = beside(one, query)
    put_to(SECOND, range(10, 20))
    end_one = one.next_plan()
    put_to(FIRST, range(20, 30))
    end_two = two.next_plan(FIRST)
    parts = {part.parts[0].shard_id: part for part in two.reader.partitions(two.done, end_two)}
    two.read(parts[FIRST])
    one.commit(end_one, one.execute(end_one))
    with pytest.raises(AnotherDriver, match=f"another batch {end_one['batch']} of .* was claimed"):
        one.plan()


@pytest.mark.parametrize("is_done", [True, False])
def test_an_offset_of_an_early_version_goes_on_at_the_claims(query, client, is_done):
    q = query(shards=2)
    put(client, q.stream, numbered(0, 20))
    q.next_batch()
    put(client, q.stream, numbered(20, 40))
    end = q.next_plan()
    rows = q.execute(end)
    early = {name: value for name, value in end.items() if name != "runs"}
    if is_done:
        q.commit(early, rows)
    q.die()
    if not is_done:
        again = q.execute(early)
        assert sorted(again) == sorted(rows)
        q.commit(early, again)
    put(client, q.stream, numbered(40, 60))
    q.drain()
    assert q.numbers() == list(range(60))
    first = end["batch"] + 1
    assert [number for number, _ in q.done["runs"]] == [first]


# --- an emptied lease table ---------------------------------------------------------------------------------


def empty_table(q):
    for row in q.table.scan().leases:
        while (now := q.table.fetch(row.key)) is not None:
            q.table.write(Delete(now.key, now.counter, now.checkpoint))


@pytest.mark.parametrize("start", ["LATEST", "TRIM_HORIZON"])
def test_a_query_with_an_offset_never_starts_anew_where_its_lease_table_was_emptied(query, client, start):
    q = query(shards=2)
    put(client, q.stream, numbered(0, 20))
    q.drain()
    q.reader.stop()
    q.given["startingPosition"] = start
    put(client, q.stream, numbered(20, 40))
    empty_table(q)
    q.reader = q.fresh()
    q.drain()
    assert set(q.numbers()) == set(range(40))


@pytest.mark.parametrize("step", ["idle", "planned", "executed"])
def test_a_running_query_never_starts_anew_where_its_lease_table_is_emptied(query, client, step):
    q = query(shards=2, startingPosition="LATEST", leaseDuration="1s")
    q.plan()
    wait_until(lambda: put_and_read(q, client), "the first record behind LATEST")
    sent = 1
    for _ in range(4):  # later the whole table is looked at only where something is missing
        put(client, q.stream, numbered(sent, sent + 10))
        q.drain()
        sent += 10
    end = None
    if step != "idle":
        put(client, q.stream, numbered(sent, sent + 10))
        sent += 10
        end = q.next_plan()
    rows = q.execute(end) if step == "executed" else []
    empty_table(q)
    wait_until(lambda: q.table.scan().leases, "the leases to be made again")
    put(client, q.stream, numbered(sent, sent + 10))
    sent += 10
    if step == "planned":
        rows = q.execute(end)
    if end is not None:
        q.commit(end, rows)
    # One of the two leases may be made a round after the other one.
    wait_until(lambda: q.drain() or set(q.numbers()) >= set(range(1, sent)), "every record")


def test_a_lease_reset_under_a_query_ends_it_and_a_restart_reads_on(query, client):
    q = query(leaseDuration="30s")
    put(client, q.stream, numbered(0, 10))
    q.next_batch()
    put(client, q.stream, numbered(10, 20))
    end = q.next_plan()
    old = q.table.fetch(FIRST)  # as a backup of the table would have it
    q.commit(end, q.execute(end))
    put(client, q.stream, numbered(20, 30))
    end = q.next_plan()
    parts = q.reader.partitions(q.done, end)
    row = q.table.fetch(FIRST)
    assert isinstance(q.table.write(Delete(FIRST, row.counter, row.checkpoint)), Applied)
    assert isinstance(q.table.write(Create(replace(old, counter=row.counter))), Applied)
    with pytest.raises(AnotherDriver, match=r"reset to batch 1 of this very run.*Start the query again"):
        q.read(parts[0])
    q.die()
    q.commit(end, q.execute(end))
    q.drain()
    assert set(q.numbers()) == set(range(30))


def put_and_read(q, client):
    if not q.rows:
        put(client, q.stream, numbered(0, 1))
        q.next_batch()
    return bool(q.rows)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_an_emptied_table_with_vanished_shards_reads_their_children_from_the_start(
    server, query, client, caplog, fails
):
    q = query(failOnDataLoss=fails)
    put(client, q.stream, numbered(0, 10))
    q.drain()
    q.reader.stop()
    q.given["startingPosition"] = "LATEST"
    put(client, q.stream, numbered(10, 20))
    split(q)
    server.clock.advance(25 * 3600)
    put(client, q.stream, numbered(20, 40))
    empty_table(q)
    q.reader, q.rows = q.fresh(), []
    if fails == "true":
        with pytest.raises(DataLossError, match=f"{FIRST} has left the stream"):
            q.plan()
        return
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        q.drain()
    assert f"{FIRST} has left the stream" in caplog.text
    assert q.numbers() == list(range(20, 40))


def test_read_and_deleted_shards_are_no_loss_after_they_left_the_stream(query, server, client, caplog):
    q = query(shards=1, leaseDuration="2s")
    put(client, q.stream, numbered(0, 10))
    q.drain()
    first = "shardId-000000000000"
    client.split_shard(StreamName=q.stream, ShardToSplit=first, NewStartingHashKey=str(2**127))
    q.drain()
    low, high = "shardId-000000000001", "shardId-000000000002"
    wait_until(lambda: q.drain() or {low, high} <= q.reader._planner._joined.shards.shard_ids, "the children")
    client.merge_shards(StreamName=q.stream, ShardToMerge=low, AdjacentShardToMerge=high)
    wait_until(
        lambda: q.drain() or q.reader._planner._joined.shards.shard_ids == {"shardId-000000000003"},
        "the child",
    )
    q.reader.stop()
    server.clock.advance(25 * 3600)
    while plan := plan_deletions(
        {row.key: row for row in q.table.scan().leases}, frozenset({first, low, high})
    ):
        for deletion in plan:
            q.table.write(deletion.write)
    put(client, q.stream, numbered(20, 30))
    q.reader = q.fresh()
    q.drain()
    assert q.numbers() == [*range(10), *range(20, 30)]


class TakenMeanwhile:
    """A table in which another worker takes an expired lease between two scans."""

    name = "table"

    def __init__(self, row):
        self.rows = iter([row, apply_write(row, Take(row.key, row.counter, "consumer")).lease])
        self.row = None

    def scan(self):
        self.row = next(self.rows, self.row)
        return LeaseScan((self.row,))


def test_a_worker_that_takes_an_expired_lease_is_no_living_driver():
    row = Lease("s", 5, "query", at_record("10"))
    refuse_living_driver(TakenMeanwhile(row), "query", {"s": row}, 0.2, SystemClock())


def test_a_lease_that_is_renewed_shows_a_living_driver():
    row = Lease("s", 5, "query", at_record("10"))
    table = TakenMeanwhile(row)
    table.rows = iter([replace(row, counter=6)])
    with pytest.raises(AnotherDriver, match="is being renewed"):
        refuse_living_driver(table, "query", {"s": row}, 5.0, SystemClock())
