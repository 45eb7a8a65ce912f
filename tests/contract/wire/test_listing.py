"""ListShards: filters and pages."""

import pytest

BAD_REQUEST = ("InvalidArgumentException", "ValidationException")
FIRST = "shardId-000000000000"


@pytest.fixture(scope="session")
def lineage(server):
    """A stream whose first shard was split, with a moment well before and one after the split."""
    stream = server.create(shards=2)
    other = "shardId-000000000001"

    def put_and_look():
        """Return the server's time, from a record in the shard that stays."""
        server.put(stream, b"", hash_key=2**127)
        records = [record for page in server.pages(stream, other) for record in page["Records"]]
        return records[-1]["ApproximateArrivalTimestamp"].timestamp()

    before_s = put_and_look()
    server.let_pass(1.2)
    server.split(stream, server.shards(stream)[0])
    server.let_pass(1.2)
    return stream, before_s, put_and_look()


def listed(server, stream, **chosen):
    answer = server.client.list_shards(StreamName=stream, ShardFilter=chosen)
    return sorted(int(shard["ShardId"][-4:]) for shard in answer["Shards"])


def test_without_a_filter_every_shard_is_listed(server, lineage):
    stream, _, _ = lineage
    assert server.ids(stream) == [f"shardId-{number:012d}" for number in range(4)]


def test_at_latest_lists_the_open_shards(server, lineage):
    stream, _, _ = lineage
    assert listed(server, stream, Type="AT_LATEST") == [1, 2, 3]


def test_at_trim_horizon_lists_what_was_open_at_the_oldest_moment(server, lineage):
    stream, _, _ = lineage
    assert listed(server, stream, Type="AT_TRIM_HORIZON") == [0, 1]


def test_from_trim_horizon_lists_everything(server, lineage):
    stream, _, _ = lineage
    assert listed(server, stream, Type="FROM_TRIM_HORIZON") == [0, 1, 2, 3]


def test_after_a_shard_lists_what_follows_it(server, lineage):
    stream, _, _ = lineage
    assert listed(server, stream, Type="AFTER_SHARD_ID", ShardId="shardId-000000000001") == [2, 3]


def test_at_a_timestamp_lists_what_was_open_then(server, lineage, moment):
    stream, before_s, after_s = lineage
    assert listed(server, stream, Type="AT_TIMESTAMP", Timestamp=moment(before_s + 0.1)) == [0, 1]
    assert listed(server, stream, Type="AT_TIMESTAMP", Timestamp=moment(after_s)) == [1, 2, 3]


def test_from_a_timestamp_lists_what_was_open_then_or_came_later(server, lineage, moment):
    stream, before_s, after_s = lineage
    assert listed(server, stream, Type="FROM_TIMESTAMP", Timestamp=moment(before_s + 0.1)) == [0, 1, 2, 3]
    assert listed(server, stream, Type="FROM_TIMESTAMP", Timestamp=moment(after_s)) == [1, 2, 3]


@pytest.mark.parametrize("chosen", [{"Type": "AT_TIMESTAMP"}, {"Type": "AFTER_SHARD_ID"}, {"Type": "ALL"}])
def test_a_filter_that_makes_no_sense_is_refused(server, refused, chosen):
    refused(server.client.list_shards, *BAD_REQUEST, StreamName=server.create(), ShardFilter=chosen)


def test_a_listing_is_paged_by_a_token_that_stands_for_the_stream(server):
    stream = server.create(shards=5)
    seen, arguments = [], {"StreamName": stream}
    for _ in range(3):
        page = server.client.list_shards(**arguments, MaxResults=2)
        assert len(page["Shards"]) <= 2
        seen += [int(shard["ShardId"][-4:]) for shard in page["Shards"]]
        arguments = {"NextToken": page.get("NextToken")}
    assert seen == [0, 1, 2, 3, 4]
    assert arguments == {"NextToken": None}


def test_a_page_keeps_the_filter_of_the_first(server):
    stream = server.create(shards=2)
    server.split(stream)
    first = server.client.list_shards(StreamName=stream, ShardFilter={"Type": "AT_LATEST"}, MaxResults=2)
    rest = server.client.list_shards(NextToken=first["NextToken"])
    assert [int(shard["ShardId"][-4:]) for shard in first["Shards"] + rest["Shards"]] == [1, 2, 3]


def test_a_token_and_a_stream_name_exclude_each_other(server, refused):
    stream = server.create(shards=3)
    token = server.client.list_shards(StreamName=stream, MaxResults=1)["NextToken"]
    refused(server.client.list_shards, "InvalidArgumentException", StreamName=stream, NextToken=token)


def test_a_made_up_token_is_refused(server, refused):
    server.create()
    codes = (*BAD_REQUEST, "ExpiredNextTokenException")
    refused(server.client.list_shards, *codes, NextToken="bogus")


def test_a_token_expires_after_five_minutes(ageing, refused):
    stream = ageing.create(shards=3)
    token = ageing.client.list_shards(StreamName=stream, MaxResults=1)["NextToken"]
    ageing.let_pass(301)
    refused(ageing.client.list_shards, "ExpiredNextTokenException", NextToken=token)


def test_a_listing_begins_behind_the_shard_it_is_told(server):
    stream = server.create(shards=3)
    answer = server.client.list_shards(StreamName=stream, ExclusiveStartShardId=FIRST)
    assert [int(shard["ShardId"][-4:]) for shard in answer["Shards"]] == [1, 2]


def test_a_listing_of_no_stream_is_refused(server, refused):
    refused(server.client.list_shards, *BAD_REQUEST)
