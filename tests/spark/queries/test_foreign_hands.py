"""Other workers take a batch's lease by force, read on, give it back: every execution of the batch holds the same rows.

The reader is driven without Spark. `lease_hands` has the other workers' writes.
"""

from __future__ import annotations

import threading

import pytest

from lease_hands import Hands
from penstock import Consumer
from penstock.aws.lease_codec import claim_attribute, write_claim
from penstock.core.batches.claims import CLAIMS_MAX
from penstock.core.leases.lease import BatchClaim
from penstock.core.position import at_record
from penstock.errors import ClaimConflict
from spark_support import numbered, put
from waiting import wait_until

HALF = str(2**127)
QUERY_OPTIONS = {"shards": 1, "leaseDuration": "60s"}


def the_shard(q):
    return q.client.list_shards(StreamName=q.stream)["Shards"][0]["ShardId"]


STEPS = {
    "taken by force": lambda hands: hands.take(),
    "checkpointed behind the claim": lambda hands: hands.checkpoint(13),
    "checkpointed at the claim": lambda hands: hands.checkpoint(19),
    "checkpointed past the claim": lambda hands: hands.checkpoint(30),
    "claimed by a second query": lambda hands: hands.claim(35),
    "released": lambda hands: hands.release(),
    "released far behind": lambda hands: hands.release(45),
    "taken back": lambda hands: hands.take_back(),
    "asked for": lambda hands: hands.ask_for_it(),
    "taken by Java": lambda hands: hands.java_take(),
    "checkpointed behind the claim by Java": lambda hands: hands.java_checkpoint(13),
    "checkpointed past the claim by Java": lambda hands: hands.java_checkpoint(30),
    "released by Java": lambda hands: hands.java_release(),
}
HISTORIES = [
    ["taken by force"],
    [
        "taken by force",
        "checkpointed behind the claim",
        "checkpointed at the claim",
        "checkpointed past the claim",
        "claimed by a second query",
        "released far behind",
        "taken back",
    ],
    ["taken by force", "checkpointed behind the claim", "released", "taken back"],
    ["taken by force", "claimed by a second query", "taken back"],
    ["asked for", "taken by force", "checkpointed past the claim", "released", "taken back"],
    ["taken by Java", "checkpointed behind the claim by Java", "taken back"],
    ["taken by Java", "checkpointed past the claim by Java", "released by Java", "taken back"],
]


@pytest.mark.parametrize("ends", ["at the tip", "at a limit", "with the shard"])
@pytest.mark.parametrize("history", HISTORIES, ids=", ".join)
def test_a_claimed_batch_holds_the_same_rows_whoever_had_the_lease_in_between(
    server, client, query, history, ends
):
    q = query(**({"maxRecordsPerTrigger": "10"} if ends == "at a limit" else {}))
    put(client, q.stream, numbered(0, 10))
    assert len(q.next_batch()) == 10
    put(client, q.stream, numbered(10, 50 if ends == "at a limit" else 20))
    if ends == "with the shard":
        put(client, q.stream, numbered(20, 50))
        client.split_shard(StreamName=q.stream, ShardToSplit=the_shard(q), NewStartingHashKey=HALF)
    end = q.next_plan()
    first = q.execute(end)
    assert [row[3] for row in first] == list(range(10, 50 if ends == "with the shard" else 20))
    if ends == "at the tip":
        put(client, q.stream, numbered(20, 50))
    hands = Hands(server, q, the_shard(q))
    for step in history:
        STEPS[step](hands)
        assert q.execute(end) == first, step
    q.die()
    assert q.execute(end) == first, "a new driver"


@pytest.mark.parametrize("back", ["taken back", "left there"])
def test_an_execution_that_lost_the_lease_fails_and_later_ones_are_empty(server, client, query, back):
    q = query()
    put(client, q.stream, numbered(0, 10))
    end = q.next_plan()
    part = q.reader.partitions({}, end)[0]
    running = q.fresh().read(part)
    assert next(running).num_rows == 10
    hands = Hands(server, q, the_shard(q))
    hands.take()
    with pytest.raises(ClaimConflict, match="the lease was lost or created again"):
        list(running)
    assert q.read(part) == []
    hands.checkpoint(3)
    if back == "taken back":
        hands.release()
        hands.take_back()
    assert q.read(part) == []
    assert q.execute(end) == []
    q.die()
    assert q.execute(end) == []


def test_losing_and_regaining_the_lease_before_the_claim_gives_the_rows_once(server, client, query):
    q = query()
    put(client, q.stream, numbered(0, 10))
    end = q.next_plan()
    part = q.reader.partitions({}, end)[0]
    running = q.fresh().read(part)
    next(running)
    hands = Hands(server, q, the_shard(q))
    hands.take()
    hands.checkpoint(3)
    hands.release()
    hands.take_back()
    with pytest.raises(ClaimConflict):
        list(running)  # the other worker has done 0..3
    assert q.execute(end) == []
    q.commit(end, [])
    q.die()
    q.drain()
    assert q.numbers() == list(range(4, 10))


