"""Consumers with enhanced fan-out: their states, names, numbers and rates, and their stored state."""

from __future__ import annotations

from contextlib import closing

import pytest

from fan_out import FIRST
from penstock_local import LocalKinesis


def status(rig, **named) -> str:
    return rig.kinesis.describe_stream_consumer(**named)["ConsumerDescription"]["ConsumerStatus"]


def test_a_consumer_is_created_active_and_deleted(rig):
    arn = rig.server.create_stream("s")
    made = rig.kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]
    created_s = rig.clock.now_ms() // 1000
    assert made["ConsumerARN"] == f"{arn}/consumer/c:{created_s}"
    assert (made["ConsumerStatus"], made["ConsumerCreationTimestamp"].timestamp()) == ("CREATING", created_s)
    assert status(rig, StreamARN=arn, ConsumerName="c") == "CREATING"
    rig.settle()
    described = rig.kinesis.describe_stream_consumer(ConsumerARN=made["ConsumerARN"])["ConsumerDescription"]
    assert described == {**made, "ConsumerStatus": "ACTIVE", "StreamARN": arn}
    assert rig.summary("s")["ConsumerCount"] == 1
    rig.kinesis.deregister_stream_consumer(ConsumerARN=made["ConsumerARN"])
    assert status(rig, ConsumerARN=made["ConsumerARN"]) == "DELETING"
    rig.settle()
    assert rig.refused(rig.kinesis.describe_stream_consumer, ConsumerARN=made["ConsumerARN"]) == (
        "ResourceNotFoundException",
        400,
    )
    assert rig.summary("s")["ConsumerCount"] == 0


def test_a_consumer_that_comes_back_has_another_arn(rig):
    # a stopped clock: all of it within a second
    with LocalKinesis(limits=False, time_factor=0, settle_s=0) as server:
        arn, kinesis = server.create_stream("s"), server.client("kinesis")
        arns = []
        for _ in range(3):
            made = kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]
            arns.append(made["ConsumerARN"])
            kinesis.deregister_stream_consumer(ConsumerARN=made["ConsumerARN"])
    assert len(set(arns)) == 3


def test_a_name_is_taken_once_per_stream(rig):
    arn, other = rig.server.create_stream("s"), rig.server.create_stream("t")
    rig.register(arn)
    refused = rig.refused(rig.kinesis.register_stream_consumer, StreamARN=arn, ConsumerName="c")
    assert refused == ("ResourceInUseException", 400)
    rig.register(other)


def test_consumers_are_listed_by_name_in_pages(rig):
    arn = rig.server.create_stream("s")
    for name in ("b", "c", "a"):
        rig.register(arn, name)
    first = rig.kinesis.list_stream_consumers(StreamARN=arn, MaxResults=2)
    rest = rig.kinesis.list_stream_consumers(StreamARN=arn, NextToken=first["NextToken"])
    assert [c["ConsumerName"] for c in first["Consumers"] + rest["Consumers"]] == ["a", "b", "c"]
    assert "NextToken" not in rest


def test_a_consumer_is_named_by_its_arn_or_by_its_stream_and_name(rig):
    arn = rig.server.create_stream("s")
    consumer = rig.register(arn)
    describe = rig.kinesis.describe_stream_consumer
    assert status(rig, StreamARN=arn, ConsumerName="c", ConsumerARN=consumer) == "ACTIVE"
    wrong = ("InvalidArgumentException", 400)
    assert rig.refused(describe, StreamARN=arn) == wrong
    assert rig.refused(describe, ConsumerARN=consumer, ConsumerName="d") == wrong
    other_time = consumer.rpartition(":")[0] + ":1"
    assert rig.refused(describe, ConsumerARN=other_time) == ("ResourceNotFoundException", 400)


def test_a_consumer_has_tags_of_its_own(rig):
    arn = rig.server.create_stream("s")
    made = rig.kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="c", Tags={"a": "1", "b": "2"})
    consumer = made["Consumer"]["ConsumerARN"]
    rig.kinesis.tag_resource(ResourceARN=consumer, Tags={"b": "3", "c": "4"})
    rig.kinesis.untag_resource(ResourceARN=consumer, TagKeys=["a"])
    rig.settle()
    tags = rig.kinesis.list_tags_for_resource(ResourceARN=consumer)["Tags"]
    assert tags == [{"Key": "b", "Value": "3"}, {"Key": "c", "Value": "4"}]
    assert rig.kinesis.list_tags_for_resource(ResourceARN=arn)["Tags"] == []
    assert status(rig, ConsumerARN=consumer) == "ACTIVE"


