"""Puts: where records land, their sequence numbers, and what is refused."""

import hashlib
import time

import pytest

HASH_KEY_MAX = 2**128 - 1
HALF = 2**127
MIB = 1024 * 1024
BAD_REQUEST = ("InvalidArgumentException", "ValidationException")


def test_a_record_is_read_back_as_it_was_put(server):
    stream = server.create()
    before_s = time.time()
    put = server.put(stream, bytes(range(256)), key="ключ-🔑")
    assert put["ShardId"] == "shardId-000000000000"
    page = next(server.pages(stream, put["ShardId"]))
    record = page["Records"][0]
    assert record["Data"] == bytes(range(256))
    assert record["PartitionKey"] == "ключ-🔑"
    assert record["SequenceNumber"] == put["SequenceNumber"]
    arrived_s = record["ApproximateArrivalTimestamp"].timestamp()
    assert (
        before_s - 5 < arrived_s < time.time() + 3600
    )  # the embedded server's clock may have been moved ahead


def test_records_without_data_are_records(server):
    stream = server.create()
    server.put(stream, b"")
    assert server.read(stream) == [b""]


def test_a_partition_key_goes_to_the_shard_that_owns_its_md5(server):
    stream = server.create(shards=3)
    spans = {
        shard["ShardId"]: (
            int(shard["HashKeyRange"]["StartingHashKey"]),
            int(shard["HashKeyRange"]["EndingHashKey"]),
        )
        for shard in server.shards(stream)
    }
    keys = [f"key-{number}" for number in range(30)] + ["é", "鍵", "🔑"]
    entries = [{"Data": b"", "PartitionKey": key} for key in keys]
    answers = server.client.put_records(StreamName=stream, Records=entries)["Records"]
    for key, answer in zip(keys, answers, strict=True):
        start, end = spans[answer["ShardId"]]
        assert start <= int(hashlib.md5(key.encode()).hexdigest(), 16) <= end


def test_an_explicit_hash_key_reaches_both_ends_of_every_shard(server):
    stream = server.create(shards=3)
    for shard in server.shards(stream):
        for end in ("StartingHashKey", "EndingHashKey"):
            put = server.put(stream, b"", hash_key=int(shard["HashKeyRange"][end]))
            assert put["ShardId"] == shard["ShardId"]


def test_an_explicit_hash_key_beyond_the_space_is_refused(server, refused):
    stream = server.create()
    refused(
        server.client.put_record,
        *BAD_REQUEST,
        StreamName=stream,
        Data=b"",
        PartitionKey="k",
        ExplicitHashKey=str(HASH_KEY_MAX + 1),
    )


def test_sequence_numbers_increase_and_never_repeat_in_the_stream(server):
    stream = server.create(shards=2)
    halves = (0, HALF)
    numbers = [(half, server.put(stream, b"", hash_key=half)["SequenceNumber"]) for half in halves * 4]
    assert len({number for _, number in numbers}) == 8
    for half in halves:
        its_own = [int(number) for where, number in numbers if where == half]
        assert its_own == sorted(its_own)
    assert all(number == str(int(number)) and len(number) == 56 for _, number in numbers)


def test_the_entries_of_a_batch_are_answered_in_order_and_stored_in_order(server):
    stream = server.create()
    entries = [{"Data": b"%d" % number, "PartitionKey": f"k{number}"} for number in range(40)]
    answer = server.client.put_records(StreamName=stream, Records=entries)
    assert answer["FailedRecordCount"] == 0
    numbers = [int(entry["SequenceNumber"]) for entry in answer["Records"]]
    assert numbers == sorted(numbers)
    assert server.read(stream) == [b"%d" % number for number in range(40)]


def test_a_sequence_number_for_ordering_is_taken(server):
    stream = server.create()
    first = server.put(stream, b"1")["SequenceNumber"]
    second = server.client.put_record(
        StreamName=stream, Data=b"2", PartitionKey="k", SequenceNumberForOrdering=first
    )["SequenceNumber"]
    assert int(first) < int(second)


def test_a_batch_has_at_most_500_records(server, refused):
    stream = server.create()
    entries = [{"Data": b"", "PartitionKey": "k"} for _ in range(501)]
    refused(server.client.put_records, "ValidationException", StreamName=stream, Records=entries)


def test_a_batch_of_nothing_is_refused(server, refused):
    refused(server.client.put_records, "ValidationException", StreamName=server.create(), Records=[])


def test_a_record_has_at_most_one_mib_with_its_key(server, refused):
    stream = server.create()
    server.put(stream, bytes(MIB - 1))
    refused(server.client.put_record, *BAD_REQUEST, StreamName=stream, Data=bytes(MIB), PartitionKey="k")


def test_a_batch_has_at_most_ten_mib(server, refused):
    stream = server.create()
    entries = [{"Data": bytes(MIB - 256), "PartitionKey": "k"} for _ in range(11)]
    refused(server.client.put_records, *BAD_REQUEST, StreamName=stream, Records=entries)


def test_a_stream_that_allows_it_takes_larger_records(server):
    stream = server.create()
    server.client.update_max_record_size(StreamARN=server.arn(stream), MaxRecordSizeInKiB=2048)
    server.settle(stream)
    put = server.put(stream, bytes(MIB + 100))
    assert put["ShardId"] == "shardId-000000000000"


def test_a_partition_key_has_at_most_256_characters(server, refused):
    stream = server.create()
    server.put(stream, b"", key="é" * 256)
    for key in ("k" * 257, ""):
        refused(
            server.client.put_record, "ValidationException", StreamName=stream, Data=b"", PartitionKey=key
        )


def test_nothing_is_put_into_a_stream_that_is_not_there(server, refused):
    refused(
        server.client.put_record,
        "ResourceNotFoundException",
        StreamName="wire-no-such-stream",
        Data=b"",
        PartitionKey="k",
    )


@pytest.mark.parametrize("missing", ["Data", "PartitionKey"])
def test_a_record_without_data_or_key_is_refused(server, refused, missing):
    arguments = {"StreamName": server.create(), "Data": b"", "PartitionKey": "k"}
    del arguments[missing]
    refused(server.client.put_record, *BAD_REQUEST, **arguments)
