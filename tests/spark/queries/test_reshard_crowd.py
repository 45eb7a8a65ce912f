"""Producers while shards are split and merged at random, on a service that refuses and whose listings lag: every kind of
reader gives each record once, and each key in order.

No answer is lost here, because a producer that does not know whether a request was stored has to send it again.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import pytest

from penstock.aws.aws_options import AwsOptions
from penstock.aws.kinesis import AwsKinesis
from penstock.consumer import Consumer, ConsumerOptions, ConsumerPorts
from penstock.producer import Producer, TaskWriter, TaskWriterOptions
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from penstock.spark.batch import KinesisBatchReader
from penstock.spark.options.spark_options import parse_batch
from penstock_local import LocalKinesis
from penstock_local.faults import Fault
from reader_query import Query
from stream_reading import kcl_reads
from waiting import wait_until

STREAM = "crowd"
KEYS_PER_WRITER = 20
TROUBLES = [
    Fault("stale", "ListShards", count=None, rate=0.2),
    Fault("partial", "PutRecords", count=None, rate=0.1, code="ServiceUnavailable"),
    Fault("throttle", "PutRecords", count=None, rate=0.05),
]


class Crowd:
    """Writers on threads, each with its own keys; their records by key and in order."""

    def __init__(self, kinesis, seed):
        self.sent = defaultdict(list)
        self._kinesis = kinesis
        self._turns = threading.Semaphore(0)
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=write, args=(random.Random(f"{seed}/{number}"), number), daemon=True)
            for number, write in enumerate((self._produce, self._produce, self._write_tasks))
        ]
        for thread in self._threads:
            thread.start()

    def let_write(self):
        """Put some more records with every writer."""
        for _ in self._threads:
            self._turns.release()

    def end(self):
        """Wait until everything is acknowledged."""
        self._is_over.set()
        for _ in self._threads:
            self._turns.release()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()

    def _records(self, chance, writer):
        for _ in range(chance.randint(20, 200)):
            key = f"{writer}-{chance.randrange(KEYS_PER_WRITER)}"
            data = f"{key}:{len(self.sent[key])}"
            self.sent[key].append(data)
            yield data.encode(), key

    def _produce(self, chance, writer):
        with Producer(STREAM, kinesis=self._kinesis, linger_s=0.005) as producer:
            while not self._is_over.is_set():
                self._turns.acquire()
                producer.put_many(self._records(chance, writer))

    def _write_tasks(self, chance, writer):
        while not self._is_over.is_set():
            self._turns.acquire()
            task = TaskWriter(self._kinesis, STREAM, TaskWriterOptions(aggregation=True))
            for data, key in self._records(chance, writer):
                task.write(data, key)
            task.finish()


def reshard(client, chance):
    """Split an open shard at any place, or merge two neighbours."""
    listed = client.list_shards(StreamName=STREAM)["Shards"]
    live = sorted(
        (shard for shard in listed if "EndingSequenceNumber" not in shard["SequenceNumberRange"]),
        key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]),
    )
    if len(live) > 1 and chance.random() < 0.5:
        place = chance.randrange(len(live) - 1)
        names = [shard["ShardId"] for shard in live[place : place + 2]]
        client.merge_shards(StreamName=STREAM, ShardToMerge=names[0], AdjacentShardToMerge=names[1])
        return
    span = (shard := chance.choice(live))["HashKeyRange"]
    at = chance.randint(int(span["StartingHashKey"]) + 1, int(span["EndingHashKey"]))
    client.split_shard(StreamName=STREAM, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(at))


class Watcher:
    """A consumer that reads while it happens."""

    def __init__(self, kinesis):
        self.found = []
        self._consumer = Consumer(
            STREAM,
            "app",
            self._take,
            options=ConsumerOptions(
                starting_position="TRIM_HORIZON",
                round_interval_s=0.1,
                cold_start_jitter_s=0.0,
                idle_time_between_reads_s=0.05,
            ),
            ports=ConsumerPorts(kinesis, MemoryLeaseTable("app")),
        )
        self._thread = threading.Thread(target=self._consumer.run, daemon=True)
        self._thread.start()

    def _take(self, batch):
        self.found += [(record.partition_key, record.data.decode()) for record in batch]

    def end(self):
        self._consumer.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()


class KeyedQuery(Query):
    """A query whose rows are keys and data."""

    def read(self, part):
        return [
            (row["partitionKey"], row["data"].decode())
            for batch in self.fresh().read(part)
            for row in batch.to_pylist()
        ]


def by_key(found):
    keys = defaultdict(list)
    for key, data in found:
        keys[key].append(data)
    return keys


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "reshards"),
    [(1, 12), *(pytest.param(seed, 40, marks=pytest.mark.soak) for seed in range(2, 8))],
)
def test_every_reader_gives_every_record_once_and_each_key_in_order(seed, reshards):
    chance = random.Random(seed)
    with LocalKinesis(limits=False, settle_s=0) as server:
        client = server.client("kinesis")
        server.create_stream(STREAM, shards=chance.randint(1, 4))
        kinesis = AwsKinesis(AwsOptions(**server.connection()))
        watcher, crowd = Watcher(kinesis), Crowd(kinesis, seed)
        for _ in range(reshards):
            for fault in TROUBLES:
                server.faults.add(fault)
            for _turn in range(3):
                before = server.calls().count("PutRecords")
                crowd.let_write()
                wait_until(lambda before=before: server.calls().count("PutRecords") > before, "a request")
            server.faults.clear()  # only open shards can be split
            reshard(client, chance)
        crowd.end()
        total = sum(map(len, crowd.sent.values()))
        wait_until(lambda: len(watcher.found) >= total, f"{total} records, got {len(watcher.found)}")
        watcher.end()
        query = KeyedQuery(server, client, stream=STREAM)
        try:
            query.drain(400)
        finally:
            query.stop()
        wanted = ("streamName", "endpointUrl", "region", "awsAccessKeyId", "awsSecretKey")
        batch = KinesisBatchReader(parse_batch({name: query.given[name] for name in wanted})[0])
        rows = [row for part in batch.partitions() for each in batch.read(part) for row in each.to_pylist()]
        kcl = [(key, data.decode()) for key, data in kcl_reads(client, STREAM)]
    assert by_key(kcl) == crowd.sent
    assert by_key(watcher.found) == crowd.sent
    assert by_key(query.rows) == crowd.sent
    assert by_key((row["partitionKey"], row["data"].decode()) for row in rows) == crowd.sent
