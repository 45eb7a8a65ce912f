"""Subscriptions with enhanced fan-out as boto3 sees them: positions, ends, take-overs, rates."""

from __future__ import annotations

import pytest
from botocore.exceptions import EventStreamError

from fan_out import FIRST, data_of

MIB = 1024 * 1024


@pytest.fixture
def consumer(rig) -> str:
    return rig.register(rig.server.create_stream("s"))


def put(rig, *data: bytes) -> list[str]:
    return [rig.kinesis.put_record(StreamName="s", Data=d, PartitionKey="k")["SequenceNumber"] for d in data]


def code_of(events) -> str:
    """The error that ends the events."""
    with pytest.raises(EventStreamError) as caught:
        list(events)
    return str(caught.value.response["Error"]["Code"])


def test_records_come_in_order_as_they_are_put(rig, consumer):
    put(rig, b"1", b"2")
    events = rig.subscribe(consumer)
    assert data_of(next(events)) == [b"1", b"2"]
    put(rig, b"3")
    event = next(events)
    assert data_of(event) == [b"3"]
    assert event["MillisBehindLatest"] == 0
    assert event["ContinuationSequenceNumber"] == event["Records"][0]["SequenceNumber"]


def test_every_starting_position(rig, consumer):
    first, second, _ = put(rig, b"1", b"2", b"3")
    rig.clock.advance(10)
    moment = rig.moment(rig.clock.now_ms())
    put(rig, b"4")

    def read(kind: str, **position) -> list[bytes]:
        return data_of(next(rig.subscribe(consumer, kind=kind, **position)))

    assert read("TRIM_HORIZON") == [b"1", b"2", b"3", b"4"]
    assert read("LATEST") == []
    assert read("AT_SEQUENCE_NUMBER", SequenceNumber=second) == [b"2", b"3", b"4"]
    assert read("AFTER_SEQUENCE_NUMBER", SequenceNumber=first) == [b"2", b"3", b"4"]
    assert read("AT_TIMESTAMP", Timestamp=moment) == [b"4"]


