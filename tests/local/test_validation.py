"""Wrong types, lengths, ranges and patterns are refused before they reach a stream, in the service's words."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from penstock_local import request_model

FIRST = "shardId-000000000000"


def ask(rig, operation: str, body: object) -> tuple[int, str, str]:
    """Send a body as it is; returns status, code and message."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"X-Amz-Target": f"Kinesis_20131202.{operation}", "Content-Type": "application/x-amz-json-1.1"}
    request = urllib.request.Request(rig.server.endpoint_url, raw, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, "ok", response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            answer = json.load(error)
            return error.code, answer["__type"], answer["message"]


@pytest.fixture(autouse=True)
def stream(rig):
    rig.server.create_stream("s")


@pytest.mark.parametrize(
    ("operation", "body", "message"),
    [
        (
            "DescribeStream",
            {"StreamName": "a b"},
            (
                "1 validation error detected: Value 'a b' at 'streamName' failed to satisfy constraint: Member must "
                "satisfy regular expression pattern: [a-zA-Z0-9_.-]+"
            ),
        ),
        (
            "DescribeStream",
            {"StreamName": "s" * 129},
            "Member must have length less than or equal to 128",
        ),
        ("DescribeStream", {"StreamName": ""}, "2 validation errors detected: "),
        (
            "DescribeStream",
            {"StreamName": "s", "Limit": 0},
            "Member must have value greater than or equal to 1",
        ),
        (
            "CreateStream",
            {},
            "Value null at 'streamName' failed to satisfy constraint: Member must not be null",
        ),
        ("CreateStream", {"StreamName": "t"}, "ShardCount must be given"),
        ("CreateStream", {"StreamName": "t", "ShardCount": 0}, "greater than or equal to 1"),
        (
            "CreateStream",
            {"StreamName": "t", "ShardCount": 1, "StreamModeDetails": {"StreamMode": "ON_DEMAND"}},
            "must not be given",
        ),
        (
            "CreateStream",
            {"StreamName": "t", "ShardCount": 1, "StreamModeDetails": {}},
            "Value null at 'streamModeDetails.streamMode'",
        ),
        (
            "UpdateStreamMode",
            {
                "StreamARN": "arn:aws:kinesis:us-east-1:123456789012:stream/s",
                "StreamModeDetails": {"StreamMode": "SOMETIMES"},
            },
            "Member must satisfy enum value set: [PROVISIONED, ON_DEMAND]",
        ),
        ("PutRecords", {"StreamName": "s"}, "Value null at 'records'"),
        ("PutRecords", {"StreamName": "s", "Records": []}, "length greater than or equal to 1"),
        (
            "PutRecords",
            {"StreamName": "s", "Records": [{"Data": ""}]},
            "Value null at 'records.1.member.partitionKey'",
        ),
        (
            "PutRecords",
            {"StreamName": "s", "Records": [{"Data": "", "PartitionKey": "k"}, {"PartitionKey": "k"}]},
            "Value null at 'records.2.member.data'",
        ),
        (
            "PutRecords",
            {"StreamName": "s", "Records": [{"Data": None, "PartitionKey": "k" * 257}]},
            "2 validation errors detected: ",
        ),
        (
            "PutRecords",
            {"StreamName": "s", "Records": [{"Data": "", "PartitionKey": ""}]},
            "at 'records.1.member.partitionKey' failed to satisfy constraint: Member must have length greater",
        ),
        (
            "PutRecords",
            {"StreamName": "s", "Records": [{"Data": "", "PartitionKey": "k", "ExplicitHashKey": "01"}]},
            "at 'records.1.member.explicitHashKey'",
        ),
        ("PutRecord", {"StreamName": "s", "Data": ""}, "Value null at 'partitionKey'"),
        ("GetRecords", {"ShardIterator": "x" * 513}, "less than or equal to 512"),
        ("GetRecords", {"ShardIterator": "x", "Limit": 0}, "greater than or equal to 1"),
        ("ListTagsForStream", {"StreamName": "s", "Limit": 51}, "less than or equal to 50"),
        ("RemoveTagsFromStream", {"StreamName": "s", "TagKeys": []}, "length greater than or equal to 1"),
        ("AddTagsToStream", {"StreamName": "s", "Tags": {}}, "length greater than or equal to 1"),
        ("AddTagsToStream", {"StreamName": "s", "Tags": {"k" * 129: ""}}, "at 'tags.key'"),
        ("UpdateShardCount", {"StreamName": "s", "TargetShardCount": 2}, "Value null at 'scalingType'"),
    ],
)
def test_a_request_outside_the_model_is_a_validation_error(rig, operation, body, message):
    status, code, said = ask(rig, operation, body)
    assert (status, code) == (400, "ValidationException")
    assert message in said


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("DescribeStream", b"{"),
        ("DescribeStream", b"\xff"),
        ("DescribeStream", []),
        ("DescribeStream", {"StreamName": 5}),
        ("DescribeStream", {"StreamName": "s", "Limit": True}),
        ("DeleteStream", {"StreamName": "s", "EnforceConsumerDeletion": "yes"}),
        ("ListShards", {"StreamName": "s", "ShardFilter": "AT_LATEST"}),
        ("ListShards", {"StreamName": "s", "StreamCreationTimestamp": "today"}),
        ("RemoveTagsFromStream", {"StreamName": "s", "TagKeys": "k"}),
        ("AddTagsToStream", {"StreamName": "s", "Tags": ["k"]}),
        ("PutRecord", {"StreamName": "s", "Data": "%%%", "PartitionKey": "k"}),
        ("PutRecord", {"StreamName": "s", "Data": 5, "PartitionKey": "k"}),
        ("PutRecords", b"{"),
        ("PutRecords", {"StreamName": "s", "Records": {}}),
        ("PutRecords", {"StreamName": "s", "Records": [{"Data": "YQ", "PartitionKey": "k"}]}),
        ("PutRecords", {"StreamName": "s", "Records": [{"Data": "YQ=a", "PartitionKey": "k"}]}),
        ("PutRecords", {"StreamName": "s", "Records": [{"Data": 1234, "PartitionKey": "k"}]}),
        ("PutRecords", {"StreamName": "s", "Records": [{"Data": "YWFh\n", "PartitionKey": "k"}]}),
        ("PutRecords", b'{"StreamName":"s","Records":[{"Data":"","PartitionKey":"\\ud800"}]}'),
    ],
)
def test_a_body_of_other_types_is_a_serialization_error(rig, operation, body):
    status, code, _ = ask(rig, operation, body)
    assert (status, code) == (400, "SerializationException")


