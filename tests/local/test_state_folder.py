"""The state that a server with a state folder keeps over a restart, and over a crash."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import struct
import threading
import zlib

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from penstock_local import LocalKinesis, LocalKinesisProcess, journal
from penstock_local.errors import OptionError, Unavailable
from penstock_local.table_image import Image
from waiting import DEADLINE_S, wait_until

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


def test_trimmed_records_stay_gone_when_the_retention_is_raised_before_a_crash(tmp_path):
    with started(tmp_path / "state") as kinesis:
        kinesis.create_stream("s")
        client = kinesis.client("kinesis")
        client.put_record(StreamName="s", Data=b"old", PartitionKey="k")
        kinesis.clock.advance(25 * 3600)
        client.increase_stream_retention_period(StreamName="s", RetentionPeriodHours=48)
        client.put_record(StreamName="s", Data=b"new", PartitionKey="k")
        before = read(kinesis, "s")
        assert [data for _, data in before] == [b"new"]
        shutil.copytree(tmp_path / "state", tmp_path / "crashed")
    with started(tmp_path / "crashed") as kinesis:
        assert read(kinesis, "s") == before


def test_a_start_that_fails_leaves_every_file_as_it_is(tmp_path):
    with started(tmp_path / "state") as kinesis:
        kinesis.create_stream("s")
        make_table(kinesis.client("dynamodb"))
        shutil.copytree(tmp_path / "state", tmp_path / "crashed")
    folder = tmp_path / "crashed"
    (folder / "kinesis.journal").write_bytes((folder / "kinesis.journal").read_bytes() + b"cut short")
    raw = bytearray((folder / "dynamodb.journal").read_bytes())
    raw[len(raw) // 2] ^= 1
    (folder / "dynamodb.journal").write_bytes(raw)
    before = contents(folder)
    with pytest.raises(OptionError, match=r"dynamodb.journal is damaged at byte"):
        started(folder).start()
    assert contents(folder) == before


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
    assert enough.wait(DEADLINE_S)
    server.kill()
    writer.join(60)
    with started(tmp_path) as kinesis:
        kept = read(kinesis, "s")
        # one more may have been written whose answer was never sent
        assert kept[: len(acknowledged)] == acknowledged
        assert len(kept) <= len(acknowledged) + 1


def test_a_record_that_was_cut_short_is_dropped_and_the_rest_is_kept(tmp_path, caplog):
    with started(tmp_path) as kinesis:
        kinesis.create_stream("s")
        kinesis.client("kinesis").put_record(StreamName="s", Data=b"kept", PartitionKey="k")
    journal = tmp_path / "kinesis.journal"
    whole = journal.read_bytes()
    with started(tmp_path) as kinesis:
        kinesis.client("kinesis").put_record(StreamName="s", Data=b"x" * 1000, PartitionKey="k")
        longer = journal.read_bytes()
    journal.write_bytes(longer[: len(whole) + 500])
    for _ in range(2):
        with started(tmp_path) as kinesis:
            assert [d for _, d in read(kinesis, "s")] == [b"kept"]
    assert caplog.text.count("its last 500 bytes were cut short by a crash and are dropped") == 1


@pytest.mark.parametrize("name", ["kinesis.journal", "dynamodb.journal"])
def test_a_damaged_journal_stops_the_start_instead_of_losing_what_follows(tmp_path, name):
    with started(tmp_path) as kinesis:
        kinesis.create_stream("s")
        kinesis.client("kinesis").put_record(StreamName="s", Data=b"kept" * 50, PartitionKey="k")
        make_table(kinesis.client("dynamodb"))
    journal = tmp_path / name
    raw = bytearray(journal.read_bytes())
    # the first byte after the file's own mark is the highest of a length
    raw[raw.index(b"\n") + 1] ^= 0x40
    journal.write_bytes(raw)
    before = contents(tmp_path)
    said = rf"{name} is damaged at byte 19 of {len(raw)}: .*The first 19 bytes can be read, and nothing was changed\."
    for _ in range(2):
        with pytest.raises(OptionError, match=said + r".*run `truncate -s 19 .*move the state folder away"):
            started(tmp_path).start()
    assert contents(tmp_path) == before


def test_what_the_error_advises_brings_back_what_can_be_read(tmp_path):
    with started(tmp_path) as kinesis:
        kinesis.create_stream("s")
        client = kinesis.client("kinesis")
        for i in range(20):
            client.put_record(StreamName="s", Data=b"%d" % i, PartitionKey="k")
    journal = tmp_path / "kinesis.journal"
    whole = journal.read_bytes()
    for at in (0, 30, len(whole) // 2, len(whole) - 1):
        raw = bytearray(whole)
        raw[at] ^= 1
        journal.write_bytes(raw)
        with pytest.raises(OptionError) as caught:
            started(tmp_path).start()
        advice = re.search(r"`truncate -s (\d+) (\S+)`", str(caught.value))
        assert (advice is None) == (at == 0)
        if advice is None:
            continue
        assert advice[2] == str(journal)
        os.truncate(journal, int(advice[1]))
        with started(tmp_path) as kinesis:
            present = kinesis.state()["streams"]
            kept = [data for _, data in read(kinesis, "s")] if present else []
            assert kept == [b"%d" % i for i in range(len(kept))]
            assert len(kept) == (0 if at == 30 else 20 if at == len(whole) - 1 else len(kept))


def test_a_folder_of_the_first_version_is_refused_as_such(tmp_path):
    document = b'{"version":1,"key":"00"}'
    head = struct.pack(">IIc", len(document), zlib.crc32(document), b"M")
    (tmp_path / "kinesis.journal").write_bytes(head + document)
    with pytest.raises(
        OptionError, match=r"version 0\.1\.0 wrote it.* to start over, move the state folder away"
    ):
        started(tmp_path).start()


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_serves_one_server_at_a_time(tmp_path):
    with started(tmp_path), pytest.raises(OptionError, match="is in use by another server"):
        started(tmp_path).start()
    with started(tmp_path):
        pass


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_folder_that_is_removed_under_a_server_is_reported_once(tmp_path, caplog, is_replaced):
    folder = tmp_path / "state"
    with LocalKinesis(state_dir=folder) as kinesis:
        kinesis.create_stream("orders")
        folder.rename(tmp_path / "aside")
        if is_replaced:
            folder.mkdir()
        wait_until(lambda: "was removed, moved or replaced" in caplog.text, "the report")
        if is_replaced:
            folder.rmdir()
        (tmp_path / "aside").rename(folder)  # put back, nothing is lost
        kinesis.create_stream("returns")
    assert caplog.text.count("was removed, moved or replaced") == 1
    with LocalKinesis(state_dir=folder) as kinesis:
        assert list(kinesis.state()["streams"]) == ["orders", "returns"]


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


def losing(frames):
    """Make of a function that yields frames one whose last frame is not written: it is there in each second call only."""
    loses = itertools.cycle([True, False])

    def fewer(*args):
        found = list(frames(*args))
        return found[:-1] if next(loses) else found

    return fewer


def test_a_journal_is_not_replaced_by_one_that_holds_less(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("penstock_local.journal._record_payloads", losing(journal._record_payloads))
    monkeypatch.setattr("penstock_local.table_image.Image.deltas", losing(Image.deltas))
    monkeypatch.setattr("penstock_local.journal._COMPACT_BYTES_MIN", 10)
    monkeypatch.setattr("penstock_local.tables._COMPACT_BYTES_MIN", 10)
    monkeypatch.setattr("penstock_local.server._SWEEP_S", 0.01)
    with started(tmp_path) as kinesis:
        kinesis.create_stream("s")
        client, tables = kinesis.client("kinesis"), kinesis.client("dynamodb")
        client.put_record(StreamName="s", Data=b"kept", PartitionKey="k")
        for _ in range(20):
            client.add_tags_to_stream(StreamName="s", Tags={"large": "x" * 200})
        make_table(tables)
        for number in range(9):
            item = {"leaseKey": {"S": "same"}, "n": {"N": str(number)}, "b": {"B": bytes(300)}}
            tables.put_item(TableName="leases", Item=item)

        def is_said():
            client.list_streams()
            names = ("kinesis.journal", "dynamodb.journal")
            return all(f"{tmp_path / name} could not be rewritten" in caplog.text for name in names)

        wait_until(is_said, "both journals to be tried")
    for name in ("kinesis.journal", "dynamodb.journal"):
        assert f"{tmp_path / name} could not be rewritten" in caplog.text
        assert f"{tmp_path / name}.new was read back wrongly" in caplog.text
        assert not (tmp_path / f"{name}.new").exists()
    with started(tmp_path) as kinesis:
        assert [data for _, data in read(kinesis, "s")] == [b"kept"]
        (item,) = kinesis.client("dynamodb").scan(TableName="leases")["Items"]
        assert item["n"] == {"N": "8"}


def test_the_journal_is_written_anew_when_most_of_it_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock_local.journal._COMPACT_BYTES_MIN", 10_000)
    monkeypatch.setattr("penstock_local.server._SWEEP_S", 0.01)
    with started(tmp_path) as kinesis:
        kinesis.create_stream("s")
        client = kinesis.client("kinesis")
        client.put_record(StreamName="s", Data=bytes(100_000), PartitionKey="k")
        kinesis.clock.advance(25 * 3600)
        client.put_record(StreamName="s", Data=b"young", PartitionKey="k")
        wait_until(
            lambda: (tmp_path / "kinesis.journal").stat().st_size < 10_000, "the journal to be rewritten"
        )
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


def test_a_change_of_tables_that_was_cut_short_is_dropped(tmp_path, caplog):
    with started(tmp_path) as kinesis:
        make_table(kinesis.client("dynamodb"))
    tables = tmp_path / "dynamodb.journal"
    tables.write_bytes(tables.read_bytes() + b"\x00\x00\x01")
    with started(tmp_path) as kinesis:
        assert kinesis.client("dynamodb").list_tables()["TableNames"] == ["leases"]
    assert "its last 3 bytes were cut short by a crash and are dropped" in caplog.text


def test_the_file_of_tables_is_written_anew_when_it_grows_long(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock_local.tables._COMPACT_BYTES_MIN", 4000)
    with started(tmp_path) as kinesis:
        client = kinesis.client("dynamodb")
        make_table(client)
        for i in range(50):
            client.put_item(
                TableName="leases",
                Item={"leaseKey": {"S": "same"}, "n": {"N": str(i)}, "b": {"B": bytes(300)}},
            )
        assert 1000 < (tmp_path / "dynamodb.journal").stat().st_size < 8000
    with started(tmp_path) as kinesis:
        (item,) = kinesis.client("dynamodb").scan(TableName="leases")["Items"]
        assert item["n"] == {"N": "49"}
        assert item["b"] == {"B": bytes(300)}


def test_a_process_that_cannot_start_says_why(tmp_path):
    with started(tmp_path), pytest.raises(Unavailable, match="in use by another server"):
        LocalKinesisProcess(state_dir=tmp_path).start()
