"""One application that reads several streams from one lease table, on the embedded server."""

import threading
from collections import Counter, defaultdict

import pytest

pytest.importorskip("httptools")

from penstock.consumer import Consumer
from penstock.consumer.stream_argument import parse_streams
from penstock.core.position import TRIM_HORIZON, at_record
from penstock.core.shard import StreamSummary
from penstock.core.starting import StartingPosition
from penstock.errors import NotFound, OptionError, PositionError, UsageError
from penstock.runtime import stream_name_check
from penstock_local import LocalKinesis
from waiting import wait_until

STREAMS = ["orders", "returns"]
KEYS = 8


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False, settle_s=0) as server:
        for stream in STREAMS:
            server.create_stream(stream, shards=2)
        yield server


def worker(server, stream, application, handler, **options):
    return Consumer(
        stream,
        application,
        handler,
        connection=server.connection(),
        **{
            "starting_position": "TRIM_HORIZON",
            "lease_duration_s": 60.0,  # no lease runs out on a busy machine, so no record is delivered twice
            "handover_timeout_s": 120.0,
            "round_interval_s": 1.0,
            "idle_time_between_reads_s": 0.1,
            "cold_start_jitter_s": 0.0,
            **options,
        },
    )


def put(server, stream, numbers):
    kinesis = server.client("kinesis")
    for number in numbers:
        entries = [{"PartitionKey": f"k{key}", "Data": f"{stream} {number}".encode()} for key in range(KEYS)]
        assert kinesis.put_records(StreamName=stream, Records=entries)["FailedRecordCount"] == 0


def rows(server, table):
    items = server.client("dynamodb").scan(TableName=table, ConsistentRead=True)["Items"]
    return {item["leaseKey"]["S"]: item for item in items}


def stream_id(server, stream):
    summary = server.client("kinesis").describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    account = summary["StreamARN"].split(":")[4]
    return f"{account}:{stream}:{int(summary['StreamCreationTimestamp'].timestamp())}"


class Seen:
    """What two workers were given: by stream and key, in the order of the calls."""

    def __init__(self):
        self.lock = threading.Lock()
        self.numbers = defaultdict(list)
        self.shards = Counter()

    def handle(self, batch):
        with self.lock:
            for record in batch:
                stream, _, number = record.data.decode().partition(" ")
                assert stream == batch.stream == record.stream
                assert batch.shard_id == record.shard_id
                self.numbers[stream, record.partition_key].append(int(number))
                self.shards[stream, record.shard_id] += 1

    def has_all(self, count):
        with self.lock:
            return all(
                len(self.numbers[stream, f"k{key}"]) >= count for stream in STREAMS for key in range(KEYS)
            )


def test_records_of_two_streams_are_delivered_once_in_order_through_split_and_stop(server):
    seen = Seen()
    first = worker(server, STREAMS, "billing", seen.handle, worker_id="first")
    second = worker(server, STREAMS, "billing", seen.handle, worker_id="second")
    for stream in STREAMS:
        put(server, stream, range(10))
    with second:
        with first:
            wait_until(lambda: seen.has_all(10), "the first records")
            wait_until(
                lambda: (
                    {row.get("leaseOwner", {}).get("S") for row in rows(server, "billing").values()}
                    == {"first", "second"}
                ),
                "two leases for each worker",
            )
            split(server)
            for stream in STREAMS:
                put(server, stream, range(10, 20))
            wait_until(lambda: seen.has_all(20), "the records behind the split")
        for stream in STREAMS:
            put(server, stream, range(20, 30))
        wait_until(lambda: seen.has_all(30), "the records behind the stop")
    assert dict(seen.numbers) == {
        (stream, f"k{key}"): list(range(30)) for stream in STREAMS for key in range(KEYS)
    }
    assert {shard for stream, shard in seen.shards if stream == "returns"} == {
        "shardId-000000000000",
        "shardId-000000000001",
    }
    orders = stream_id(server, "orders")
    child = rows(server, "billing")[f"{orders}:shardId-000000000002"]
    assert child["streamName"] == {"S": orders}
    assert child["shardId"] == {"S": "shardId-000000000002"}
    assert child["parentShardId"] == {"SS": ["shardId-000000000000"]}


def split(server):
    kinesis = server.client("kinesis")
    shard = kinesis.list_shards(StreamName="orders")["Shards"][0]
    hash_keys = shard["HashKeyRange"]
    middle = (int(hash_keys["StartingHashKey"]) + int(hash_keys["EndingHashKey"])) // 2
    kinesis.split_shard(
        StreamName="orders", ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle + 1)
    )
    wait_until(
        lambda: (
            kinesis.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamStatus"]
            == "ACTIVE"
        ),
        "the split",
    )


