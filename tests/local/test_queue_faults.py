"""Scripted faults of queues: lost answers, acknowledgements that come to nothing, failed entries, throttling."""

from __future__ import annotations

import pytest
from botocore.exceptions import BotoCoreError
from urllib3.exceptions import HTTPError

from local.error_codes import code
from penstock_local.errors import OptionError
from penstock_local.faults import Fault
from queue_rig import QueueRig, handle, knows_queues

pytestmark = knows_queues


@pytest.fixture
def queues(rig) -> QueueRig:
    return QueueRig(rig)


def test_an_acknowledgement_is_applied_and_answered_with_an_error(rig, queues):
    arn = queues.create()
    queues.put(b"a")
    (record,) = queues.receive(arn)
    fault = {"kind": "error", "operation": "AcknowledgeQueueRecords"}
    rig.faults.add(Fault(**fault))
    entries = [handle(record)]
    acknowledge = rig.kinesis.acknowledge_queue_records
    assert rig.refused(acknowledge, QueueARN=arn, Entries=entries) == ("InternalFailure", 500)
    assert queues.counts() == (0, 1, 0)
    rig.faults.add(Fault(**fault, applied=True, code="InternalFailureException"))
    assert rig.refused(acknowledge, QueueARN=arn, Entries=entries) == ("InternalFailureException", 500)
    assert queues.counts() == (0, 0, 0)
    assert rig.server.calls().errors["kinesis.AcknowledgeQueueRecords"] == {
        "InternalFailure": 1,
        "InternalFailureException": 1,
    }
    assert queues.acknowledge(arn, record) == ["ResourceNotFoundException"]


def test_a_record_comes_again_after_its_acknowledgement(rig, queues):
    once = {"DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": 1}}
    for name, attributes, receives in (("many", {}, 2), ("once", once, 1)):
        arn = queues.create(name, QueueAttributes=attributes)
        queues.put(b"a")
        (record,) = queues.receive(arn)
        rig.faults.add(Fault("redeliver", "AcknowledgeQueueRecords"))
        assert queues.acknowledge(arn, record) == ["ok"]
        (again,) = queues.receive(arn)
        assert (again["RecordId"], again["ReceiveCount"]) == (record["RecordId"], receives)
        assert queues.acknowledge(arn, record, again) == ["ResourceNotFoundException", "ok"]
        assert queues.counts(name) == (0, 0, 0)
    with pytest.raises(OptionError, match="redeliver faults are for"):
        Fault("redeliver", "ReceiveQueueRecords")


def test_a_dead_letter_comes_again_after_its_acknowledgement(rig, queues):
    arn = queues.create(
        QueueAttributes={"DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": 1}}
    )
    queues.put(b"a")
    queues.receive(arn, VisibilityTimeoutSeconds=0)
    (dead,) = queues.receive(arn, dead=True)
    rig.faults.add(Fault("redeliver", "AcknowledgeDeadLetterQueueRecords"))
    assert queues.acknowledge(arn, dead, dead=True) == ["ok"]
    assert [each["ReceiveCount"] for each in queues.receive(arn, dead=True)] == [3]


@pytest.mark.parametrize("kind", ["drop_after", "truncate", "garbage"])
def test_the_answer_of_a_receive_is_lost_and_its_records_are_in_flight(rig, queues, kind):
    arn = queues.create()
    queues.put(b"a")
    rig.faults.add(Fault(kind, "ReceiveQueueRecords"))
    # boto3 takes a body that it cannot read for an answer without members
    with pytest.raises((BotoCoreError, HTTPError, KeyError)):
        queues.receive(arn)
    assert queues.counts() == (0, 1, 0)
    rig.clock.advance(30)
    assert queues.receive(arn)[0]["ReceiveCount"] == 2


