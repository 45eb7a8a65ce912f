"""Queues: their names, states, attributes and limits, and what they forbid on their stream."""

from __future__ import annotations

import pytest
from botocore.config import Config
from tests.local.conftest import Rig

from local.error_codes import code
from penstock_local import LocalKinesis
from queue_rig import QueueRig, knows_queues

pytestmark = knows_queues

UNCHECKED = Config(parameter_validation=False, retries={"total_max_attempts": 1})


@pytest.fixture
def queues(rig) -> QueueRig:
    return QueueRig(rig)


def test_a_queue_is_created_active_updated_and_deleted(rig, queues):
    made = rig.kinesis.create_queue(
        QueueName="q", StreamConfigurationList=[{"StreamARN": queues.stream_arn}]
    )["QueueDescription"]
    created = made.pop("QueueCreationTimestamp")
    arn = made.pop("QueueARN")
    assert arn.rpartition("/")[0] == "arn:aws:kinesis:us-east-1:123456789012:queue"
    assert "q" not in arn.rpartition("/")[2]
    attributes = {
        "VisibilityTimeoutSeconds": 30,
        "DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": 6},
    }
    assert made == {
        "QueueName": "q",
        "QueueStatus": "CREATING",
        "StreamConfigurationList": [{"StreamARN": queues.stream_arn, "StartingPosition": {"Type": "LATEST"}}],
        "QueueAttributes": attributes,
    }
    rig.settle()
    active = queues.describe(arn)
    assert active["QueueStatus"] == "ACTIVE"
    assert active["StreamConfigurationList"][0]["StartingPosition"] == {
        "Type": "LATEST",
        "Timestamp": created,
    }
    changed = rig.kinesis.update_queue(QueueARN=arn, QueueAttributes={"VisibilityTimeoutSeconds": 5})
    assert changed["QueueDescription"]["QueueStatus"] == "UPDATING"
    assert changed["QueueDescription"]["QueueAttributes"] == attributes | {"VisibilityTimeoutSeconds": 5}
    rig.settle()
    assert queues.describe(arn)["QueueStatus"] == "ACTIVE"
    rig.kinesis.delete_queue(QueueARN=arn)
    assert queues.describe(arn)["QueueStatus"] == "DELETING"
    rig.kinesis.delete_queue(QueueARN=arn)
    rig.settle()
    assert code(rig.kinesis.describe_queue, QueueARN=arn) == "ResourceNotFoundException"


def test_a_name_is_taken_once_in_a_region_until_its_queue_is_gone(rig, queues):
    other = QueueRig(rig, "t")
    arn = queues.create("q")
    configuration = [{"StreamARN": other.stream_arn}]
    create = rig.kinesis.create_queue
    assert code(create, QueueName="q", StreamConfigurationList=configuration) == "ResourceInUseException"
    rig.kinesis.delete_queue(QueueARN=arn)
    assert code(create, QueueName="q", StreamConfigurationList=configuration) == "ResourceInUseException"
    rig.settle()
    assert other.create("q") != arn
    elsewhere = rig.server.client("kinesis", region_name="eu-west-1")
    assert elsewhere.list_queues()["QueueSummaries"] == []


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"QueueName": "a b"}, "ValidationException"),
        ({"QueueName": "q" * 129}, "ValidationException"),
        ({"StreamConfigurationList": []}, "ValidationException"),
        ({"StreamConfigurationList": 2}, "ValidationException"),
        ({"QueueAttributes": {"VisibilityTimeoutSeconds": 43201}}, "ValidationException"),
        ({"QueueAttributes": {"DeadLetterConfiguration": {"TargetType": "BUILT_IN"}}}, "ValidationException"),
        (
            {"QueueAttributes": {"DeadLetterConfiguration": {"TargetType": "NONE", "MaxReceiveCount": 3}}},
            "ValidationException",
        ),
        (
            {
                "QueueAttributes": {
                    "DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": 0}
                }
            },
            "ValidationException",
        ),
        ({"Tags": {"aws:x": "1"}}, "InvalidArgumentException"),
        ({}, "ok"),
    ],
)
def test_a_queue_is_validated(rig, queues, request_, expected):
    whole = {"QueueName": "q", "StreamConfigurationList": [{"StreamARN": queues.stream_arn}], **request_}
    if whole["StreamConfigurationList"] == 2:
        whole["StreamConfigurationList"] = [{"StreamARN": queues.stream_arn}] * 2
    raw = rig.server.client("kinesis", config=UNCHECKED)
    assert code(raw.create_queue, **whole) == expected


