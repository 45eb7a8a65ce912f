"""The consumer's subscriptions against the embedded server, over TLS: what goes wrong with them, while shards split and merge."""

import pytest

pytest.importorskip("httptools")

from penstock.consumer import Consumer
from penstock.runtime.metrics_tally import MetricsTally
from penstock_local import LocalKinesis
from spark_support import wait_active
from waiting import wait_until

FAULTS = ("end", "exception", "reset", "goaway", "corrupt", "cut", "repeat")
BATCH = 40


@pytest.fixture(scope="module")
def kinesis():
    with LocalKinesis(tls=True) as server:
        yield server


@pytest.fixture(autouse=True)
def environ(kinesis, monkeypatch):
    for name, value in kinesis.environ().items():
        monkeypatch.setenv(name, value)


class Reader:
    """A consumer, and its delivered records."""

    def __init__(self, kinesis, stream: str, name: str, **options) -> None:
        self.delivered: list[tuple[str, int]] = []
        self.metrics = MetricsTally()
        self.consumer = Consumer(
            stream,
            f"of-{stream}",
            self._handle,
            consumer_name="reader",
            starting_position="TRIM_HORIZON",
            worker_id=name,
            lease_duration_s=15.0,
            cold_start_jitter_s=0.0,
            round_interval_s=0.5,
            endpoint_url=kinesis.endpoint_url,
            metrics=self.metrics,
            **({"retrieval": "fan-out"} | options),
        )
        self.consumer.start()

    @property
    def has_lost_leases(self) -> bool:
        """Whether the machine was too slow to keep them: then records are delivered again, as they may be."""
        return any(
            value for (name, _), value in self.metrics.snapshot().counters.items() if name == "lost_leases"
        )

    def changes(self, to: str) -> int:
        """How often a shard changed to another way of reading."""
        counters = self.metrics.snapshot().counters.items()
        return int(
            sum(n for (name, labels), n in counters if name == "retrieval_changes" and ("to", to) in labels)
        )

    def _handle(self, batch) -> None:
        for record in batch:
            key, _, number = record.data.decode().partition(" ")
            self.delivered.append((key, int(number)))


class Keys:
    """Records of some keys, each key's numbered."""

    def __init__(self, client, stream: str) -> None:
        self._client = client
        self._stream = stream
        self.counts: dict[str, int] = {}

    def put(self, count: int) -> None:
        records = []
        for place in range(count):
            key = f"k{place % 40}"
            number = self.counts[key] = self.counts.get(key, 0) + 1
            records.append({"Data": f"{key} {number}".encode(), "PartitionKey": key})
        answer = self._client.put_records(StreamName=self._stream, Records=records)
        assert answer["FailedRecordCount"] == 0

    def are_in(self, *readers: Reader) -> bool:
        return len({each for reader in readers for each in reader.delivered}) == sum(self.counts.values())

    def check_order(self, reader: Reader) -> None:
        """Check that one reader's records of each key are in order, repeats aside, and that a lost lease explains repeats."""
        for key in self.counts:
            numbers = [number for its, number in reader.delivered if its == key]
            first = list(dict.fromkeys(numbers))
            assert first == sorted(first), key
            assert numbers == first or reader.has_lost_leases, key


def test_no_fault_of_a_subscription_loses_repeats_or_reorders_a_record(kinesis):
    kinesis.create_stream("faults", len(FAULTS))
    client = kinesis.client("kinesis")
    for place, kind in enumerate(FAULTS):
        kinesis.faults.in_subscription(kind, after_events=2, shard=f"shardId-{place:012d}", count=1)
    keys = Keys(client, "faults")
    reader = Reader(kinesis, "faults", "w1")
    try:
        for _ in range(6):
            keys.put(BATCH)
            wait_until(lambda: keys.are_in(reader))
    finally:
        reader.consumer.stop()
    keys.check_order(reader)
    assert kinesis.faults.active() == []  # each was met
    assert reader.consumer.failures == {}


def test_splits_merges_and_a_second_worker_lose_repeat_and_reorder_nothing(kinesis):
    kinesis.create_stream("moves", 4)
    client = kinesis.client("kinesis")
    keys = Keys(client, "moves")
    first = Reader(kinesis, "moves", "w1")
    readers = [first]
    try:
        keys.put(BATCH)
        wait_until(lambda: keys.are_in(*readers))
        client.split_shard(
            StreamName="moves", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125)
        )
        keys.put(BATCH)
        readers.append(Reader(kinesis, "moves", "w2"))
        wait_active(client, "moves")
        client.merge_shards(
            StreamName="moves",
            ShardToMerge="shardId-000000000002",
            AdjacentShardToMerge="shardId-000000000003",
        )
        wait_until(lambda: len(readers[1].consumer.health().shards) >= 1)
        for _ in range(5):
            keys.put(BATCH)
        wait_until(lambda: keys.are_in(*readers))
        first.consumer.stop()
        keys.put(BATCH)
        wait_until(lambda: keys.are_in(*readers))
    finally:
        for reader in readers:
            reader.consumer.stop()
    for reader in readers:
        keys.check_order(reader)
    delivered = [each for reader in readers for each in reader.delivered]
    is_calm = not any(reader.has_lost_leases for reader in readers)
    assert len(delivered) == len(set(delivered)) or not is_calm  # every move was graceful


def test_a_shard_is_pushed_while_its_reads_are_refused_and_polled_again_after(kinesis):
    kinesis.create_stream("refused", 1)
    client = kinesis.client("kinesis")
    keys = Keys(client, "refused")
    reader = Reader(kinesis, "refused", "w1", retrieval="auto", fan_out_after_s=1.0, polling_after_s=1.0)
    try:
        keys.put(BATCH)
        wait_until(lambda: keys.are_in(reader))
        kinesis.faults.throttle("GetRecords", stream="refused", count=None, rate=0.6)
        wait_until(lambda: reader.changes("fan-out"))
        kinesis.faults.throttle("GetRecords", stream="refused", count=None)  # nothing can be polled
        keys.put(BATCH)
        wait_until(lambda: keys.are_in(reader))
        kinesis.faults.clear()
        wait_until(lambda: reader.changes("polling"))
        keys.put(BATCH)
        wait_until(lambda: keys.are_in(reader))
    finally:
        reader.consumer.stop()
    keys.check_order(reader)
    assert reader.consumer.failures == {}