def test_base64_with_escaped_slashes_is_read(rig):
    body = b'{"StreamName":"s","Records":[{"Data":"\\/\\/8=","PartitionKey":"k"}]}'
    assert ask(rig, "PutRecords", body)[0] == 200
    assert rig.read("s") == [b"\xff\xff"]


@pytest.mark.parametrize("data", [b"", b"a", b"ab", b"abc", b"abcd", bytes(range(256))])
@pytest.mark.parametrize("many", [True, False])
def test_data_of_every_length_comes_back(rig, data, many):
    if many:
        rig.kinesis.put_records(StreamName="s", Records=[{"Data": data, "PartitionKey": "k"}])
    else:
        rig.kinesis.put_record(StreamName="s", Data=data, PartitionKey="k")
    assert rig.read("s") == [data]


@pytest.mark.parametrize("key", ["k" * 256, "é" * 256, '"quoted\\"', "line\nbreak", "鍵\U0001f511"])
def test_partition_keys_of_any_characters_come_back(rig, key):
    rig.kinesis.put_records(StreamName="s", Records=[{"Data": b"", "PartitionKey": key}])
    (record,) = rig.kinesis.get_records(ShardIterator=rig.iterator("s"))["Records"]
    assert record["PartitionKey"] == key


def test_unknown_members_are_ignored(rig):
    assert ask(rig, "DescribeStreamSummary", {"StreamName": "s", "Colour": "red"})[0] == 200


def test_a_request_for_no_service_is_told_what_there_is(rig):
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(rig.server.endpoint_url, timeout=60)
    with caught.value as error:
        assert error.code == 404
        assert "serves those and /_penstock/*" in json.load(error)["message"]


