"""Streams, puts and time: what local servers often get wrong, as the service documents it."""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
from urllib.parse import urlsplit

import pytest

HASH_KEY_MAX = 2**128 - 1
FIRST = "shardId-000000000000"


def test_a_stream_is_creating_before_it_is_active(rig):
    rig.kinesis.create_stream(StreamName="s", ShardCount=2)
    assert rig.summary("s")["StreamStatus"] == "CREATING"
    assert rig.refused(rig.kinesis.list_shards, StreamName="s") == ("ResourceInUseException", 400)
    assert rig.refused(rig.kinesis.put_record, StreamName="s", Data=b"", PartitionKey="k") == (
        "ResourceNotFoundException",
        400,
    )
    rig.settle()
    assert rig.summary("s")["StreamStatus"] == "ACTIVE"
    assert len(rig.shards("s")) == 2


def test_an_on_demand_stream_begins_with_four_shards_and_can_change_its_mode(rig):
    rig.kinesis.create_stream(StreamName="s", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    rig.settle()
    assert len(rig.shards("s")) == 4
    arn = rig.summary("s")["StreamARN"]
    rig.kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "PROVISIONED"})
    assert rig.summary("s")["StreamStatus"] == "UPDATING"
    rig.settle()
    assert rig.summary("s")["StreamModeDetails"] == {"StreamMode": "PROVISIONED"}