def test_a_fraction_of_the_entries_fails_and_is_carried_out_or_not(rig, queues):
    arn = queues.create()
    queues.put(*(b"%d" % i for i in range(8)))
    records = queues.receive(arn)
    operation = "AcknowledgeQueueRecords"
    rig.faults.add(Fault("partial", operation, fraction=0.25, code="ThrottlingException"))
    first = queues.acknowledge(arn, *records)
    assert sorted(first) == ["ThrottlingException"] * 2 + ["ok"] * 6
    assert queues.counts() == (0, 2, 0)
    left = [record for record, said in zip(records, first, strict=True) if said != "ok"]
    rig.faults.add(Fault("partial", operation, fraction=1.0, applied=True))
    assert queues.acknowledge(arn, *left) == ["InternalFailureException"] * 2
    assert queues.counts() == (0, 0, 0)


def test_entries_of_visibility_and_restore_fail_too(rig, queues):
    arn = queues.create(
        QueueAttributes={"DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": 1}}
    )
    queues.put(b"a")
    (record,) = queues.receive(arn)
    rig.faults.add(Fault("partial", "UpdateQueueRecordsVisibility"))
    assert queues.set_visibility(arn, 0, record) == ["InternalFailureException"]
    assert queues.counts() == (0, 1, 0)
    rig.clock.advance(30)
    (dead,) = queues.receive(arn, dead=True)
    rig.faults.add(Fault("partial", "RestoreDeadLetterQueueRecords", applied=True))
    answer = rig.kinesis.restore_dead_letter_queue_records(QueueARN=arn, Entries=[handle(dead)])
    assert [each["ErrorCode"] for each in answer["Failed"]] == ["InternalFailureException"]
    assert queues.counts() == (1, 0, 0)


def test_calls_are_throttled_with_the_exception_of_their_kind(rig, queues):
    arn = queues.create()
    for operation in ("ReceiveQueueRecords", "AcknowledgeQueueRecords", "DescribeQueue"):
        rig.faults.add(Fault("throttle", operation))
    kinesis = rig.kinesis
    assert code(kinesis.receive_queue_records, QueueARN=arn) == "ThrottlingException"
    entries = [{"ReceiptHandle": "x"}]
    assert code(kinesis.acknowledge_queue_records, QueueARN=arn, Entries=entries) == "ThrottlingException"
    assert code(kinesis.describe_queue, QueueARN=arn) == "LimitExceededException"


def test_a_receive_is_empty_at_once_though_there_are_records(rig, queues):
    arn = queues.create()
    queues.put(b"a")
    rig.faults.add(Fault("empty", "ReceiveQueueRecords"))
    assert queues.receive(arn) == []
    assert len(queues.receive(arn)) == 1


def test_a_fault_is_for_one_queue_or_all_of_a_stream(rig, queues):
    one, other = queues.create("one"), queues.create("other")
    receive = rig.kinesis.receive_queue_records
    queues.put(b"a")
    rig.faults.add(Fault("throttle", "ReceiveQueueRecords", queue="one"))
    assert code(receive, QueueARN=other) == "ok"
    assert code(receive, QueueARN=one) == "ThrottlingException"
    rig.faults.add(Fault("throttle", "ReceiveQueueRecords", stream="s"))
    assert code(receive, QueueARN=one) == "ThrottlingException"


def test_a_kms_error_of_a_receive_is_scripted_as_of_get_records(rig, queues):
    arn = queues.create()
    queues.put(b"a")
    rig.faults.add(Fault("error", "ReceiveQueueRecords", code="KMSThrottlingException", status=400))
    assert code(rig.kinesis.receive_queue_records, QueueARN=arn) == "KMSThrottlingException"
    assert queues.counts() == (1, 0, 0)


def test_an_applied_error_of_a_table_hides_a_write_that_was_made(rig):
    dynamodb = rig.client("dynamodb")
    dynamodb.create_table(
        TableName="table",
        KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    rig.faults.add(Fault("error", "dynamodb.PutItem", applied=True))
    assert rig.refused(dynamodb.put_item, TableName="table", Item={"k": {"S": "a"}}) == (
        "InternalServerError",
        500,
    )
    assert dynamodb.get_item(TableName="table", Key={"k": {"S": "a"}})["Item"] == {"k": {"S": "a"}}