def test_a_position_that_does_not_fit_is_refused_before_the_stream(rig, consumer):
    ask = {"ConsumerARN": consumer, "ShardId": FIRST}
    for position in (
        {"Type": "AT_SEQUENCE_NUMBER"},
        {"Type": "AT_TIMESTAMP"},
        {"Type": "LATEST", "SequenceNumber": "1"},
        {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": "4"},
    ):
        refused = rig.refused(rig.kinesis.subscribe_to_shard, **ask, StartingPosition=position)
        assert refused == ("InvalidArgumentException", 400)
    ask |= {"ShardId": "shardId-000000000009", "StartingPosition": {"Type": "LATEST"}}
    assert rig.refused(rig.kinesis.subscribe_to_shard, **ask) == ("ResourceNotFoundException", 400)


def test_an_idle_shard_sends_an_empty_event_every_five_seconds_to_go_on_from(rig, consumer):
    events = rig.subscribe(consumer, kind="LATEST")
    numbers = [next(events)["ContinuationSequenceNumber"]]
    for _ in range(2):
        rig.clock.advance(5)
        event = next(events)
        assert (data_of(event), event["MillisBehindLatest"]) == ([], 0)
        numbers.append(event["ContinuationSequenceNumber"])
    (put_number,) = put(rig, b"1")
    for number in numbers:
        assert int(number) < int(put_number)
        going_on = rig.subscribe(consumer, kind="AFTER_SEQUENCE_NUMBER", SequenceNumber=number)
        assert data_of(next(going_on)) == [b"1"]
        iterator = {"kind": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": number}
        assert rig.read("s", **iterator) == [b"1"]


def test_it_goes_on_behind_an_empty_event_after_records(rig, consumer):
    put(rig, b"1")
    events = rig.subscribe(consumer)
    next(events)
    rig.clock.advance(5)
    number = next(events)["ContinuationSequenceNumber"]
    put(rig, b"2")
    for kind in ("AFTER_SEQUENCE_NUMBER", "AT_SEQUENCE_NUMBER"):
        assert data_of(next(rig.subscribe(consumer, kind=kind, SequenceNumber=number))) == [b"2"]


def test_it_ends_in_order_after_five_minutes(rig, consumer):
    events = rig.subscribe(consumer)
    next(events)
    rig.clock.advance(299)
    assert data_of(next(events)) == []
    rig.clock.advance(1)
    assert list(events) == []


def test_the_end_of_a_shard_names_its_children_and_no_continuation(rig, consumer):
    put(rig, b"1")
    events = rig.subscribe(consumer)
    assert data_of(next(events)) == [b"1"]
    rig.split("s", FIRST, 2**127)
    (last,) = events
    assert "ContinuationSequenceNumber" not in last
    assert [(c["ShardId"][-1], c["ParentShards"]) for c in last["ChildShards"]] == [
        ("1", [FIRST]),
        ("2", [FIRST]),
    ]
    assert last["ChildShards"][0]["HashKeyRange"] == {
        "StartingHashKey": "0",
        "EndingHashKey": str(2**127 - 1),
    }
    rig.kinesis.merge_shards(
        StreamName="s", ShardToMerge="shardId-000000000001", AdjacentShardToMerge="shardId-000000000002"
    )
    rig.settle()
    (last,) = rig.subscribe(consumer, "shardId-000000000002")
    assert [(c["ShardId"][-1], len(c["ParentShards"])) for c in last["ChildShards"]] == [("3", 2)]


def test_a_second_subscription_takes_over(rig, consumer):
    first = rig.subscribe(consumer)
    next(first)
    second = rig.subscribe(consumer)
    assert code_of(first) == "ResourceInUseException"
    put(rig, b"1")
    assert next(data for data in map(data_of, second) if data) == [b"1"]


def test_consumers_do_not_touch_each_other(rig, consumer):
    other = rig.register(rig.summary("s")["StreamARN"], "d")
    one, two = rig.subscribe(consumer), rig.subscribe(other)
    for events in (one, two):
        next(events)
    put(rig, b"1")
    assert data_of(next(one)) == data_of(next(two)) == [b"1"]


@pytest.mark.parametrize("what", ["consumer", "stream"])
def test_it_fails_when_the_consumer_or_the_stream_is_gone(rig, consumer, what):
    events = rig.subscribe(consumer)
    next(events)
    if what == "consumer":
        rig.kinesis.deregister_stream_consumer(ConsumerARN=consumer)
    else:
        rig.kinesis.delete_stream(StreamName="s", EnforceConsumerDeletion=True)
        rig.settle()
    assert code_of(events) == "ResourceNotFoundException"


def test_the_state_shows_who_is_subscribed(rig, consumer):
    assert rig.server.state()["streams"]["s"]["consumers"] == {"c": {"status": "ACTIVE", "subscribed": []}}
    events = rig.subscribe(consumer)
    next(events)
    assert rig.server.state()["streams"]["s"]["consumers"]["c"]["subscribed"] == [FIRST]
    rig.clock.advance(300)
    assert list(events) == []
    assert rig.server.state()["streams"]["s"]["consumers"]["c"]["subscribed"] == []


def test_a_dry_run_takes_nothing_over(rig, consumer):
    events = rig.subscribe(consumer)
    next(events)
    ask = {"ConsumerARN": consumer, "ShardId": FIRST, "StartingPosition": {"Type": "LATEST"}, "DryRun": True}
    assert rig.refused(rig.kinesis.subscribe_to_shard, **ask) == ("DryRunOperationException", 400)
    put(rig, b"1")
    assert data_of(next(events)) == [b"1"]


# -- quotas -------------------------------------------------------------------------------------------------


def test_a_call_is_refused_for_a_second_and_then_until_five_have_passed(limited):
    consumer = limited.register(limited.server.create_stream("s"))
    ask = {"ConsumerARN": consumer, "ShardId": FIRST, "StartingPosition": {"Type": "LATEST"}}
    call = limited.kinesis.subscribe_to_shard
    first = limited.subscribe(consumer)
    next(first)
    assert limited.refused(call, **ask) == ("LimitExceededException", 400)
    limited.clock.advance(4.9)
    assert limited.refused(call, **ask) == ("ResourceInUseException", 400)
    # a refused call does not restart the five seconds
    limited.clock.advance(1)
    next(limited.subscribe(consumer))
    assert code_of(first) == "ResourceInUseException"


def test_what_is_polled_is_not_taken_from_what_is_pushed(limited):
    consumer = limited.register(limited.server.create_stream("s"))
    for _ in range(2):
        for _ in range(4):
            limited.kinesis.put_record(StreamName="s", Data=bytes(MIB // 4 - 1), PartitionKey="k")
        limited.clock.advance(1)
    iterator = limited.iterator("s")
    limited.kinesis.get_records(ShardIterator=iterator)
    refused = limited.refused(limited.kinesis.get_records, ShardIterator=iterator)
    assert refused == ("ProvisionedThroughputExceededException", 400)
    events = limited.subscribe(consumer)
    assert [len(data_of(next(events))) for _ in range(8)] == [1] * 8
