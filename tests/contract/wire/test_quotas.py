"""Quotas: what a shard refuses, and with which error."""

import pytest
from botocore.exceptions import ClientError

TOO_FAST = "ProvisionedThroughputExceededException"


def outcome(call, **arguments):
    """Return the error code of a call, or None."""
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return None


def test_a_shard_answers_five_reads_a_second(limited):
    stream = limited.create()
    iterator = limited.iterator(stream)
    codes = [outcome(limited.client.get_records, ShardIterator=iterator) for _ in range(12)]
    assert codes[:5] == [None] * 5
    assert TOO_FAST in codes[5:]
    limited.let_pass(1.1)
    assert outcome(limited.client.get_records, ShardIterator=iterator) is None


def test_a_shard_takes_a_thousand_records_a_second_and_refuses_the_rest_one_by_one(limited):
    stream = limited.create()
    entries = [{"Data": b"", "PartitionKey": "k"} for _ in range(500)]
    answers = [limited.client.put_records(StreamName=stream, Records=entries) for _ in range(4)]
    refused = [entry for answer in answers for entry in answer["Records"] if "ErrorCode" in entry]
    assert refused
    assert {entry["ErrorCode"] for entry in refused} == {TOO_FAST}
    assert all("SequenceNumber" not in entry for entry in refused)
    assert sum(answer["FailedRecordCount"] for answer in answers) == len(refused)


def test_a_shard_takes_one_mib_a_second(limited):
    stream = limited.create()
    arguments = {"StreamName": stream, "Data": bytes(512 * 1024), "PartitionKey": "k"}
    codes = [outcome(limited.client.put_record, **arguments) for _ in range(6)]
    assert codes[0] is None
    assert TOO_FAST in codes


def test_a_full_shard_does_not_slow_its_neighbour(limited):
    stream = limited.create(shards=2)
    low, high = ({"PartitionKey": "k", "ExplicitHashKey": key} for key in ("0", str(2**127)))
    entries = [{"Data": b"", **low} for _ in range(499)]
    for _ in range(3):
        limited.client.put_records(StreamName=stream, Records=entries)
    answer = limited.client.put_records(StreamName=stream, Records=[*entries, {"Data": b"", **high}])
    assert answer["Records"][0].get("ErrorCode") == TOO_FAST
    assert "ErrorCode" not in answer["Records"][-1]


def test_a_shard_gives_five_iterators_a_second(limited):
    stream = limited.create()
    arguments = {"StreamName": stream, "ShardId": "shardId-000000000000", "ShardIteratorType": "LATEST"}
    codes = [outcome(limited.client.get_shard_iterator, **arguments) for _ in range(12)]
    assert codes[:5] == [None] * 5
    assert TOO_FAST in codes[5:]


@pytest.mark.parametrize("target", [1, 5])
def test_a_stream_is_rescaled_at_most_to_double_or_half(limited, target):
    stream = limited.create(shards=3 if target == 1 else 2)
    arguments = {"StreamName": stream, "TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"}
    code = outcome(limited.client.update_shard_count, **arguments)
    assert code in {"LimitExceededException", "InvalidArgumentException"}
