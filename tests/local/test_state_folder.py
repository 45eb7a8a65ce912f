"""What a server with a state folder keeps over a restart, and over a crash."""

from __future__ import annotations

import struct
import threading

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from penstock.errors import OptionError, Unavailable
from penstock.local import LocalKinesis, LocalKinesisProcess

FIRST = "shardId-000000000000"


def read(kinesis, stream: str, shard: str = FIRST) -> list[tuple[str, bytes]]:
    client = kinesis.client("kinesis")
    iterator = client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    answer = client.get_records(ShardIterator=iterator["ShardIterator"])
    return [(r["SequenceNumber"], r["Data"]) for r in answer["Records"]]


def started(folder, **options) -> LocalKinesis:
    return LocalKinesis(limits=False, time_factor=0, state_dir=folder, **options)


def test_streams_records_and_positions_survive_a_restart(tmp_path):
    with started(tmp_path) as kinesis:
        kinesis.create_stream("s", shards=1)
        client = kinesis.client("kinesis")
        client.add_tags_to_stream(StreamName="s", Tags={"team": "blue"})
        for i in range(5):
            client.put_record(StreamName="s", Data=b"%d" % i, PartitionKey="k")
        client.split_shard(StreamName="s", ShardToSplit=FIRST, NewStartingHashKey="1000")
        kinesis.clock.advance(1)
        client.put_record(StreamName="s", Data=b"child", PartitionKey="k", ExplicitHashKey="5")
        shards = client.list_shards(StreamName="s")["Shards"]
        before = read(kinesis, "s"), read(kinesis, "s", "shardId-000000000001")
        iterator = client.get_shard_iterator(StreamName="s", ShardId=FIRST, ShardIteratorType="TRIM_HORIZON")
        now_ms = kinesis.clock.now_ms()
    with started(tmp_path) as kinesis:
        client = kinesis.client("kinesis")
        assert kinesis.clock.now_ms() >= now_ms
        assert client.list_shards(StreamName="s")["Shards"] == shards
        assert (read(kinesis, "s"), read(kinesis, "s", "shardId-000000000001")) == before
        assert len(client.get_records(ShardIterator=iterator["ShardIterator"])["Records"]) == 5
        assert client.list_tags_for_stream(StreamName="s")["Tags"] == [{"Key": "team", "Value": "blue"}]
        number = client.put_record(StreamName="s", Data=b"later", PartitionKey="k", ExplicitHashKey="5")
        assert int(number["SequenceNumber"]) > int(before[1][-1][0])
        children = client.get_records(ShardIterator=iterator["ShardIterator"])["ChildShards"]
        assert [c["ShardId"] for c in children] == ["shardId-000000000001", "shardId-000000000002"]


def test_a_deleted_stream_stays_deleted_and_a_clock_that_was_moved_stays_moved(tmp_path):
    with started(tmp_path) as kinesis:
        kinesis.create_stream("gone")
        kinesis.create_stream("kept")
        kinesis.client("kinesis").delete_stream(StreamName="gone")
        moved_s = kinesis.clock.advance(7200)
    with started(tmp_path) as kinesis:
        assert set(kinesis.state()["streams"]) == {"kept"}
        assert kinesis.clock.now_s() >= moved_s


def test_trimmed_records_do_not_come_back_and_numbers_go_on(tmp_path):
    with started(tmp_path) as kinesis:
        kinesis.create_stream("s")
        client = kinesis.client("kinesis")
        first = client.put_record(StreamName="s", Data=b"old", PartitionKey="k")["SequenceNumber"]
        kinesis.clock.advance(25 * 3600)
    for _ in range(2):
        with started(tmp_path) as kinesis:
            assert kinesis.state()["streams"]["s"]["shards"][FIRST]["records"] == 0
    with started(tmp_path) as kinesis:
        second = kinesis.client("kinesis").put_record(StreamName="s", Data=b"new", PartitionKey="k")
        assert int(second["SequenceNumber"]) > int(first)
        assert [d for _, d in read(kinesis, "s")] == [b"new"]