def test_tags_are_added_listed_by_page_and_removed(rig):
    arn = rig.summary("s")["StreamARN"]
    rig.kinesis.add_tags_to_stream(StreamName="s", Tags={"b": "2", "a": "1"})
    rig.kinesis.tag_resource(ResourceARN=arn, Tags={"c": "3"})
    page = rig.kinesis.list_tags_for_stream(StreamName="s", Limit=2)
    assert (page["Tags"], page["HasMoreTags"]) == (
        [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}],
        True,
    )
    rest = rig.kinesis.list_tags_for_stream(StreamName="s", ExclusiveStartTagKey="b")
    assert (rest["Tags"], rest["HasMoreTags"]) == ([{"Key": "c", "Value": "3"}], False)
    rig.kinesis.remove_tags_from_stream(StreamName="s", TagKeys=["a"])
    rig.kinesis.untag_resource(ResourceARN=arn, TagKeys=["c"])
    assert rig.kinesis.list_tags_for_resource(ResourceARN=arn)["Tags"] == [{"Key": "b", "Value": "2"}]
    many = {f"t{i}": "" for i in range(50)}
    assert rig.refused(rig.kinesis.add_tags_to_stream, StreamName="s", Tags=many) == (
        "InvalidArgumentException",
        400,
    )


def test_streams_are_listed_by_page(rig):
    for name in ("c", "a", "b"):
        rig.server.create_stream(name)
    page = rig.kinesis.list_streams(Limit=2)
    assert (page["StreamNames"], page["HasMoreStreams"]) == (["a", "b"], True)
    rest = rig.kinesis.list_streams(NextToken=page["NextToken"])
    assert (rest["StreamNames"], rest["HasMoreStreams"]) == (["c", "s"], False)
    assert rig.kinesis.list_streams(ExclusiveStartStreamName="b")["StreamNames"] == ["c", "s"]
    shards = rig.server.create_stream("many", shards=2) and rig.kinesis.list_shards(
        StreamName="many", MaxResults=1
    )
    assert rig.refused(rig.kinesis.list_streams, NextToken=shards["NextToken"]) == (
        "InvalidArgumentException",
        400,
    )


def test_a_stream_that_is_there_is_not_created_again(rig):
    assert rig.refused(rig.kinesis.create_stream, StreamName="s", ShardCount=1) == (
        "ResourceInUseException",
        400,
    )


def test_a_stream_made_anew_under_its_name_is_another_one(rig):
    old_number = int(rig.kinesis.put_record(StreamName="s", Data=b"old", PartitionKey="k")["SequenceNumber"])
    old = rig.iterator("s")
    created = rig.summary("s")["StreamCreationTimestamp"]
    rig.kinesis.delete_stream(StreamName="s")
    assert rig.summary("s")["StreamStatus"] == "DELETING"
    rig.settle()
    assert rig.refused(rig.kinesis.describe_stream, StreamName="s") == ("ResourceNotFoundException", 400)
    assert rig.refused(rig.kinesis.get_records, ShardIterator=old) == ("ResourceNotFoundException", 400)
    rig.server.create_stream("s")
    assert rig.refused(rig.kinesis.get_records, ShardIterator=old) == ("ResourceNotFoundException", 400)
    assert rig.refused(rig.kinesis.list_shards, StreamName="s", StreamCreationTimestamp=created) == (
        "ResourceNotFoundException",
        400,
    )
    position = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": str(old_number)}
    assert rig.refused(rig.kinesis.get_shard_iterator, StreamName="s", ShardId=FIRST, **position) == (
        "InvalidArgumentException",
        400,
    )
    assert (
        int(rig.kinesis.put_record(StreamName="s", Data=b"", PartitionKey="k")["SequenceNumber"]) > old_number
    )
    assert rig.read("s") == [b""]


def test_every_type_of_the_models_requests_can_be_checked():
    shapes = [request_model.input_shape(operation) for operation in request_model.operations()]
    seen = set()
    while shapes:
        shape = shapes.pop()
        within = [*shape.members.values(), shape.member, shape.key, shape.value]
        names = {reference.shape for reference in within if reference.shape} - seen
        shapes += map(request_model.shape, names)
        seen |= names
        assert shape.type in request_model.CHECKS
    assert "StreamName" in seen
