"""The targets for dead letters: over the embedded Kinesis, and over moto's S3 and SQS."""

import base64
import json
import unittest.mock
from datetime import UTC, datetime

import pytest

pytest.importorskip("httptools")
pytest.importorskip("moto")

import boto3
import moto

from penstock import Consumer, DeadLetterBucket, DeadLetterQueue, DeadLetterStream, Record
from penstock.aws.dead_letters import letter_of
from penstock.errors import DeadLetterFailed, OptionError, UsageError
from waiting import wait_until

REGION = "eu-west-1"
QUICK = {"deadline_s": 0.2, "retry_base_s": 0.01, "access_key_id": "a", "secret_access_key": "b"}
ERROR = ValueError("an order of less than nothing")


def record(data=b'{"amount": -1}', number="49", sub=3):
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    return Record(data, "anna", number, sub, "17", noon, "shardId-000000000001", "orders")


LETTER = {
    "stream": "orders",
    "shardId": "shardId-000000000001",
    "sequenceNumber": "49",
    "subSequenceNumber": 3,
    "partitionKey": "anna",
    "explicitHashKey": "17",
    "approximateArrivalTimestamp": "2026-03-01T12:00:00+00:00",
    "data": base64.b64encode(b'{"amount": -1}').decode(),
    "reason": "ValueError: an order of less than nothing",
}


@pytest.fixture
def aws(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with moto.mock_aws():
        yield


def test_a_bucket_gets_a_letter_which_a_repetition_replaces(aws):
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="letters", CreateBucketConfiguration={"LocationConstraint": REGION})
    target = DeadLetterBucket("letters", "billing/", region=REGION)
    for _ in range(2):
        target([record()], ERROR)
    [listed] = s3.list_objects_v2(Bucket="letters")["Contents"]
    assert listed["Key"] == "billing/orders/shardId-000000000001/49-3.json"
    assert json.loads(s3.get_object(Bucket="letters", Key=listed["Key"])["Body"].read()) == LETTER


@pytest.mark.parametrize("name", ["letters", "letters.fifo"])
def test_a_queue_gets_a_letter(aws, name):
    sqs = boto3.client("sqs")
    attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    DeadLetterQueue(url, region=REGION)([record()], ERROR)
    [message] = sqs.receive_message(QueueUrl=url)["Messages"]
    assert json.loads(message["Body"]) == LETTER


def test_a_fifo_queue_drops_a_repeated_letter(aws):
    sqs = boto3.client("sqs")
    url = sqs.create_queue(QueueName="letters.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    target = DeadLetterQueue(url, region=REGION)
    for _ in range(2):
        target([record()], ERROR)
    assert len(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]) == 1


@pytest.mark.parametrize(
    ("target", "named"),
    [
        (DeadLetterBucket("missing", region=REGION, connection=QUICK), "bucket s3://missing/dead-letters"),
        (
            DeadLetterQueue(f"https://sqs.{REGION}.amazonaws.com/1/missing", region=REGION, connection=QUICK),
            "missing",
        ),
    ],
)
def test_an_error_names_the_target_and_holds_the_records_that_were_not_written(aws, target, named):
    records = [record(), record(number="50")]
    with pytest.raises(DeadLetterFailed, match=named) as raised:
        target(records, ERROR)
    assert raised.value.records == tuple(records)


def test_a_stream_gets_a_letter_after_it_was_throttled(local_kinesis):
    local_kinesis.create_stream("letters")
    local_kinesis.faults.throttle("PutRecord", count=2)
    DeadLetterStream("letters")([record()], ERROR)
    assert [json.loads(data) for data in data_of("letters")] == [LETTER]
    assert local_kinesis.calls().count("PutRecord") == 3


def test_retries_have_a_bound_and_the_error_holds_the_rest(local_kinesis):
    local_kinesis.create_stream("letters")
    records = [record(), record(number="50"), record(number="51")]
    target = DeadLetterStream("letters", connection={"attempts_max": 3, "retry_base_s": 0.01})
    target(records[:1], ERROR)
    local_kinesis.faults.throttle("PutRecord", count=9)
    with pytest.raises(DeadLetterFailed, match=r"dead-letter stream letters: .* at 50") as raised:
        target(records[1:], ERROR)
    assert raised.value.records == tuple(records[1:])
    assert local_kinesis.calls().count("PutRecord") == 1 + 3


@pytest.mark.parametrize(
    "target",
    [DeadLetterStream("letters", region=REGION), DeadLetterQueue("https://sqs.example/1/a", region=REGION)],
)
def test_a_letter_that_is_too_large_is_refused_before_any_call(target):
    with pytest.raises(DeadLetterFailed, match="use DeadLetterBucket"):
        target([record(data=bytes(9 * 2**20))], ERROR)