def test_rows_of_java_workers_are_gone_on_with_and_a_stream_that_is_added_begins(server):
    server.create_stream("old", shards=1)
    server.create_stream("new", shards=1)
    put(server, "old", range(4))
    put(server, "new", range(4))
    kinesis = server.client("kinesis")
    old_id = "123456789012:old:7"  # Java users choose the epoch
    account = kinesis.describe_stream_summary(StreamName="old")["StreamDescriptionSummary"]["StreamARN"]
    old_id = old_id.replace("123456789012", account.split(":")[4])
    iterator = kinesis.get_shard_iterator(
        StreamName="old", ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    records = kinesis.get_records(ShardIterator=iterator)["Records"]
    java_row(server, "ledger", old_id, records[2 * KEYS - 1]["SequenceNumber"])
    seen, former = [], "999999999999:former:5"
    java_row(server, "ledger", former, "77")
    before = rows(server, "ledger")[f"{former}:shardId-000000000000"]
    streams = {old_id: "LATEST", "new": "TRIM_HORIZON"}
    with worker(server, streams, "ledger", lambda batch: seen.extend(record.data for record in batch)):
        wait_until(lambda: len(seen) >= 6 * KEYS, "both streams")
    expected = [f"old {number}" for number in (2, 3)] + [f"new {number}" for number in range(4)]
    assert Counter(data.decode() for data in seen) == Counter(expected * KEYS)
    assert rows(server, "ledger")[f"{former}:shardId-000000000000"] == before


def java_row(server, table, stream_id, checkpoint):
    dynamo = server.client("dynamodb")
    if table not in dynamo.list_tables()["TableNames"]:
        dynamo.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    dynamo.put_item(
        TableName=table,
        Item={
            "leaseKey": {"S": f"{stream_id}:shardId-000000000000"},
            "streamName": {"S": stream_id},
            "shardId": {"S": "shardId-000000000000"},
            "leaseCounter": {"N": "12"},
            "checkpoint": {"S": checkpoint},
            "checkpointSubSequenceNumber": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "startingHashKey": {"S": "0"},
            "endingHashKey": {"S": str(2**128 - 1)},
        },
    )


def test_a_missing_stream_is_named_before_anything_is_taken(server):
    with pytest.raises(NotFound, match="nowhere"):
        worker(server, ["orders", "nowhere"], "missing", lambda _: None).run()
    assert "missing" not in server.client("dynamodb").list_tables()["TableNames"]


def test_a_table_of_one_stream_is_refused_with_the_way_out(server):
    seen = []
    server.create_stream("single", shards=1)
    put(server, "single", range(1))
    with worker(server, "single", "solo", seen.extend):
        wait_until(lambda: len(seen) >= KEYS, "the records")
    with pytest.raises(
        OptionError, match=r"row shardId-0{12} .*reads one stream.*choose another application"
    ):
        worker(server, ["single"], "solo", seen.extend).run()


def test_a_stream_that_is_named_twice_by_name_and_arn_is_refused(server):
    arn = server.client("kinesis").describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"][
        "StreamARN"
    ]
    with pytest.raises(UsageError, match="are the same"):
        worker(server, ["orders", arn], "twice", lambda _: None).start()


@pytest.mark.parametrize(
    "names", [["orders", "{}:orders:5"], ["{}:orders:5", "orders"], ["{0}:orders:5", "{0}:orders:6"]]
)
def test_a_stream_that_is_named_twice_by_ids_of_other_epochs_is_refused(names):
    arn = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
    streams = parse_streams([name.format("123456789012") for name in names], "LATEST")
    with pytest.raises(UsageError, match=r"orders:5\b.* are the same"):
        streams.fetch_descriptions(
            lambda _: StreamSummary("orders", arn, "ACTIVE", 1_700_000_000_999), lambda _: None
        )


def test_an_id_of_another_account_is_refused(server):
    with pytest.raises(UsageError, match=r"999999999999:orders:5: .*its id begins with"):
        worker(server, ["999999999999:orders:5"], "account", lambda _: None).start()


def test_a_processor_is_made_for_the_stream_of_its_shard(server):
    made = Counter()

    class Processor:
        def __init__(self, stream):
            self.stream = stream

        def on_start(self, shard_id, position):
            made[self.stream, shard_id] += 1

        def on_batch(self, batch):
            assert batch.stream == self.stream

        def on_end(self, shard): ...
        def on_stop(self, shard): ...
        def on_lost(self): ...

    server.create_stream("one", shards=1)
    server.create_stream("two", shards=1)
    with worker(server, ["one", "two"], "made", None, processor_factory=Processor) as consumer:
        wait_until(lambda: len(made) == 2, "a processor for each shard")
        keys = {shard.shard_id for shard in consumer.health().shards}
        consumer.pause(*keys)
        wait_until(
            lambda: {shard.state for shard in consumer.health().shards} == {"paused"}, "every shard paused"
        )
    assert made.keys() == {("one", "shardId-000000000000"), ("two", "shardId-000000000000")}
    assert keys == {f"{stream_id(server, name)}:shardId-000000000000" for name in ("one", "two")}


