"""`penstock.testing.replay`: the same batches and verdicts as in production, for each record of a recording."""

from __future__ import annotations

import pytest

pytest.importorskip("httptools")
pytest.importorskip("pyarrow")

from penstock import testing
from penstock.cli import main as cli
from penstock.core.aggregation import AggregateBuilder
from penstock.errors import DamagedRecording, HandlerFailed, UsageError
from penstock_local import LocalKinesis

PARENT, LEFT, RIGHT = (f"shardId-{number:012d}" for number in range(3))


@pytest.fixture(scope="module")
def incident(tmp_path_factory):
    """Ten records in a shard that is split, an aggregate of two, and ten in its children."""
    path = tmp_path_factory.mktemp("recording") / "incident.penstock"
    with LocalKinesis(settle_s=0.0) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environ().items():
            patch.setenv(name, value)
        client = server.client("kinesis")
        server.create_stream("orders", 1)
        for number in range(10):
            client.put_record(StreamName="orders", Data=f"{number}", PartitionKey=f"k{number}")
        builder = AggregateBuilder()
        builder.add(b"10", "a", "7")
        builder.add(b"11", "b")
        client.put_record(StreamName="orders", Data=builder.build().data, PartitionKey="a")
        client.split_shard(StreamName="orders", ShardToSplit=PARENT, NewStartingHashKey=str(2**127))
        for number in range(12, 22):
            client.put_record(StreamName="orders", Data=f"{number}", PartitionKey=f"k{number}")
        assert cli.main(["record", "orders", "--since", "1h", "-o", str(path)]) == 0
    return path


def numbers(verdicts):
    return sorted(int(each.record.data) for each in verdicts)


def refuse(*bad):
    def handler(batch):
        for record in batch:
            if int(record.data) in bad:
                raise ValueError(f"order {record.data.decode()}")

    return handler


def test_a_handler_that_takes_every_record_is_green(incident):
    taken = []

    def take(batch):
        taken.extend(batch)

    replay = testing.replay(take, incident)
    assert replay.is_green
    assert numbers(replay.verdicts) == list(range(22))
    assert [run.ended_by for run in replay.runs.values()] == ["shard_end", "stop", "stop"]
    assert taken == [each.record for each in replay.verdicts]
    assert [(each.sub_sequence_number, each.explicit_hash_key) for each in taken[10:12]] == [
        (0, "7"),
        (1, None),
    ]
    assert {each.stream for each in taken} == {"orders"}


def test_the_record_that_stops_a_shard_is_named_and_its_children_are_not_reached(incident):
    replay = testing.replay(refuse(4), incident, max_records=1, may_fail=True)
    assert numbers(replay.failed) == [4]
    assert str(replay.failed[0].error) == "order 4"
    assert numbers(replay.not_reached) == list(range(5, 22))
    assert list(replay.runs) == [PARENT]
    assert not replay.is_green


def test_the_whole_batch_fails_with_it_as_in_production(incident):
    replay = testing.replay(refuse(4), incident, may_fail=True)
    assert numbers(replay.failed) == list(range(12))


def test_it_fails_the_test_unless_it_may_fail(incident):
    with pytest.raises(HandlerFailed, match="order 4"):
        testing.replay(refuse(4), incident)


def test_dead_letters_are_verdicts_and_reading_goes_on(incident):
    replay = testing.replay(refuse(4, 15), incident, on_failure="dead_letter", max_records=1)
    assert numbers(replay.dead_letters) == [4, 15]
    assert [str(each.error) for each in replay.dead_letters] == ["order 4", "order 15"]
    assert replay.failed == replay.not_reached == []


def test_a_record_that_passes_at_the_second_attempt_keeps_its_error(incident):
    seen = set()

    def handler(batch):
        for record in batch:
            if record.data == b"3" and record.data not in seen:
                seen.add(record.data)
                raise ConnectionError("the database restarts")

    replay = testing.replay(handler, incident, max_records=1)
    assert replay.is_green
    assert [str(each.error) for each in replay.verdicts if each.error] == ["the database restarts"]


def test_only_some_shards_and_a_range_of_time(incident):
    assert set(testing.replay(lambda _: None, incident, shards=[RIGHT]).runs) == {RIGHT}
    whole = testing.replay(lambda _: None, incident)
    moment = whole.verdicts[-1].record.approximate_arrival_timestamp
    early = testing.replay(lambda _: None, incident, arrived_until=moment)
    late = testing.replay(lambda _: None, incident, arrived_from=moment)
    assert numbers([*early.verdicts, *late.verdicts]) == list(range(22))
    assert early.runs[PARENT].ended_by == "stop"


def test_a_moment_may_be_a_text(incident):
    whole = testing.replay(lambda _: None, incident)
    moment = whole.verdicts[5].record.approximate_arrival_timestamp
    late = testing.replay(lambda _: None, incident, arrived_from=moment.isoformat())
    assert numbers(late.verdicts) == list(range(5, 22))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"shards": ["shardId-7"]}, "shard shardId-7: recording .* has no such shard"),
        ({"shards": PARENT}, r"expected several names, for instance \['shardId-"),
        ({"arrived_until": "yesterday"}, "arrived_until: 'yesterday' is not a moment"),
        ({"arrived_from": "2026-01-31T12:00"}, "has no time zone"),
        ({"arrived_until": 0}, "no record was chosen"),
    ],
)
def test_a_choice_of_nothing_is_no_green_replay(incident, chosen, message):
    with pytest.raises(UsageError, match=message):
        testing.replay(lambda _: None, incident, **chosen)


def test_a_damaged_recording_is_refused(incident, tmp_path):
    content = bytearray(incident.read_bytes())
    content[100] ^= 1
    damaged = tmp_path / "damaged.penstock"
    damaged.write_bytes(content)
    with pytest.raises(DamagedRecording, match="batch 0 of 3"):
        testing.replay(lambda _: None, damaged)


def test_the_fixture_serves_a_recording(incident, penstock_replay):
    import boto3

    server = penstock_replay(incident)
    client = boto3.client("kinesis")
    assert client.list_streams()["StreamNames"] == ["orders"]
    assert len(client.list_shards(StreamName="orders")["Shards"]) == 3
    assert server.replay.state()["streams"]["orders"] == {"records": 21, "appeared": 21}
