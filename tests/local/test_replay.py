"""A recorded stream, served again: the service's own calls see the same stream."""

from __future__ import annotations

import contextlib
import time

import pytest

pytest.importorskip("pyarrow")

from botocore.exceptions import ClientError

from penstock.cli import main as cli
from penstock_local import LocalKinesis
from penstock_local.errors import OptionError
from waiting import wait_until


def shards_of(client, stream="orders"):
    return client.list_shards(StreamName=stream)["Shards"]


def read_all(client, shard_id, stream="orders", limit=10_000, **start):
    """Return a shard's records up to the tip or its end, and the children."""
    asked = start or {"ShardIteratorType": "TRIM_HORIZON"}
    iterator = client.get_shard_iterator(StreamName=stream, ShardId=shard_id, **asked)["ShardIterator"]
    records = []
    while True:
        page = client.get_records(ShardIterator=iterator, Limit=limit)
        records += [
            (each["SequenceNumber"], each["PartitionKey"], each["Data"], each["ApproximateArrivalTimestamp"])
            for each in page["Records"]
        ]
        iterator = page.get("NextShardIterator")
        if iterator is None or not page["MillisBehindLatest"]:
            return records, [child["ShardId"] for child in page.get("ChildShards", [])]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The path of a recording with a split and a merge, its shards and its records by shard."""
    path = tmp_path_factory.mktemp("recording") / "incident.penstock"
    with LocalKinesis(settle_s=0.0, limits=False) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environ().items():
            patch.setenv(name, value)
        client = server.client("kinesis")
        server.create_stream("orders", 2)

        def put(prefix):
            for number in range(30):
                client.put_record(StreamName="orders", Data=f"{prefix}{number}", PartitionKey=f"k{number}")
            server.clock.advance(60)

        put("one")
        client.split_shard(
            StreamName="orders", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125)
        )
        server.clock.advance(60)
        put("two")
        client.merge_shards(
            StreamName="orders",
            ShardToMerge="shardId-000000000003",
            AdjacentShardToMerge="shardId-000000000001",
        )
        put("three")
        assert cli.main(["record", "orders", "--since", "1h", "-o", str(path)]) == 0
        found = shards_of(client)
        return path, found, {shard["ShardId"]: read_all(client, shard["ShardId"]) for shard in found}


def test_at_once_everything_is_as_it_was(recorded):
    path, shards, records = recorded
    with LocalKinesis(replay=(path,), limits=False) as server:
        client = server.client("kinesis")
        assert shards_of(client) == shards
        assert {shard["ShardId"]: read_all(client, shard["ShardId"]) for shard in shards} == records
        assert {shard["ShardId"]: read_all(client, shard["ShardId"], limit=7) for shard in shards} == records
        state = server.replay.state()["streams"]["orders"]
        assert state == {"records": 90, "appeared": 90}
        summary = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
        assert (summary["OpenShardCount"], summary["RetentionPeriodHours"]) == (2, 24)


def test_every_position_leads_to_the_same_record(recorded):
    path, _, records = recorded
    with LocalKinesis(replay=(path,), limits=False) as server:
        client = server.client("kinesis")
        for shard_id, (rows, _) in records.items():
            for place in {0, len(rows) // 2, len(rows) - 1} if rows else ():
                number, _, _, arrived = rows[place]
                at = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": number}
                assert read_all(client, shard_id, **at)[0] == rows[place:]
                after = {**at, "ShardIteratorType": "AFTER_SEQUENCE_NUMBER"}
                assert read_all(client, shard_id, **after)[0] == rows[place + 1 :]
                since = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": arrived}
                expected = [row for row in rows if row[3] >= arrived]
                assert read_all(client, shard_id, **since)[0] == expected
            assert read_all(client, shard_id, ShardIteratorType="LATEST")[0] == []


def test_a_number_of_another_shard_is_refused(recorded):
    path, _, records = recorded
    with LocalKinesis(replay=(path,), limits=False) as server:
        number = records["shardId-000000000004"][0][0][0]
        with pytest.raises(ClientError, match="did not come from this stream"):
            read_all(
                server.client("kinesis"),
                "shardId-000000000000",
                ShardIteratorType="AT_SEQUENCE_NUMBER",
                StartingSequenceNumber=number,
            )


def test_records_and_reshards_appear_at_their_moments(recorded):
    path, shards, records = recorded
    arrivals = sorted(row[3].timestamp() for rows, _ in records.values() for row in rows)
    with LocalKinesis(replay=(path,), replay_from="start", time_factor=0, limits=False) as server:
        client = server.client("kinesis")
        assert server.clock.now_s() < arrivals[0]
        assert [shard["ShardId"][-1] for shard in shards_of(client)] == ["0", "1"]
        assert all("EndingSequenceNumber" not in shard["SequenceNumberRange"] for shard in shards_of(client))
        server.clock.advance(arrivals[29] - server.clock.now_s() + 0.001)
        assert server.replay.state()["streams"]["orders"]["appeared"] == 30
        assert [shard["ShardId"][-1] for shard in shards_of(client)] in (["0", "1"], ["0", "1", "2", "3"])
        server.clock.advance(100)
        assert [shard["ShardId"][-1] for shard in shards_of(client)] == ["0", "1", "2", "3"]
        rows, children = read_all(client, "shardId-000000000000")
        assert (rows, children) == records["shardId-000000000000"]
        assert read_all(client, "shardId-000000000001")[1] == []
        server.clock.advance(3600)
        assert shards_of(client) == shards
        assert {shard["ShardId"]: read_all(client, shard["ShardId"]) for shard in shards} == records


def test_a_step_shows_the_next_records(recorded):
    path, _, records = recorded
    arrivals = sorted({row[3].timestamp() for rows, _ in records.values() for row in rows})
    with LocalKinesis(replay=(path,), replay_from="start", time_factor=0) as server:
        server.replay.step()
        assert server.clock.now_s() == pytest.approx(arrivals[0])
        server.replay.step(3)
        assert server.clock.now_s() == pytest.approx(arrivals[3])
        state = server.replay.step(1_000)
        assert state["streams"]["orders"] == {"records": 90, "appeared": 90}
        assert server.replay.step() == state
        with pytest.raises(OptionError, match="by at least 1, not 0"):
            server.replay.step(0)


def test_a_fast_replay_appears_by_itself_and_wakes_a_subscription(recorded):
    path, _, records = recorded
    with LocalKinesis(replay=(path,), replay_from="start", time_factor=1000) as server:
        client = server.client("kinesis")
        arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
        consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]["ConsumerARN"]
        found = []

        def read_once():
            with contextlib.suppress(client.exceptions.ResourceInUseException):
                position = {"Type": "TRIM_HORIZON"}
                if found:
                    position = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": found[-1][0]}
                answer = client.subscribe_to_shard(
                    ConsumerARN=consumer, ShardId="shardId-000000000000", StartingPosition=position
                )
                with contextlib.closing(answer["EventStream"]) as events:
                    for event in events:
                        page = event["SubscribeToShardEvent"]
                        found.extend((row["SequenceNumber"], row["Data"]) for row in page["Records"])
                        if page.get("ChildShards"):
                            return True
            return False

        wait_until(read_once, "the shard to be read to its end")
        assert found == [(row[0], row[2]) for row in records["shardId-000000000000"][0]]
        wait_until(lambda: server.replay.state()["streams"]["orders"]["appeared"] == 90, "all records")


def test_a_replay_takes_no_changes_but_other_streams_do(recorded):
    path = recorded[0]
    with LocalKinesis(replay=(path,), settle_s=0.0) as server:
        client = server.client("kinesis")
        with pytest.raises(ClientError, match=r"is replayed from .* and cannot be changed") as refused:
            client.put_record(StreamName="orders", Data=b"x", PartitionKey="k")
        assert refused.value.response["Error"]["Code"] == "InvalidArgumentException"
        with pytest.raises(ClientError, match="Stream orders is replayed from"):
            client.split_shard(
                StreamName="orders", ShardToSplit="shardId-000000000002", NewStartingHashKey="100"
            )
        server.create_stream("results", 1)
        client.put_record(StreamName="results", Data=b"x", PartitionKey="k")
        assert read_all(client, "shardId-000000000000", "results")[0][0][2] == b"x"
        client.delete_stream(StreamName="orders")
        assert client.list_streams()["StreamNames"] == ["results"]


def test_a_damaged_recording_is_refused_with_its_place(recorded, tmp_path):
    path = recorded[0]
    content = bytearray(path.read_bytes())
    for place, sentence in [(200, r"batch 0 of \d+ \(bytes 4 to \d+, \d+ records of shardId-\d+ from \d+ on\) is damaged"),
                            (content.index(b'"until_ms"'), "damaged")]:  # fmt: skip
        damaged = tmp_path / f"damaged{place}.penstock"
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(OptionError, match=sentence):
            LocalKinesis(replay=(damaged,)).start()
    cut = tmp_path / "cut.penstock"
    cut.write_bytes(content[:-1])
    with pytest.raises(OptionError, match=rf"is cut off at byte {len(content) - 1}"):
        LocalKinesis(replay=(cut,)).start()
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        LocalKinesis(replay=(tmp_path / "missing",)).start()


def test_options_of_a_replay_are_checked(recorded, tmp_path):
    path = recorded[0]
    with pytest.raises(OptionError, match="replay and state_dir exclude each other"):
        LocalKinesis(replay=(path,), state_dir=tmp_path)
    with pytest.raises(OptionError, match=r"replay takes a tuple of recordings, not 'a'"):
        LocalKinesis(replay="a")
    with pytest.raises(OptionError, match="two recordings are of a stream orders"):
        LocalKinesis(replay=(path, path)).start()
    with LocalKinesis() as server, pytest.raises(OptionError, match="this server replays no recording"):
        server.replay.step()


def test_the_command_replays_in_a_process_of_its_own(recorded):
    path, shards, _ = recorded
    with LocalKinesis.process(replay=(path,)) as server:
        assert shards_of(server.client("kinesis")) == shards
    with LocalKinesis.process(replay=(path,), replay_from="start", time_factor=1000.0) as server:
        began = time.monotonic()
        wait_until(lambda: server.replay.state()["streams"]["orders"]["appeared"] == 90, "all records")
        assert time.monotonic() - began > 1
