"""Channels: their states, defaults and rules, and what they forbid on their stream. Nothing is delivered."""

from __future__ import annotations

from typing import Any

import pytest
from tests.local.conftest import Rig

from local.error_codes import code
from penstock_local import LocalKinesis
from queue_rig import QueueRig, knows_queues

pytestmark = knows_queues

ROLE = "arn:aws:iam::123456789012:role/delivery"
OWNER = "123456789012"
BUCKET = "arn:aws:s3:::orders-bucket"
SCHEMA = "arn:aws:glue:us-east-1:123456789012:schema/registry/orders"
LETTERS = {"BucketARN": BUCKET, "ExpectedBucketOwner": OWNER}
STORAGE = {**LETTERS, "CompressionType": "GZIP"}
TABLE = {
    "TableBucketARN": "arn:aws:s3tables:us-east-1:123456789012:bucket/tables",
    "Namespace": "sales",
    "TableName": "orders",
    "CompressionType": "ZSTD",
    "PartitionSpec": {"PartitionFields": [{"Transform": "TIME_HOUR", "SourceName": "at"}]},
}
TO_S3 = {"S3DestinationConfiguration": {"StorageConfiguration": STORAGE}}
TO_TABLES = {
    "S3TablesDestinationConfiguration": {
        "DeadLetterQueueS3Configuration": LETTERS,
        "S3TablesConfigurationList": [TABLE],
    }
}
OF_TABLES = {"RecordFormatType": "JSON", "GSRSchemaARN": SCHEMA}


@pytest.fixture
def stream(rig) -> QueueRig:
    return QueueRig(rig)