def test_a_stream_is_found_by_its_arn(rig):
    arn = rig.server.create_stream("s")
    assert arn == "arn:aws:kinesis:us-east-1:123456789012:stream/s"
    put = rig.kinesis.put_record(StreamARN=arn, Data=b"x", PartitionKey="k")
    iterator = rig.kinesis.get_shard_iterator(
        StreamARN=arn, ShardId=put["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    assert [r["Data"] for r in rig.kinesis.get_records(StreamARN=arn, ShardIterator=iterator)["Records"]] == [
        b"x"
    ]
    other = arn.replace("stream/s", "stream/t")
    assert rig.refused(rig.kinesis.describe_stream, StreamARN=other) == ("ResourceNotFoundException", 400)
    assert rig.refused(rig.kinesis.describe_stream, StreamARN=other, StreamName="s") == (
        "InvalidArgumentException",
        400,
    )
    assert rig.refused(rig.kinesis.describe_stream) == ("InvalidArgumentException", 400)


def test_partition_keys_go_to_shards_by_their_md5(rig):
    rig.server.create_stream("s", shards=5)
    ranges = [
        (int(s["HashKeyRange"]["StartingHashKey"]), int(s["HashKeyRange"]["EndingHashKey"]), s["ShardId"])
        for s in rig.shards("s")
    ]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == HASH_KEY_MAX
    for i in range(120):
        number = int.from_bytes(hashlib.md5(f"key-{i}".encode()).digest(), "big")
        expected = next(shard for start, end, shard in ranges if start <= number <= end)
        put = rig.kinesis.put_record(StreamName="s", Data=b"", PartitionKey=f"key-{i}")
        assert put["ShardId"] == expected


def test_explicit_hash_keys_reach_both_ends_of_every_range(rig):
    rig.server.create_stream("s", shards=3)
    for shard in rig.shards("s"):
        for end in shard["HashKeyRange"].values():
            put = rig.kinesis.put_record(StreamName="s", Data=b"", PartitionKey="k", ExplicitHashKey=end)
            assert put["ShardId"] == shard["ShardId"]
    too_large = str(HASH_KEY_MAX + 1)
    put = rig.kinesis.put_record
    assert rig.refused(put, StreamName="s", Data=b"", PartitionKey="k", ExplicitHashKey=too_large) == (
        "InvalidArgumentException",
        400,
    )
    assert rig.refused(put, StreamName="s", Data=b"", PartitionKey="k", ExplicitHashKey="007") == (
        "ValidationException",
        400,
    )


def test_sequence_numbers_have_56_digits_increase_and_are_unique_in_the_stream(rig):
    rig.server.create_stream("s", shards=4)
    per_shard: dict[str, list[int]] = {}
    for i in range(100):
        put = rig.kinesis.put_record(StreamName="s", Data=b"", PartitionKey=str(i))
        assert len(put["SequenceNumber"]) == 56
        per_shard.setdefault(put["ShardId"], []).append(int(put["SequenceNumber"]))
    assert all(numbers == sorted(set(numbers)) for numbers in per_shard.values())
    assert len({n for numbers in per_shard.values() for n in numbers}) == 100


def test_sequence_numbers_survive_the_way_through_an_integer(rig):
    rig.server.create_stream("s")
    numbers = [
        rig.kinesis.put_record(StreamName="s", Data=b"%d" % i, PartitionKey="k")["SequenceNumber"]
        for i in range(3)
    ]
    text = str(int(numbers[1]))
    assert rig.read("s", kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=text) == [b"1", b"2"]
    assert rig.read("s", kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=text) == [b"2"]


def test_sequence_number_for_ordering_must_be_one_that_was_given_out(rig):
    rig.server.create_stream("s")
    put = rig.kinesis.put_record
    first = put(StreamName="s", Data=b"", PartitionKey="k")["SequenceNumber"]
    second = put(StreamName="s", Data=b"", PartitionKey="k", SequenceNumberForOrdering=first)[
        "SequenceNumber"
    ]
    assert int(second) > int(first)
    later = str(int(second) + (1 << 80))
    for bad in ("1", later):
        assert rig.refused(
            put, StreamName="s", Data=b"", PartitionKey="k", SequenceNumberForOrdering=bad
        ) == (
            "InvalidArgumentException",
            400,
        )


def test_a_record_may_have_one_mib_with_its_key_and_more_once_the_stream_allows_it(rig):
    arn = rig.server.create_stream("s")
    mib = 1024 * 1024
    rig.kinesis.put_record(StreamName="s", Data=bytes(mib - 1), PartitionKey="k")
    put = rig.kinesis.put_record
    assert rig.refused(put, StreamName="s", Data=bytes(mib), PartitionKey="k") == (
        "InvalidArgumentException",
        400,
    )
    rig.kinesis.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=10240)
    assert rig.summary("s")["MaxRecordSizeInKiB"] == 10240
    rig.kinesis.put_record(StreamName="s", Data=bytes(10 * mib - 1), PartitionKey="k")
    assert rig.refused(put, StreamName="s", Data=bytes(10 * mib), PartitionKey="k") == (
        "InvalidArgumentException",
        400,
    )
    assert rig.refused(rig.kinesis.update_max_record_size, StreamARN=arn, MaxRecordSizeInKiB=10241) == (
        "ValidationException",
        400,
    )


def test_put_records_takes_500_records_and_no_more(rig):
    rig.server.create_stream("s")
    entries = [{"Data": b"x", "PartitionKey": "k"}] * 501
    assert rig.kinesis.put_records(StreamName="s", Records=entries[:500])["FailedRecordCount"] == 0
    assert rig.refused(rig.kinesis.put_records, StreamName="s", Records=entries) == (
        "ValidationException",
        400,
    )


def test_put_records_takes_ten_mib_keys_included_and_no_more(rig):
    rig.server.create_stream("s")
    mib = 1024 * 1024
    entries = [{"Data": bytes(mib - 1), "PartitionKey": "k"}] * 10
    assert rig.kinesis.put_records(StreamName="s", Records=entries)["FailedRecordCount"] == 0
    entries.append({"Data": b"", "PartitionKey": "k"})
    assert rig.refused(rig.kinesis.put_records, StreamName="s", Records=entries) == (
        "InvalidArgumentException",
        400,
    )