def test_an_id_of_java_workers_means_a_table_of_several_streams():
    streams = parse_streams("123456789012:orders:5", "LATEST")
    assert streams.are_several
    assert streams.names == ("orders",)
    assert not parse_streams("orders", "LATEST").are_several


def test_a_stream_that_is_deleted_stops_and_the_others_go_on(server):
    seen = []
    for stream in ("kept", "dropped"):
        server.create_stream(stream, shards=1)
        put(server, stream, range(1))
    with worker(server, ["kept", "dropped"], "drop", seen.extend) as consumer:
        wait_until(lambda: len(seen) >= 2 * KEYS, "the first records")
        server.client("kinesis").delete_stream(StreamName="dropped")
        wait_until(lambda: consumer.failures, "the deleted stream to stop")
        assert [key.split(":")[1] for key in consumer.failures] == ["dropped"]
        put(server, "kept", range(1, 2))
        wait_until(lambda: len(seen) >= 3 * KEYS, "more of the other stream")
        assert consumer.is_running


def test_a_stream_created_again_under_a_running_worker_is_not_taken_for_the_old_one(server, monkeypatch):
    monkeypatch.setattr(stream_name_check, "_TRUSTED_S", 0.0)  # the embedded server makes a stream at once
    seen = []
    for stream in ("steady", "swapped"):
        server.create_stream(stream, shards=1)
    put(server, "steady", range(1))
    with worker(server, ["steady", "swapped"], "swap", seen.extend) as consumer:
        wait_until(lambda: len(seen) >= KEYS, "the first records")
        old = f"{stream_id(server, 'swapped')}:shardId-000000000000"
        wait_until(lambda: states(consumer).get(old) == "reading", "the shard that nothing was put into yet")
        consumer.pause(old)
        server.client("kinesis").delete_stream(StreamName="swapped")
        wait_until(
            lambda: "swapped" not in server.client("kinesis").list_streams()["StreamNames"], "the deletion"
        )
        server.create_stream("swapped", shards=1)
        put(server, "swapped", range(1))
        consumer.resume(old)
        wait_until(lambda: consumer.failures, "the shard of the old stream to stop")
        assert "was deleted and created again" in str(consumer.failures[old])
        put(server, "steady", range(1, 2))
        wait_until(lambda: len(seen) >= 2 * KEYS, "more of the other stream")
    assert {record.stream for record in seen} == {"steady"}


def states(consumer):
    return {shard.shard_id: shard.state for shard in consumer.health().shards}


def test_every_stream_gets_the_registered_consumer(server):
    seen = []
    for stream in ("pushed", "streamed"):
        server.create_stream(stream, shards=1)
        put(server, stream, range(1))
    with worker(server, ["pushed", "streamed"], "fan", seen.extend, retrieval="fan-out"):
        wait_until(lambda: len(seen) >= 2 * KEYS, "the records of both")
    for stream in ("pushed", "streamed"):
        kinesis = server.client("kinesis")
        arn = kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
        consumers = kinesis.list_stream_consumers(StreamARN=arn)["Consumers"]
        assert [each["ConsumerName"] for each in consumers] == ["fan"]


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["orders", ""],
        {},
        ["orders", "orders"],
        [f"arn:aws:kinesis:{region}:123456789012:stream/orders" for region in ("eu-west-1", "us-east-1")],
    ],
)
def test_streams_that_cannot_be_meant_are_refused(given):
    with pytest.raises(UsageError):
        parse_streams(given, "LATEST")


def test_shards_are_not_named_for_several_streams_at_once():
    start = StartingPosition(by_shard={"shardId-000000000000": at_record("5")})
    with pytest.raises(OptionError, match="give each stream its own position"):
        parse_streams(["orders", "returns"], start)
    (orders, returns) = parse_streams({"orders": start, "returns": TRIM_HORIZON}, "LATEST").streams
    assert orders.start == start
    assert returns.start == StartingPosition(default=TRIM_HORIZON)


def test_a_starting_position_that_is_none_names_its_stream():
    with pytest.raises(PositionError, match="stream returns: starting_position"):
        parse_streams({"orders": "LATEST", "returns": "yesterday"}, "LATEST")