def test_acknowledged_records_survive_a_killed_server(tmp_path):
    server = LocalKinesisProcess(limits=False, state_dir=tmp_path).start()
    server.create_stream("s")
    acknowledged: list[tuple[str, bytes]] = []
    enough = threading.Event()

    def put() -> None:
        client = server.client("kinesis")
        number = 0
        try:
            while True:
                data = b"%d" % number
                answer = client.put_record(StreamName="s", Data=data, PartitionKey="k")
                acknowledged.append((answer["SequenceNumber"], data))
                number += 1
                if number == 100:
                    enough.set()
        except (BotoCoreError, ClientError):
            return

    writer = threading.Thread(target=put)
    writer.start()
    assert enough.wait(30)
    server.kill()
    writer.join(60)
    with started(tmp_path) as kinesis:
        kept = read(kinesis, "s")
        # one more may have been written whose answer was never sent
        assert kept[: len(acknowledged)] == acknowledged
        assert len(kept) <= len(acknowledged) + 1


def test_a_frame_that_was_cut_short_is_dropped_and_the_rest_is_kept(tmp_path, caplog):
    with started(tmp_path) as kinesis:
        kinesis.create_stream("s")
        kinesis.client("kinesis").put_record(StreamName="s", Data=b"kept", PartitionKey="k")
    journal = tmp_path / "kinesis.journal"
    journal.write_bytes(journal.read_bytes() + struct.pack(">IIc", 1000, 0, b"R") + b"half")
    with started(tmp_path) as kinesis:
        assert [d for _, d in read(kinesis, "s")] == [b"kept"]
    assert "the last 13 bytes were cut short by a crash and are dropped" in caplog.text


def test_a_damaged_journal_stops_the_start_instead_of_losing_records(tmp_path):
    with started(tmp_path) as kinesis:
        kinesis.create_stream("s")
        kinesis.client("kinesis").put_record(StreamName="s", Data=b"kept" * 50, PartitionKey="k")
    journal = tmp_path / "kinesis.journal"
    raw = bytearray(journal.read_bytes())
    raw[raw.index(b"SequenceNumber")] ^= 1
    journal.write_bytes(raw)
    with pytest.raises(OptionError, match=r"is damaged at byte \d+ of \d+"):
        started(tmp_path).start()
    assert journal.read_bytes() == raw


