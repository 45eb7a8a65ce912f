"""Reads: where iterators begin, what pages hold, how far behind they are."""

import pytest

BAD_REQUEST = ("InvalidArgumentException", "ValidationException")
SHARD = "shardId-000000000000"


def filled(server, count=5):
    """Return a stream with records 0..count-1, and their sequence numbers."""
    stream = server.create()
    return stream, [server.put(stream, b"%d" % number)["SequenceNumber"] for number in range(count)]


def test_trim_horizon_begins_with_the_oldest_record(server):
    stream, _ = filled(server)
    assert server.read(stream) == [b"0", b"1", b"2", b"3", b"4"]


def test_latest_begins_behind_the_newest_record(server):
    stream, _ = filled(server)
    iterator = server.iterator(stream, kind="LATEST")
    server.put(stream, b"after")
    page = server.client.get_records(ShardIterator=iterator)
    assert [record["Data"] for record in page["Records"]] == [b"after"]


def test_at_and_after_a_sequence_number(server):
    stream, numbers = filled(server)
    at = server.read(stream, kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[3])
    after = server.read(stream, kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[3])
    assert (at, after) == ([b"3", b"4"], [b"4"])


def test_at_a_timestamp_begins_with_the_first_record_at_or_after_it(server, moment):
    stream = server.create()
    for data in (b"0", b"1", b"2"):
        server.put(stream, data)
        server.let_pass(0.05)
    arrivals = [
        record["ApproximateArrivalTimestamp"].timestamp()
        for page in server.pages(stream, SHARD)
        for record in page["Records"]
    ]
    between = moment((arrivals[0] + arrivals[1]) / 2)
    assert server.read(stream, kind="AT_TIMESTAMP", Timestamp=between) == [b"1", b"2"]
    long_before = moment(arrivals[0] - 3600)
    assert server.read(stream, kind="AT_TIMESTAMP", Timestamp=long_before) == [b"0", b"1", b"2"]
    assert server.read(stream, kind="AT_TIMESTAMP", Timestamp=moment(arrivals[2] + 0.02)) == []


def test_a_timestamp_in_the_future_is_refused(server, refused, moment):
    stream, _ = filled(server, 1)
    arrival_s = next(server.pages(stream, SHARD))["Records"][0]["ApproximateArrivalTimestamp"].timestamp()
    refused(
        server.client.get_shard_iterator,
        "InvalidArgumentException",
        StreamName=stream,
        ShardId=SHARD,
        ShardIteratorType="AT_TIMESTAMP",
        Timestamp=moment(arrival_s + 3600),
    )


@pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP"])
def test_an_iterator_that_lacks_its_place_is_refused(server, refused, kind):
    stream = server.create()
    refused(
        server.client.get_shard_iterator,
        *BAD_REQUEST,
        StreamName=stream,
        ShardId=SHARD,
        ShardIteratorType=kind,
    )


def test_a_kind_of_iterator_that_does_not_exist_is_refused(server, refused):
    stream = server.create()
    refused(
        server.client.get_shard_iterator,
        *BAD_REQUEST,
        StreamName=stream,
        ShardId=SHARD,
        ShardIteratorType="SOMEWHERE",
    )


@pytest.mark.parametrize("number", ["12345", "not-a-number"])
def test_a_sequence_number_that_was_never_given_out_is_refused(server, refused, number):
    stream, _ = filled(server, 1)
    refused(
        server.client.get_shard_iterator,
        *BAD_REQUEST,
        StreamName=stream,
        ShardId=SHARD,
        ShardIteratorType="AT_SEQUENCE_NUMBER",
        StartingSequenceNumber=number,
    )


def test_a_shard_that_is_not_there_is_not_found(server, refused):
    refused(
        server.client.get_shard_iterator,
        "ResourceNotFoundException",
        StreamName=server.create(),
        ShardId="shardId-000000000009",
        ShardIteratorType="LATEST",
    )


def test_a_made_up_iterator_is_refused(server, refused):
    server.create()
    refused(server.client.get_records, *BAD_REQUEST, ShardIterator="AAAAAAAAAAA=")


def test_an_iterator_gives_the_same_records_each_time(server):
    stream, _ = filled(server, 3)
    iterator = server.iterator(stream)
    first, again = (server.client.get_records(ShardIterator=iterator)["Records"] for _ in range(2))
    assert [record["SequenceNumber"] for record in first] == [record["SequenceNumber"] for record in again]
    assert len(first) == 3


def test_an_iterator_expires_after_five_minutes(ageing, refused):
    stream, _ = filled(ageing, 1)
    iterator = ageing.iterator(stream)
    ageing.let_pass(301)
    refused(ageing.client.get_records, "ExpiredIteratorException", ShardIterator=iterator)


def test_a_page_holds_no_more_than_its_limit_and_the_next_goes_on(server):
    stream, _ = filled(server, 5)
    pages, iterator = [], server.iterator(stream)
    for _ in range(3):
        page = server.client.get_records(ShardIterator=iterator, Limit=2)
        pages.append([record["Data"] for record in page["Records"]])
        iterator = page["NextShardIterator"]
    assert pages == [[b"0", b"1"], [b"2", b"3"], [b"4"]]


def test_a_limit_over_ten_thousand_is_refused(server, refused):
    stream = server.create()
    refused(server.client.get_records, *BAD_REQUEST, ShardIterator=server.iterator(stream), Limit=10_001)


def test_an_open_shard_always_has_a_next_iterator(server):
    stream = server.create()
    iterator = server.iterator(stream)
    for _ in range(3):
        page = server.client.get_records(ShardIterator=iterator)
        assert page["Records"] == []
        assert "ChildShards" not in page
        iterator = page["NextShardIterator"]
    server.put(stream, b"late")
    assert [record["Data"] for record in server.client.get_records(ShardIterator=iterator)["Records"]] == [
        b"late"
    ]


def test_at_the_tip_a_reader_is_not_behind(server):
    stream, _ = filled(server, 2)
    assert list(server.pages(stream, SHARD))[-1]["MillisBehindLatest"] == 0


def test_a_reader_is_behind_by_the_age_of_the_oldest_record_it_has_not_read(server):
    stream = server.create()
    # In one call: half a second apart, a server that measures to the newest record would be right by chance.
    entries = [{"Data": data, "PartitionKey": "k"} for data in (b"read", b"unread")]
    server.client.put_records(StreamName=stream, Records=entries)
    server.let_pass(0.6)
    page = server.client.get_records(ShardIterator=server.iterator(stream), Limit=1)
    assert [record["Data"] for record in page["Records"]] == [b"read"]
    assert 500 <= page["MillisBehindLatest"] <= 20_000


def test_records_arrive_in_the_order_of_their_numbers(server):
    stream, numbers = filled(server, 8)
    records = [record for page in server.pages(stream, SHARD) for record in page["Records"]]
    assert [record["SequenceNumber"] for record in records] == numbers
    arrivals = [record["ApproximateArrivalTimestamp"] for record in records]
    assert arrivals == sorted(arrivals)


def test_records_leave_the_stream_after_the_retention(ageing):
    stream, _ = filled(ageing, 2)
    ageing.let_pass(24 * 3600 + 60)
    ageing.put(stream, b"new")
    assert ageing.read(stream) == [b"new"]