def test_records_are_trimmed_after_the_retention_and_closed_shards_vanish(rig):
    rig.server.create_stream("s")
    _, old = rig.put_at("s", 5, b"old")
    rig.clock.advance(3600)
    rig.put_at("s", 5, b"young")
    rig.split("s", FIRST, 1000)
    rig.clock.advance(23 * 3600)
    assert rig.read("s") == [b"young"]
    assert rig.read("s", kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=str(old)) == [b"young"]
    assert rig.numbers(rig.shards("s")) == [0, 1, 2]
    rig.clock.advance(3600)
    assert rig.numbers(rig.shards("s")) == [1, 2]
    take = {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "TRIM_HORIZON"}
    assert rig.refused(rig.kinesis.get_shard_iterator, **take) == ("ResourceNotFoundException", 400)
    assert rig.server.state()["stored_bytes"] == 0


def test_retention_can_be_made_longer_and_shorter(rig):
    rig.server.create_stream("s")
    longer, shorter = (
        rig.kinesis.increase_stream_retention_period,
        rig.kinesis.decrease_stream_retention_period,
    )
    invalid = ("InvalidArgumentException", 400)
    for hours in (12, 8761):
        assert rig.refused(longer, StreamName="s", RetentionPeriodHours=hours) == invalid
        assert rig.refused(shorter, StreamName="s", RetentionPeriodHours=hours) == invalid
    longer(StreamName="s", RetentionPeriodHours=48)
    assert rig.refused(longer, StreamName="s", RetentionPeriodHours=24) == invalid
    rig.put_at("s", 5, b"x")
    rig.clock.advance(30 * 3600)
    assert rig.read("s") == [b"x"]
    shorter(StreamName="s", RetentionPeriodHours=24)
    assert rig.read("s") == []
    longer(StreamName="s", RetentionPeriodHours=48)
    assert rig.read("s") == []


def test_describe_limits_counts_open_shards(rig):
    rig.server.create_stream("s", shards=3)
    rig.kinesis.create_stream(StreamName="d", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    rig.settle()
    answer = rig.kinesis.describe_limits()
    assert (answer["OpenShardCount"], answer["OnDemandStreamCount"]) == (3, 1)
    assert answer["ShardLimit"] == 20_000


def test_eight_threads_lose_duplicate_and_reorder_nothing(rig):
    rig.server.create_stream("s", shards=4)
    acknowledged: list[tuple[str, int, bytes]] = []

    def put(thread: int) -> None:
        client = rig.client("kinesis")
        for i in range(60):
            answer = client.put_record(StreamName="s", Data=b"%d-%d" % (thread, i), PartitionKey=f"t{thread}")
            acknowledged.append((answer["ShardId"], int(answer["SequenceNumber"]), b"%d-%d" % (thread, i)))

    threads = [threading.Thread(target=put, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for shard in rig.open_shards("s"):
        records = rig.kinesis.get_records(ShardIterator=rig.iterator("s", shard))["Records"]
        stored = [(shard, int(r["SequenceNumber"]), r["Data"]) for r in records]
        assert stored == sorted(a for a in acknowledged if a[0] == shard)
        for thread in range(8):
            its_own = [r["Data"] for r in records if r["PartitionKey"] == f"t{thread}"]
            assert its_own in ([], [b"%d-%d" % (thread, i) for i in range(60)])


def test_an_unknown_operation_is_named(rig):
    connection = http.client.HTTPConnection(urlsplit(rig.server.endpoint_url).netloc, timeout=60)
    connection.request("POST", "/", b"{}", {"X-Amz-Target": "Kinesis_20131202.Nonsense"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    assert (response.status, answer["__type"]) == (400, "UnknownOperationException")
    assert "Nonsense" in answer["message"]


@pytest.mark.parametrize("region", ["EU_WEST", "us-east-1;", "x" * 40])
def test_a_signature_for_what_is_no_region_is_refused(rig, region):
    connection = http.client.HTTPConnection(urlsplit(rig.server.endpoint_url).netloc, timeout=60)
    signed = f"AWS4-HMAC-SHA256 Credential=AK/20260101/{region}/kinesis/aws4_request, SignedHeaders=host"
    headers = {"X-Amz-Target": "Kinesis_20131202.ListStreams", "Authorization": signed}
    connection.request("POST", "/", b"{}", headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    assert (response.status, answer["__type"]) == (400, "InvalidSignatureException")