def test_a_stream_with_consumers_is_deleted_only_with_them(rig):
    arn = rig.server.create_stream("s")
    rig.register(arn)
    assert rig.refused(rig.kinesis.delete_stream, StreamName="s") == ("ResourceInUseException", 400)
    rig.kinesis.delete_stream(StreamName="s", EnforceConsumerDeletion=True)
    rig.settle()
    assert rig.kinesis.list_streams()["StreamNames"] == []


def test_a_stream_has_at_most_20_consumers_and_5_are_created_at_once(limited):
    arn = limited.server.create_stream("s")
    make = limited.kinesis.register_stream_consumer
    for i in range(20):
        if i % 5 == 0:
            limited.settle()
        make(StreamARN=arn, ConsumerName=f"c{i}")
    # five were registered in this second: the rate is used up, too
    assert limited.refused(make, StreamARN=arn, ConsumerName="d") == ("LimitExceededException", 400)
    limited.settle()
    assert limited.refused(make, StreamARN=arn, ConsumerName="d") == ("LimitExceededException", 400)
    limited.kinesis.deregister_stream_consumer(StreamARN=arn, ConsumerName="c7")
    limited.settle()
    make(StreamARN=arn, ConsumerName="d")


def test_only_5_consumers_are_in_creating():
    with LocalKinesis(time_factor=0, settle_s=10) as server:
        arn, kinesis = server.create_stream("s"), server.client("kinesis")
        for i in range(5):
            kinesis.register_stream_consumer(StreamARN=arn, ConsumerName=f"c{i}")
        server.clock.advance(9)
        with pytest.raises(kinesis.exceptions.LimitExceededException, match="in CREATING"):
            kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="d")
        server.clock.advance(1)
        kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="d")


def test_rates_are_each_streams_own(limited):
    arn, other = limited.server.create_stream("s"), limited.server.create_stream("t")
    listing = limited.kinesis.list_stream_consumers
    for _ in range(5):
        listing(StreamARN=arn)
    assert limited.refused(listing, StreamARN=arn) == ("LimitExceededException", 400)
    listing(StreamARN=other)


def test_consumers_outlive_a_restart(tmp_path):
    options = {"limits": False, "time_factor": 0, "state_dir": tmp_path}
    with LocalKinesis(**options) as server:
        arn, kinesis = server.create_stream("s"), server.client("kinesis")
        consumer = kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="c", Tags={"a": "b"})
        kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="gone")
        server.clock.advance(1)
        kinesis.deregister_stream_consumer(StreamARN=arn, ConsumerName="gone")
        server.clock.advance(1)
        kinesis.put_record(StreamName="s", Data=b"x", PartitionKey="k")
    with LocalKinesis(**options) as server:
        kinesis = server.client("kinesis")
        (found,) = kinesis.list_stream_consumers(StreamARN=arn)["Consumers"]
        assert (found["ConsumerARN"], found["ConsumerStatus"]) == (
            consumer["Consumer"]["ConsumerARN"],
            "ACTIVE",
        )
        answer = kinesis.subscribe_to_shard(
            ConsumerARN=found["ConsumerARN"], ShardId=FIRST, StartingPosition={"Type": "TRIM_HORIZON"}
        )
        with closing(answer["EventStream"]) as events:
            event = next(iter(events))["SubscribeToShardEvent"]
        assert [record["Data"] for record in event["Records"]] == [b"x"]


def test_only_an_active_consumer_subscribes(rig):
    arn = rig.server.create_stream("s")
    consumer = rig.kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"][
        "ConsumerARN"
    ]
    ask = {"ConsumerARN": consumer, "ShardId": FIRST, "StartingPosition": {"Type": "LATEST"}}
    assert rig.refused(rig.kinesis.subscribe_to_shard, **ask) == ("ResourceInUseException", 400)
    rig.settle()
    assert next(rig.subscribe(consumer))["Records"] == []
    rig.kinesis.deregister_stream_consumer(ConsumerARN=consumer)
    assert rig.refused(rig.kinesis.subscribe_to_shard, **ask) == ("ResourceInUseException", 400)