def test_a_folder_serves_one_server_at_a_time(tmp_path):
    with started(tmp_path), pytest.raises(OptionError, match="is in use by another server"):
        started(tmp_path).start()
    with started(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot be used"):
        started(tmp_path / "file" / "below").start()


def test_a_full_memory_refuses_writes_by_name(tmp_path):
    with started(tmp_path, memory_bytes_max=5000) as kinesis:
        kinesis.create_stream("s")
        client = kinesis.client("kinesis")
        client.put_record(StreamName="s", Data=bytes(2000), PartitionKey="k")
        with pytest.raises(ClientError, match=r"StorageFullException.*memory_bytes_max=5000") as caught:
            client.put_record(StreamName="s", Data=bytes(2000), PartitionKey="k")
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 507
        kinesis.clock.advance(25 * 3600)
        client.put_record(StreamName="s", Data=bytes(2000), PartitionKey="k")


def test_the_journal_is_written_anew_when_most_of_it_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.local.journal._COMPACT_BYTES_MIN", 10_000)
    monkeypatch.setattr("penstock.local.server._SWEEP_S", 0.01)
    with started(tmp_path) as kinesis:
        kinesis.create_stream("s")
        client = kinesis.client("kinesis")
        client.put_record(StreamName="s", Data=bytes(100_000), PartitionKey="k")
        kinesis.clock.advance(25 * 3600)
        client.put_record(StreamName="s", Data=b"young", PartitionKey="k")
        done = threading.Event()
        for _ in range(1000):
            if (tmp_path / "kinesis.journal").stat().st_size < 10_000:
                done.set()
                break
            done.wait(0.01)
        assert done.is_set()
    with started(tmp_path) as kinesis:
        assert [d for _, d in read(kinesis, "s")] == [b"young"]


# -- tables -------------------------------------------------------------------------------------------------


def make_table(client) -> None:
    client.create_table(
        TableName="leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[
            {"AttributeName": "leaseKey", "AttributeType": "S"},
            {"AttributeName": "leaseOwner", "AttributeType": "S"},
        ],
        BillingMode="PAY_PER_REQUEST",
        GlobalSecondaryIndexes=[
            {
                "IndexName": "ByOwner",
                "KeySchema": [{"AttributeName": "leaseOwner", "KeyType": "HASH"}],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
        Tags=[{"Key": "team", "Value": "blue"}],
    )


def test_tables_survive_a_restart_with_indexes_tags_and_items(tmp_path):
    with started(tmp_path) as kinesis:
        client = kinesis.client("dynamodb")
        make_table(client)
        for i in range(60):
            client.put_item(
                TableName="leases", Item={"leaseKey": {"S": f"{i:02d}"}, "leaseOwner": {"S": "me"}}
            )
        client.delete_item(TableName="leases", Key={"leaseKey": {"S": "07"}})
        client.update_time_to_live(
            TableName="leases", TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"}
        )
        client.update_continuous_backups(
            TableName="leases", PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
        )
    for _ in range(2):
        with started(tmp_path) as kinesis:
            client = kinesis.client("dynamodb")
            items = client.scan(TableName="leases", ConsistentRead=True)["Items"]
            assert sorted(i["leaseKey"]["S"] for i in items) == [f"{i:02d}" for i in range(60) if i != 7]
            table = client.describe_table(TableName="leases")["Table"]
            assert [i["IndexName"] for i in table["GlobalSecondaryIndexes"]] == ["ByOwner"]
            assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
            assert client.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"] == [
                {"Key": "team", "Value": "blue"}
            ]
            assert (
                client.describe_time_to_live(TableName="leases")["TimeToLiveDescription"]["AttributeName"]
                == "expires"
            )
            backups = client.describe_continuous_backups(TableName="leases")["ContinuousBackupsDescription"]
            assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"


def test_acknowledged_table_writes_survive_a_killed_server(tmp_path):
    server = LocalKinesisProcess(limits=False, state_dir=tmp_path).start()
    client = server.client("dynamodb")
    make_table(client)
    for i in range(10):
        client.put_item(TableName="leases", Item={"leaseKey": {"S": str(i)}})
    with pytest.raises(ClientError, match="ConditionalCheckFailed"):
        client.put_item(
            TableName="leases",
            Item={"leaseKey": {"S": "0"}, "x": {"S": "y"}},
            ConditionExpression="attribute_not_exists(leaseKey)",
        )
    server.kill()
    with started(tmp_path) as kinesis:
        items = kinesis.client("dynamodb").scan(TableName="leases")["Items"]
        assert sorted(i["leaseKey"]["S"] for i in items) == [str(i) for i in range(10)]
        assert all(set(i) == {"leaseKey"} for i in items)


def test_a_damaged_table_file_stops_the_start(tmp_path):
    with started(tmp_path) as kinesis:
        make_table(kinesis.client("dynamodb"))
    tables = tmp_path / "dynamodb.jsonl"
    whole = tables.read_bytes()
    tables.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(OptionError, match=r"dynamodb.jsonl is damaged in line 1"):
        started(tmp_path).start()
    tables.write_bytes(whole + whole)
    with pytest.raises(OptionError, match=r"line \d+ \(CreateTable\) is refused"):
        started(tmp_path).start()


def test_a_line_that_was_cut_short_is_dropped(tmp_path, caplog):
    with started(tmp_path) as kinesis:
        make_table(kinesis.client("dynamodb"))
    tables = tmp_path / "dynamodb.jsonl"
    tables.write_bytes(tables.read_bytes() + b'["us-east-1","PutIt')
    with started(tmp_path) as kinesis:
        assert kinesis.client("dynamodb").list_tables()["TableNames"] == ["leases"]
    assert "its last line was cut short by a crash and is dropped" in caplog.text


def test_the_table_file_is_written_anew_when_it_grows_long(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.local.tables._LINES_MAX", 20)
    with started(tmp_path) as kinesis:
        client = kinesis.client("dynamodb")
        make_table(client)
        for i in range(50):
            client.put_item(TableName="leases", Item={"leaseKey": {"S": "same"}, "n": {"N": str(i)}})
        assert len((tmp_path / "dynamodb.jsonl").read_bytes().splitlines()) <= 23
    with started(tmp_path) as kinesis:
        (item,) = kinesis.client("dynamodb").scan(TableName="leases")["Items"]
        assert item["n"] == {"N": "49"}


def test_a_process_that_cannot_start_says_why(tmp_path):
    with started(tmp_path), pytest.raises(Unavailable, match="in use by another server"):
        LocalKinesisProcess(state_dir=tmp_path).start()
