"""The limits of a batch, which shards are in it, and a switch of `deaggregate` between two runs.

The reader is driven without Spark.
"""

from __future__ import annotations

import pytest

from penstock.core.aggregation import AggregateBuilder, deaggregate
from spark_support import numbered, put
from waiting import wait_until

MIB = 1024 * 1024


def raw(q, end):
    """The rows of a batch as (sequence number, sub-sequence number, data), in the order of the shard."""
    parts = q.reader.partitions({} if q.done is None else q.done, end)
    rows = [row for part in parts for batch in q.fresh().read(part) for row in batch.to_pylist()]
    return [(int(row["sequenceNumber"]), row["subSequenceNumber"], row["data"]) for row in rows]


def rest(q):
    """Everything that is left, batch by batch."""
    found = []
    for end in q.plans():
        rows = raw(q, end)
        q.commit(end, [])
        found += rows
    return found


# --- bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bytes_max", "size"),
    [(3 * MIB, 200_000), (2 * MIB, MIB - 100), (100_000, 30_000), (1000, 30_000), (2 * MIB, 3 * MIB)],
    ids=[
        "small records",
        "about a share each",
        "less than a share in all",
        "each over the limit",
        "each over a share",
    ],
)
def test_a_batch_exceeds_its_bytes_by_one_record_at_most_and_all_is_read(server, query, bytes_max, size):
    client = server.client("kinesis")
    q = query(shards=8, maxBytesPerTrigger=str(bytes_max))
    if size > MIB:
        arn = client.describe_stream_summary(StreamName=q.stream)["StreamDescriptionSummary"]["StreamARN"]
        client.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=10_240)
    count = 24
    for number in range(count):
        data = f"{number:08d}".encode().ljust(size, b".")
        client.put_record(StreamName=q.stream, PartitionKey=f"k{number % 20}", Data=data)
    seen = []

    def read_on():
        end = q.plan()  # None also if a lease is not held yet
        if end is not None:
            rows = raw(q, end)
            assert rows
            assert sum(len(data) for _, _, data in rows) <= bytes_max + size
            seen.extend(int(data[:8]) for _, _, data in rows)
            q.commit(end, [])
        return end is not None

    while len(seen) < count:
        wait_until(read_on, "the next records")
    assert sorted(seen) == list(range(count))


# --- aggregates ------------------------------------------------------------------------------------------------


def put_aggregate(client, q, start, end):
    builder = AggregateBuilder()
    for number in range(start, end):
        builder.add(f"{number:08d}".encode(), "k")
    client.put_record(StreamName=q.stream, PartitionKey="a", Data=builder.build().data)


def switch(q, deaggregates, **options):
    q.reader.stop()
    q.given |= {"deaggregate": deaggregates, **options}
    q.reader = q.fresh()


def inner(rows):
    """The user records of rows, from aggregates and from single records."""
    found = []
    for _, _, data in rows:
        records = deaggregate(data)
        found += [int(data)] if records is None else [int(record.data) for record in records]
    return found


def test_an_aggregate_comes_whole_when_taking_apart_is_switched_off_in_its_middle(query, client):
    q = query(shards=1, maxRecordsPerTrigger="4")
    put_aggregate(client, q, 0, 10)
    put(client, q.stream, numbered(10, 12))
    end = q.next_plan()
    first = raw(q, end)
    assert inner(first) == [0, 1, 2, 3]
    switch(q, "false")
    assert raw(q, end) == first  # a repeat is the same
    q.commit(end, [])
    assert inner(rest(q)) == list(range(12))


def test_an_aggregate_emitted_whole_is_not_repeated_when_deaggregate_is_set(query, client):
    q = query(shards=1, maxRecordsPerTrigger="1", deaggregate="false")
    put_aggregate(client, q, 0, 10)
    put_aggregate(client, q, 10, 20)
    put(client, q.stream, numbered(20, 22))
    end = q.next_plan()
    first = raw(q, end)
    assert inner(first) == list(range(10))
    switch(q, "true", maxRecordsPerTrigger="7")
    assert raw(q, end) == first
    q.commit(end, [])
    assert inner(rest(q)) == list(range(10, 22))


def test_taking_apart_switched_to_and_fro_loses_nothing(query, client):
    q = query(shards=1, maxRecordsPerTrigger="3")
    for begin in range(0, 40, 10):
        put_aggregate(client, q, begin, begin + 10)
    seen, kind = [], "true"
    for end in q.plans():
        rows = raw(q, end)
        q.die()
        assert raw(q, end) == rows
        seen += inner(rows)
        q.commit(end, [])
        kind = "false" if kind == "true" else "true"
        switch(q, kind, maxRecordsPerTrigger="3" if kind == "true" else "1")
    assert set(seen) == set(range(40))


# --- idle shards -------------------------------------------------------------------------------------------------


def test_one_record_on_a_hundred_idle_shards_costs_one_task_and_a_few_calls(server, query, client):
    q = query(shards=100, leaseDuration="600s", probeInterval="1s")
    q.batch()
    put(client, q.stream, numbered(0, 1))
    end = q.next_plan()
    assert len(end["limit"]["shards"]) == 1
    server.reset_calls()
    parts = q.reader.partitions({} if q.done is None else q.done, end)
    assert [len(part.parts) for part in parts] == [1]
    q.commit(end, [row for part in parts for row in q.read(part)])
    assert q.numbers() == [0]
    done = server.calls()
    assert done.count("GetRecords") <= 3
    assert done.count("dynamodb.GetItem") <= 2
    assert done.count("dynamodb.UpdateItem") <= 2