class TextlessError(Exception):
    def __str__(self):
        return self.response.text


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TextlessError(), "TextlessError: (no text: TextlessError.__str__ raised AttributeError)"),
        (ValueError(TextlessError()), "ValueError: (no text: ValueError.__str__ raised AttributeError)"),
        (OSError("caf\udce9.csv"), r"OSError: caf\udce9.csv"),
        (ValueError("x" * 10_000), f"ValueError: {'x' * 2_000}..."),
        (KeyError(), "KeyError"),
    ],
)
def test_a_letter_has_the_error_whatever_its_text_is(error, reason):
    assert json.loads(letter_of(record(), error)) == {**LETTER, "reason": reason}


ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


@pytest.mark.parametrize(
    ("target", "stream", "region"),
    [
        (DeadLetterStream("orders"), "orders", None),
        (DeadLetterStream("orders", region=REGION), ["returns", "orders"], REGION),
        (DeadLetterStream(ARN), "orders", REGION),
        (DeadLetterStream("orders", region=REGION), ARN, None),
        (DeadLetterStream(ARN), ARN, None),
        (DeadLetterStream(ARN, region=REGION), [ARN, "returns"], REGION),
        (DeadLetterStream(ARN), "orders", None),
        (DeadLetterStream("orders", region=REGION), "orders", None),
        (DeadLetterStream("orders"), ARN, None),
        (DeadLetterStream("orders", endpoint_url="http://in-environment/"), "orders", None),
    ],
)
def test_letters_for_the_stream_that_is_read_are_refused(target, stream, region, monkeypatch):
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://in-environment")
    with pytest.raises(UsageError, match=r"dead-letter stream .*orders is a stream that this consumer reads"):
        Consumer(stream, "billing", print, on_failure="dead_letter", dead_letter=target, region=region)


OTHER_ROLE = {"role_arn": "arn:aws:iam::210987654321:role/letters"}


@pytest.mark.parametrize(
    ("target", "stream"),
    [
        (DeadLetterStream("orders", region="us-east-1"), "orders"),
        (DeadLetterStream("orders", endpoint_url="http://other"), "orders"),
        (DeadLetterStream("orders", region=REGION, connection=OTHER_ROLE), "orders"),
        (DeadLetterStream("orders", region=REGION, connection={"profile": "letters"}), ARN),
        (DeadLetterStream(ARN.replace("123456789012", "210987654321")), ARN),
        (unittest.mock.Mock(), "orders"),
    ],
)
def test_letters_for_a_stream_of_the_same_name_elsewhere_are_accepted(target, stream):
    Consumer(stream, "billing", print, on_failure="dead_letter", dead_letter=target, region=REGION)


def test_wrong_arguments_are_refused_at_once():
    with pytest.raises(UsageError, match="expected https://sqs"):
        DeadLetterQueue("letters")
    with pytest.raises(OptionError, match="deadline_s"):
        DeadLetterStream("letters", connection={"deadline": 3})


def test_a_consumer_puts_the_failing_record_aside_and_handles_its_neighbours(local_kinesis):
    local_kinesis.create_stream("orders")
    local_kinesis.create_stream("letters")
    kinesis = boto3.client("kinesis")
    for amount in (3, -1, 4):
        kinesis.put_record(StreamName="orders", Data=json.dumps(amount).encode(), PartitionKey="anna")
    stored = []

    def store(batch):
        if any(json.loads(each.data) < 0 for each in batch):
            raise ERROR
        stored.extend(json.loads(each.data) for each in batch)

    consumer = Consumer(
        "orders",
        "billing",
        store,
        starting_position="TRIM_HORIZON",
        on_failure="dead_letter",
        dead_letter=DeadLetterStream("letters"),
        handler_retries_max=0,
    )
    with consumer:
        wait_until(lambda: stored == [3, 4], "the neighbours to be stored")
        wait_until(lambda: data_of("letters"), "the letter")
    [letter] = map(json.loads, data_of("letters"))
    assert base64.b64decode(letter["data"]) == b"-1"
    assert letter["reason"] == "ValueError: an order of less than nothing"


def test_a_target_that_fails_stops_the_shard_before_the_record(local_kinesis):
    local_kinesis.create_stream("orders")
    boto3.client("kinesis").put_record(StreamName="orders", Data=b"-1", PartitionKey="anna")

    def refuse(batch):
        raise ERROR

    consumer = Consumer(
        "orders",
        "billing",
        refuse,
        starting_position="TRIM_HORIZON",
        on_failure="dead_letter",
        dead_letter=DeadLetterStream("missing"),
        handler_retries_max=1,
        on_all_stopped="stay",
    )
    consumer.start()
    wait_until(lambda: consumer.health().problems, "the shard to stop")
    assert "dead-letter stream missing" in str(consumer.health().problems)
    consumer.stop()


def data_of(stream):
    kinesis = boto3.client("kinesis")
    [shard] = kinesis.list_shards(StreamName=stream)["Shards"]
    iterator = kinesis.get_shard_iterator(
        StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )
    return [each["Data"] for each in kinesis.get_records(ShardIterator=iterator["ShardIterator"])["Records"]]
