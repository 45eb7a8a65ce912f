"""The cost of a query's batch in calls to DynamoDB and in read and write units, as in docs/spark-batches.md.

The reader is driven without Spark. The lease duration is so long that no renewal and no round of the coordinator falls
in between.
"""

from __future__ import annotations

from item_bytes import item_bytes
from penstock.core.batches.claims import PAST_CLAIMS_MAX
from penstock.spark import stream_reader
from penstock_sim.table_units import get_units, write_units
from waiting import wait_until

SHARDS = 6
QUERY_OPTIONS = {"shards": SHARDS, "leaseDuration": "600s", "shardsPerTask": "3"}
SETTLED_AS_A_WHOLE = 3  # the first batches, after which the whole table is read


def put_everywhere(client, stream):
    """Put a record on every shard."""
    client.put_records(
        StreamName=stream,
        Records=[
            {
                "PartitionKey": "k",
                "Data": b"1",
                "ExplicitHashKey": str((2 * number + 1) * 2**128 // (2 * SHARDS)),
            }
            for number in range(SHARDS)
        ],
    )


def dynamodb(server):
    """Calls since the last reset: operation -> how many."""
    calls = server.calls().total
    return {name.removeprefix("dynamodb."): n for name, n in calls.items() if name.startswith("dynamodb.")}


def plan(q):
    """The next batch's offset, when there is something to read."""
    ends = []
    wait_until(lambda: ends.append(q.plan()) or ends[-1] is not None, "news")
    return ends[-1]


def test_a_batch_costs_a_read_and_a_claim_per_shard_and_one_call_to_settle(
    server, client, query, monkeypatch
):
    monkeypatch.setattr(stream_reader, "_query_id", lambda: "1f7d0b6e-6f0d-4c0b-9a55-0d1b9d9f3c11")
    q = query()
    for _ in range(1 + max(SETTLED_AS_A_WHOLE, PAST_CLAIMS_MAX)):
        put_everywhere(client, q.stream)
        end = plan(q)
        q.commit(end, q.execute(end))
    put_everywhere(client, q.stream)
    end = plan(q)
    shard_count = len(end["limit"]["shards"])

    server.reset_calls()
    q.commit(end, q.execute(end))
    assert dynamodb(server) == {"GetItem": shard_count, "UpdateItem": shard_count}

    server.reset_calls()
    q.plan()
    calls = dynamodb(server)
    assert calls.pop("UpdateItem", 0) <= SHARDS  # claims become checkpoints, where nothing is to be read
    assert calls == {"BatchGetItem": 1}

    rows = server.client("dynamodb").scan(TableName=q.table.name)["Items"]
    assert len(rows) == SHARDS
    sizes = [item_bytes(row) for row in rows]
    assert {get_units(size) for size in sizes} == {1.0}
    assert {write_units(size) for size in sizes} == {1.0}