def test_a_queue_is_for_an_on_demand_stream_that_is_there(rig):
    provisioned = rig.server.create_stream("p")
    create = rig.kinesis.create_queue
    assert (
        code(create, QueueName="q", StreamConfigurationList=[{"StreamARN": provisioned}])
        == "ValidationException"
    )
    absent = provisioned[:-1] + "absent"
    assert (
        code(create, QueueName="q", StreamConfigurationList=[{"StreamARN": absent}])
        == "ResourceNotFoundException"
    )
    rig.kinesis.create_stream(StreamName="s", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    creating = provisioned[:-1] + "s"
    assert (
        code(create, QueueName="q", StreamConfigurationList=[{"StreamARN": creating}])
        == "ResourceInUseException"
    )


def test_a_starting_time_is_given_for_at_timestamp_only_and_lies_in_the_past(rig, queues):
    now = rig.moment(rig.clock.now_ms())
    create = rig.kinesis.create_queue

    def outcome(**position):
        return code(
            create,
            QueueName="q",
            StreamConfigurationList=[{"StreamARN": queues.stream_arn, "StartingPosition": position}],
        )

    assert outcome(Type="LATEST", Timestamp=now) == "ValidationException"
    assert outcome(Type="TRIM_HORIZON", Timestamp=now) == "ValidationException"
    assert outcome(Type="AT_TIMESTAMP") == "ValidationException"
    later = rig.moment(rig.clock.now_ms() + 60_000)
    assert outcome(Type="AT_TIMESTAMP", Timestamp=later) == "InvalidArgumentException"
    assert outcome(Type="AT_TIMESTAMP", Timestamp=now) == "ok"


def test_an_active_queue_shows_its_effective_starting_time(rig, queues):
    stream_created = rig.summary("s")["StreamCreationTimestamp"]

    def shown(arn):
        return queues.describe(arn)["StreamConfigurationList"][0]["StartingPosition"]

    early = rig.moment(1_000_000_000_000)
    rig.clock.advance(3600)
    assert shown(queues.create("t", start={"Type": "TRIM_HORIZON"}))["Timestamp"] == stream_created
    at = queues.create("a", start={"Type": "AT_TIMESTAMP", "Timestamp": early})
    assert shown(at) == {"Type": "AT_TIMESTAMP", "Timestamp": stream_created}
    within = rig.moment(rig.clock.now_ms() - 5000)
    assert (
        shown(queues.create("w", start={"Type": "AT_TIMESTAMP", "Timestamp": within}))["Timestamp"] == within
    )
    rig.clock.advance(48 * 3600)
    made = rig.kinesis.create_queue(
        QueueName="old",
        StreamConfigurationList=[
            {"StreamARN": queues.stream_arn, "StartingPosition": {"Type": "AT_TIMESTAMP", "Timestamp": early}}
        ],
    )["QueueDescription"]
    assert made["StreamConfigurationList"][0]["StartingPosition"]["Timestamp"] == early
    active_ms = rig.clock.now_ms() + 200
    rig.settle()
    horizon = rig.moment(active_ms - 24 * 3_600_000)
    assert shown(made["QueueARN"])["Timestamp"] == horizon


def test_queues_are_listed_by_name_stream_and_time_in_pages(rig, queues):
    other = QueueRig(rig, "t")
    arns = {name: queues.create(name) for name in ("b", "c", "a")}
    other.create("x")
    kinesis = rig.kinesis
    first = kinesis.list_queues(MaxResults=2)
    rest = kinesis.list_queues(MaxResults=2, NextToken=first["NextToken"])
    names = [each["QueueName"] for each in first["QueueSummaries"] + rest["QueueSummaries"]]
    assert (names, "NextToken" in rest) == (["a", "b", "c", "x"], False)
    created = rig.summary("s")["StreamCreationTimestamp"]
    mine = kinesis.list_queues(StreamFilter=[{"StreamARN": queues.stream_arn}])["QueueSummaries"]
    assert [each["QueueARN"] for each in mine] == [arns["a"], arns["b"], arns["c"]]
    assert mine[0]["Streams"] == [{"StreamARN": queues.stream_arn, "StreamCreationTimestamp": created}]
    assert mine[0]["QueueStatus"] == "ACTIVE"
    earlier = rig.moment(1_000_000_000_000)
    assert not kinesis.list_queues(
        StreamFilter=[{"StreamARN": queues.stream_arn, "StreamCreationTimestamp": earlier}]
    )["QueueSummaries"]
    assert code(kinesis.list_queues, NextToken="x") == "InvalidArgumentException"
    rig.server.faults.expire_next_tokens()
    assert code(kinesis.list_queues, NextToken=first["NextToken"]) == "ExpiredNextTokenException"


def test_attributes_that_an_update_does_not_name_stay(rig, queues):
    arn = queues.create(QueueAttributes={"VisibilityTimeoutSeconds": 7})

    def updated(**attributes):
        rig.kinesis.update_queue(QueueARN=arn, QueueAttributes=attributes)
        rig.settle()
        return queues.describe(arn)["QueueAttributes"]

    assert updated(DeadLetterConfiguration={"TargetType": "NONE"}) == {
        "VisibilityTimeoutSeconds": 7,
        "DeadLetterConfiguration": {"TargetType": "NONE"},
    }
    assert updated(VisibilityTimeoutSeconds=0)["DeadLetterConfiguration"] == {"TargetType": "NONE"}
    assert updated()["VisibilityTimeoutSeconds"] == 0
    rig.kinesis.update_queue(QueueARN=arn, QueueAttributes={})
    again = code(rig.kinesis.update_queue, QueueARN=arn, QueueAttributes={})
    assert again == "ResourceInUseException"


def test_a_stream_with_queues_is_neither_deleted_nor_made_provisioned(rig, queues):
    arn = queues.create()
    kinesis, provisioned = rig.kinesis, {"StreamMode": "PROVISIONED"}
    assert rig.summary("s")["QueueCount"] == 1
    assert rig.summary("s")["ConsumerCount"] == 0
    assert code(kinesis.delete_stream, StreamName="s") == "ResourceInUseException"
    assert (
        code(kinesis.delete_stream, StreamName="s", EnforceConsumerDeletion=True) == "ResourceInUseException"
    )
    switch = {"StreamARN": queues.stream_arn, "StreamModeDetails": provisioned}
    assert code(kinesis.update_stream_mode, **switch) == "ResourceInUseException"
    kinesis.delete_queue(QueueARN=arn)
    assert code(kinesis.delete_stream, StreamName="s") == "ResourceInUseException"
    rig.settle()
    assert code(kinesis.update_stream_mode, **switch) == "ok"
    rig.settle()
    assert code(kinesis.delete_stream, StreamName="s") == "ok"


def test_queues_and_consumers_share_a_limit(limited):
    queues = QueueRig(limited)
    for i in range(19):
        queues.create(f"q{i}")
    limited.register(queues.stream_arn)
    configuration = [{"StreamARN": queues.stream_arn}]
    create = limited.kinesis.create_queue
    assert code(create, QueueName="x", StreamConfigurationList=configuration) == "LimitExceededException"
    register = limited.kinesis.register_stream_consumer
    assert code(register, StreamARN=queues.stream_arn, ConsumerName="d") == "LimitExceededException"
    limited.kinesis.update_account_settings(MinimumThroughputBillingCommitment={"Status": "ENABLED"})
    assert code(create, QueueName="x", StreamConfigurationList=configuration) == "ok"


def test_only_5_queues_are_created_or_deleted_at_once(limited):
    queues = QueueRig(limited)
    gone = queues.create("gone")
    limited.kinesis.delete_queue(QueueARN=gone)
    configuration = [{"StreamARN": queues.stream_arn}]
    create = limited.kinesis.create_queue
    for i in range(4):
        create(QueueName=f"q{i}", StreamConfigurationList=configuration)
    assert code(create, QueueName="q4", StreamConfigurationList=configuration) == "LimitExceededException"
    limited.settle()
    assert code(create, QueueName="q4", StreamConfigurationList=configuration) == "ok"


def test_a_queue_has_tags(rig, queues):
    arn = queues.create(Tags={"a": "1", "b": "2"})
    rig.kinesis.tag_resource(ResourceARN=arn, Tags={"b": "3", "c": "4"})
    rig.kinesis.untag_resource(ResourceARN=arn, TagKeys=["a"])
    tags = rig.kinesis.list_tags_for_resource(ResourceARN=arn)["Tags"]
    assert tags == [{"Key": "b", "Value": "3"}, {"Key": "c", "Value": "4"}]
    assert rig.kinesis.list_tags_for_resource(ResourceARN=queues.stream_arn)["Tags"] == []


def test_a_queue_of_another_region_is_not_found(rig, queues):
    arn = queues.create()
    elsewhere = rig.server.client("kinesis", region_name="eu-west-1")
    assert code(elsewhere.describe_queue, QueueARN=arn) == "ResourceNotFoundException"
    absent = arn.rpartition("/")[0] + "/absent"
    assert code(rig.kinesis.describe_queue, QueueARN=absent) == "ResourceNotFoundException"


def test_a_queue_that_settles_at_once_is_active_on_return():
    with LocalKinesis(limits=False, time_factor=0, settle_s=0) as server, Rig(server) as rig:
        queues = QueueRig(rig)
        made = rig.kinesis.create_queue(
            QueueName="q", StreamConfigurationList=[{"StreamARN": queues.stream_arn}]
        )["QueueDescription"]
        assert made["QueueStatus"] == "ACTIVE"
        rig.kinesis.delete_queue(QueueARN=made["QueueARN"])
        assert rig.kinesis.list_queues()["QueueSummaries"] == []