def asked(stream: QueueRig, record: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    record = record or {"RecordFormatType": "JSON"}
    return {
        "ChannelName": "c",
        "ServiceExecutionRoleARN": ROLE,
        "StreamConfigurationList": [{"StreamARN": stream.stream_arn, "RecordConfiguration": record}],
        **options,
    }


def created(stream: QueueRig, **options: Any) -> str:
    """Create a channel that is ACTIVE on return; returns its ARN."""
    made = stream.kinesis.create_channel(**asked(stream, **options))
    stream.rig.settle()
    return str(made["ChannelDescription"]["ChannelARN"])


def described(stream: QueueRig, arn: str) -> dict[str, Any]:
    return dict(stream.kinesis.describe_channel(ChannelARN=arn)["ChannelDescription"])


def test_a_channel_is_created_active_updated_and_deleted(rig, stream):
    made = rig.kinesis.create_channel(**asked(stream, **TO_S3))["ChannelDescription"]
    arn = made["ChannelARN"]
    assert arn == f"arn:aws:kinesis:us-east-1:123456789012:channel/{made['ChannelId']}"
    assert made == {
        "ChannelName": "c",
        "ChannelARN": arn,
        "ChannelId": made["ChannelId"],
        "ChannelStatus": "CREATING",
        "ChannelCreationTimestamp": made["ChannelCreationTimestamp"],
        "ServiceExecutionRoleARN": ROLE,
        "StreamConfigurationList": [
            {
                "StreamARN": stream.stream_arn,
                "StreamCreationTimestamp": rig.summary("s")["StreamCreationTimestamp"],
                "RecordConfiguration": {"RecordFormatType": "JSON"},
            }
        ],
        "S3DestinationConfiguration": {
            "DataFreshnessInSeconds": 300,
            "DeadLetterQueueS3Configuration": {**LETTERS, "ErrorOutputPrefix": "errors/"},
            "StorageConfiguration": STORAGE,
        },
        "LoggingConfiguration": {"CloudWatchLogs": {"Enabled": False}},
    }
    rig.settle()
    assert described(stream, arn)["ChannelStatus"] == "ACTIVE"
    changed = rig.kinesis.update_channel(
        ChannelARN=arn,
        S3DestinationConfiguration={"DataFreshnessInSeconds": 60},
        LoggingConfiguration={"CloudWatchLogs": {"Enabled": True}},
    )["ChannelDescription"]
    assert changed["ChannelStatus"] == "UPDATING"
    assert changed["S3DestinationConfiguration"]["DataFreshnessInSeconds"] == 60
    assert changed["LoggingConfiguration"]["CloudWatchLogs"] == {
        "Enabled": True,
        "LogGroupName": f"/aws/kinesis/c/{made['ChannelId']}",
        "LogStreamName": "DestinationDelivery",
    }
    rig.settle()
    assert described(stream, arn) == {**changed, "ChannelStatus": "ACTIVE"}
    rig.kinesis.delete_channel(ChannelARN=arn)
    assert described(stream, arn)["ChannelStatus"] == "DELETING"
    rig.settle()
    assert code(rig.kinesis.describe_channel, ChannelARN=arn) == "ResourceNotFoundException"


def test_a_channel_to_a_table_is_described_as_it_was_asked_for(stream):
    encryption = {"EncryptionType": "KMS", "KeyId": "alias/mine"}
    arn = created(stream, record=OF_TABLES, EncryptionConfiguration=encryption, **TO_TABLES)
    found = described(stream, arn)
    assert found["S3TablesDestinationConfiguration"] == {
        **TO_TABLES["S3TablesDestinationConfiguration"],
        "DataFreshnessInSeconds": 300,
    }
    assert found["EncryptionConfiguration"] == encryption


@pytest.mark.parametrize(
    ("record", "options", "expected"),
    [
        (None, {}, "ValidationException"),
        (OF_TABLES, {**TO_S3, **TO_TABLES}, "ValidationException"),
        ({"RecordFormatType": "JSON"}, TO_TABLES, "ValidationException"),
        ({**OF_TABLES, "RecordFormatType": "STRING"}, TO_TABLES, "InvalidArgumentException"),
        ({**OF_TABLES, "RecordFormatType": "GSR_JSON"}, TO_S3, "InvalidArgumentException"),
        ({**OF_TABLES, "RecordFormatType": "GSR_JSON"}, TO_TABLES, "ok"),
        ({"RecordFormatType": "BYTE_ARRAY"}, TO_S3, "ok"),
        (
            None,
            {**TO_S3, "EncryptionConfiguration": {"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"}},
            "InvalidArgumentException",
        ),
        (
            None,
            {"S3DestinationConfiguration": {"DataFreshnessInSeconds": 0, "StorageConfiguration": STORAGE}},
            "InvalidArgumentException",
        ),
        (
            OF_TABLES,
            {
                "S3TablesDestinationConfiguration": {
                    "DeadLetterQueueS3Configuration": LETTERS,
                    "S3TablesConfigurationList": [TABLE, TABLE],
                }
            },
            "ValidationException",
        ),
        (None, {**TO_S3, "ServiceExecutionRoleARN": "role"}, "ValidationException"),
        (None, {**TO_S3, "Tags": {"aws:a": "b"}}, "InvalidArgumentException"),
    ],
)
def test_a_channel_is_validated(rig, stream, record, options, expected):
    assert code(rig.kinesis.create_channel, **{**asked(stream, record), **options}) == expected


def test_a_channel_is_for_an_on_demand_stream_that_is_there(rig, stream):
    create = rig.kinesis.create_channel
    configuration = {"RecordConfiguration": {"RecordFormatType": "JSON"}}
    provisioned = rig.server.create_stream("p")
    absent = stream.stream_arn[:-1] + "absent"
    for arn, expected in ((provisioned, "ValidationException"), (absent, "ResourceNotFoundException")):
        streams = [{**configuration, "StreamARN": arn}]
        assert code(create, **asked(stream, **TO_S3) | {"StreamConfigurationList": streams}) == expected


def test_only_freshness_and_logging_of_the_own_destination_change(rig, stream):
    arn = created(stream, **TO_S3)
    update = rig.kinesis.update_channel
    tables = {"S3TablesDestinationConfiguration": {"DataFreshnessInSeconds": 5}}
    assert code(update, ChannelARN=arn) == "ValidationException"
    assert code(update, ChannelARN=arn, **tables) == "InvalidArgumentException"
    mine = {"S3DestinationConfiguration": {"DataFreshnessInSeconds": 5}}
    assert code(update, ChannelARN=arn, **mine) == "ok"
    assert code(update, ChannelARN=arn, **mine) == "ResourceInUseException"


def test_a_stream_has_one_channel_to_each_kind_of_destination_and_names_are_taken_once(limited):
    stream = QueueRig(limited)
    create = limited.kinesis.create_channel
    created(stream, **TO_S3)
    again = asked(stream, **TO_S3)
    assert code(create, **again) == "ResourceInUseException"
    assert code(create, **again | {"ChannelName": "d"}) == "LimitExceededException"
    assert code(create, **asked(stream, OF_TABLES, **TO_TABLES) | {"ChannelName": "d"}) == "ok"
    limited.settle()
    assert limited.summary("s")["ChannelCount"] == 2
    limits = limited.kinesis.describe_limits()
    assert (limits["ChannelCount"], limits["ChannelCountLimit"]) == (2, 100)


def test_channels_have_5_calls_of_each_operation_a_second(limited):
    calls = [code(limited.kinesis.list_channels) for _ in range(6)]
    assert calls == ["ok"] * 5 + ["LimitExceededException"]


def test_channels_are_listed_by_name_and_stream_in_pages(rig, stream):
    other = QueueRig(rig, "t")
    arns = [created(stream, **TO_S3, ChannelName=name) for name in ("b", "a")]
    created(other, record=OF_TABLES, **TO_TABLES, ChannelName="x")
    first = rig.kinesis.list_channels(MaxResults=2)
    rest = rig.kinesis.list_channels(MaxResults=2, NextToken=first["NextToken"])
    found = first["ChannelSummaries"] + rest["ChannelSummaries"]
    assert [(each["ChannelName"], each["ChannelDestinationType"]) for each in found] == [
        ("a", "S3"),
        ("b", "S3"),
        ("x", "S3_TABLES"),
    ]
    mine = rig.kinesis.list_channels(StreamFilter=[{"StreamARN": stream.stream_arn}])["ChannelSummaries"]
    assert [each["ChannelARN"] for each in mine] == arns[::-1]


def test_a_stream_with_channels_is_neither_deleted_nor_made_provisioned(rig, stream):
    arn = created(stream, **TO_S3)
    switch = {"StreamARN": stream.stream_arn, "StreamModeDetails": {"StreamMode": "PROVISIONED"}}
    assert code(rig.kinesis.delete_stream, StreamName="s") == "ResourceInUseException"
    assert code(rig.kinesis.update_stream_mode, **switch) == "ResourceInUseException"
    rig.kinesis.delete_channel(ChannelARN=arn)
    rig.settle()
    assert code(rig.kinesis.delete_stream, StreamName="s") == "ok"


def test_a_channel_has_tags_and_survives_a_restart(tmp_path):
    with LocalKinesis(limits=False, time_factor=0, state_dir=tmp_path) as server, Rig(server) as rig:
        stream = QueueRig(rig)
        arn = created(stream, **TO_S3, Tags={"a": "1"})
        rig.kinesis.tag_resource(ResourceARN=arn, Tags={"b": "2"})
        found = described(stream, arn)
        gone = created(stream, **TO_S3, ChannelName="gone")
        rig.kinesis.delete_channel(ChannelARN=gone)
        rig.settle()
    with LocalKinesis(limits=False, time_factor=0, state_dir=tmp_path) as server, Rig(server) as rig:
        assert rig.kinesis.describe_channel(ChannelARN=arn)["ChannelDescription"] == found
        tags = rig.kinesis.list_tags_for_resource(ResourceARN=arn)["Tags"]
        assert tags == [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}]
        assert [each["ChannelName"] for each in rig.kinesis.list_channels()["ChannelSummaries"]] == ["c"]