def test_a_batch_goes_on_reading_while_a_handover_waits_and_is_the_same_after_it(server, client, query):
    q = query()
    put(client, q.stream, numbered(0, 10))
    end = q.next_plan()
    hands = Hands(server, q, the_shard(q))
    hands.ask_for_it()
    first = q.execute(end)
    assert len(first) == 10
    put(client, q.stream, numbered(10, 20))
    assert q.execute(end) == first
    hands.take()
    hands.checkpoint(15)
    assert q.execute(end) == first


def test_a_query_goes_on_behind_what_the_other_worker_has_done(server, client, query):
    q = query()
    put(client, q.stream, numbered(0, 10))
    end = q.next_plan()
    q.commit(end, q.execute(end))
    put(client, q.stream, numbered(10, 30))
    end = q.next_plan()
    hands = Hands(server, q, the_shard(q))
    hands.take()
    hands.checkpoint(19)
    assert q.execute(end) == []
    q.commit(end, [])
    hands.release()
    q.die()
    q.drain()
    assert q.numbers() == [*range(10), *range(20, 30)]


def test_a_parents_batch_repeats_the_same_after_its_lease_was_ended_and_deleted(server, client, query):
    q = query(leaseDuration="1s")
    put(client, q.stream, numbered(0, 10))
    end = q.next_plan()
    first = q.execute(end)
    parent = the_shard(q)
    q.die()
    put(client, q.stream, numbered(10, 30))
    client.split_shard(StreamName=q.stream, ShardToSplit=parent, NewStartingHashKey=HALF)
    put(client, q.stream, numbered(30, 50))
    seen = consume(server, q, until=lambda seen: set(range(30, 50)) <= set(seen), also=lambda: is_past(q))
    assert set(range(10, 50)) <= set(seen)
    assert q.execute(end) == first


def is_past(q):
    """The parent's lease is ended, and its children's leases are old enough for a clean-up."""
    rows = q.table.scan().leases
    return sum(row.checkpoint.is_record for row in rows) == 2


def consume(server, q, until, also=lambda: True):
    """Run a plain consumer in the query's application until it has done something; return its records."""
    seen = []
    consumer = Consumer(
        stream=q.stream,
        application=q.given["applicationName"],
        handler=lambda batch: seen.extend(int(record.data) for record in batch),
        connection=server.connection(),
        starting_position="TRIM_HORIZON",
        lease_duration_s=1.0,
        idle_time_between_reads_s=0.1,
        cold_start_jitter_s=0.0,
    )
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        wait_until(lambda: until(seen) and also(), "the other worker to read on")
    finally:
        consumer.stop()
        thread.join(30)
    return seen


def test_what_another_worker_did_after_a_crash_is_not_given_again(server, client, query):
    q = query(leaseDuration="2s")
    put(client, q.stream, numbered(0, 10))
    q.next_batch()
    put(client, q.stream, numbered(10, 20))
    end = q.next_plan()
    q.die()  # before a task of the batch has claimed
    put(client, q.stream, numbered(20, 2000))
    seen = consume(server, q, until=lambda seen: len(set(seen)) >= 1990)
    rows = q.execute(end)
    assert rows == []
    q.commit(end, rows)
    put(client, q.stream, numbered(2000, 2010))
    q.drain()
    assert q.numbers() == [*range(10), *range(2000, 2010)]
    assert set(seen) >= set(range(10, 2000))


def test_the_claims_of_workers_that_are_gone_are_cleared_away(server, client, query):
    q = query()
    put(client, q.stream, numbered(0, 10))
    q.next_batch()
    key = the_shard(q)
    add_claims(server, q, key, [("old", 1)], made_ms=1)
    put(client, q.stream, numbered(10, 20))
    assert len(q.next_batch()) == 10
    assert {claim.worker for claim in q.table.fetch(key).claims} == {q.worker}


def test_a_row_keeps_a_bounded_number_of_other_workers_claims(server, client, query):
    q = query()
    put(client, q.stream, numbered(0, 10))
    q.next_batch()
    key = the_shard(q)
    add_claims(server, q, key, [(f"spark-{n:02}", n) for n in range(CLAIMS_MAX + 5)], made_ms=2**42)
    put(client, q.stream, numbered(10, 20))
    assert len(q.next_batch()) == 10
    kept = {claim.worker for claim in q.table.fetch(key).claims} - {q.worker}
    assert len(kept) == CLAIMS_MAX


def add_claims(server, q, key, claims, made_ms):
    """Write claims of other queries onto a row."""
    names, values = {}, {}
    for place, (worker, batch) in enumerate(claims):
        claim = BatchClaim(worker, batch, "run", at_record("1"), at_record("2"), b"", made_ms + batch)
        names[f"#c{place}"] = claim_attribute(worker)
        values[f":c{place}"] = {"M": write_claim(claim)}
    sets = ", ".join(f"#c{place} = :c{place}" for place in range(len(claims)))
    server.client("dynamodb").update_item(
        TableName=q.table.name,
        Key={"leaseKey": {"S": key}},
        UpdateExpression=f"SET {sets}",
        ExpressionAttributeNames=names,
        ExpressionAttributeValues=values,
    )
