"""Streams: create, describe, list, change and delete."""

HASH_KEY_MAX = 2**128 - 1


def test_a_stream_is_creating_before_it_is_active(server):
    seen = []
    while "CREATING" not in seen and len(seen) < 10:  # 150 ms where it is fast: a stalled machine misses it
        name = f"wire-creating-{len(seen)}"
        server.client.create_stream(StreamName=name, ShardCount=1)
        seen.append(server.status(name))
        server.settle(name)
        assert server.status(name) == "ACTIVE"
    assert seen[-1] == "CREATING"


def test_shards_share_the_hash_space_evenly_without_hole_or_overlap(server):
    spans = sorted(
        (int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"]))
        for shard in server.shards(server.create(shards=3))
    )
    assert spans[0][0] == 0
    assert spans[-1][1] == HASH_KEY_MAX
    assert [start for start, _ in spans[1:]] == [end + 1 for _, end in spans[:-1]]
    sizes = [end - start + 1 for start, end in spans]
    assert max(sizes) - min(sizes) <= 3


def test_shards_are_numbered_from_zero_with_twelve_digits(server):
    assert server.ids(server.create(shards=2)) == ["shardId-000000000000", "shardId-000000000001"]


def test_a_stream_that_is_there_is_not_created_again(server, refused):
    stream = server.create()
    refused(server.client.create_stream, "ResourceInUseException", StreamName=stream, ShardCount=1)


def test_what_is_not_there_is_not_found(server, refused):
    for call in (
        server.client.describe_stream,
        server.client.describe_stream_summary,
        server.client.list_shards,
        server.client.delete_stream,
    ):
        refused(call, "ResourceNotFoundException", StreamName="wire-no-such-stream")


def test_a_name_with_forbidden_characters_is_refused(server, refused):
    refused(server.client.create_stream, "ValidationException", StreamName="no spaces", ShardCount=1)


def test_a_stream_without_a_shard_is_refused(server, refused):
    codes = ("ValidationException", "InvalidArgumentException")
    refused(server.client.create_stream, *codes, StreamName="wire-no-shards", ShardCount=0)


def test_a_summary_says_what_the_stream_is(server):
    stream = server.create(shards=3)
    summary = server.client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    assert summary["StreamName"] == stream
    assert summary["StreamStatus"] == "ACTIVE"
    assert summary["OpenShardCount"] == 3
    assert summary["RetentionPeriodHours"] == 24
    assert summary["StreamModeDetails"] == {"StreamMode": "PROVISIONED"}
    assert summary["StreamARN"].endswith(f":stream/{stream}")


def test_a_stream_is_found_by_its_arn(server):
    stream = server.create()
    arn = server.arn(stream)
    described = server.client.describe_stream(StreamARN=arn)["StreamDescription"]
    assert described["StreamName"] == stream
    put = server.client.put_record(StreamARN=arn, Data=b"by arn", PartitionKey="k")
    iterator = server.client.get_shard_iterator(
        StreamARN=arn, ShardId=put["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    page = server.client.get_records(ShardIterator=iterator, StreamARN=arn)
    assert [record["Data"] for record in page["Records"]] == [b"by arn"]
    assert len(server.client.list_shards(StreamARN=arn)["Shards"]) == 1


def test_a_description_is_paged_by_shard(server):
    stream = server.create(shards=3)
    first = server.client.describe_stream(StreamName=stream, Limit=2)["StreamDescription"]
    assert [shard["ShardId"][-1] for shard in first["Shards"]] == ["0", "1"]
    assert first["HasMoreShards"] is True
    last = first["Shards"][-1]["ShardId"]
    rest = server.client.describe_stream(StreamName=stream, ExclusiveStartShardId=last)["StreamDescription"]
    assert [shard["ShardId"][-1] for shard in rest["Shards"]] == ["2"]
    assert rest["HasMoreShards"] is False


def test_streams_are_listed_by_page(server):
    wanted = {server.create() for _ in range(3)}
    seen, start = set(), {}
    for _ in range(200):
        page = server.client.list_streams(Limit=2, **start)
        assert len(page["StreamNames"]) <= 2
        seen |= set(page["StreamNames"])
        if not page["HasMoreStreams"]:
            break
        start = {"ExclusiveStartStreamName": page["StreamNames"][-1]}
    assert wanted <= seen


def test_an_on_demand_stream_begins_with_four_shards(server):
    stream = server.create(StreamModeDetails={"StreamMode": "ON_DEMAND"})
    assert len(server.ids(stream)) == 4
    summary = server.client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    assert summary["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}


def test_tags_are_added_listed_and_removed(server):
    stream = server.create()
    server.client.add_tags_to_stream(StreamName=stream, Tags={"team": "billing", "env": "test"})
    server.client.remove_tags_from_stream(StreamName=stream, TagKeys=["env"])
    listed = server.client.list_tags_for_stream(StreamName=stream)["Tags"]
    assert listed == [{"Key": "team", "Value": "billing"}]


def test_retention_is_made_longer_and_shorter(server, refused):
    stream = server.create()
    server.client.increase_stream_retention_period(StreamName=stream, RetentionPeriodHours=48)
    server.settle(stream)
    summary = server.client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    assert summary["RetentionPeriodHours"] == 48
    server.client.decrease_stream_retention_period(StreamName=stream, RetentionPeriodHours=24)
    server.settle(stream)
    longer, shorter = (
        server.client.increase_stream_retention_period,
        server.client.decrease_stream_retention_period,
    )
    codes = ("InvalidArgumentException", "ValidationException")
    refused(shorter, *codes, StreamName=stream, RetentionPeriodHours=23)
    refused(longer, *codes, StreamName=stream, RetentionPeriodHours=8761)


def test_the_limits_of_the_account_are_told(server):
    server.create()
    limits = server.client.describe_limits()
    assert limits["OpenShardCount"] >= 1
    assert limits["ShardLimit"] >= limits["OpenShardCount"]


def test_a_deleted_stream_is_gone_and_its_name_is_free(server, refused):
    stream = server.create(shards=2)
    server.put(stream, b"old")
    server.client.delete_stream(StreamName=stream)

    def is_gone():
        return stream not in server.client.list_streams(Limit=1000)["StreamNames"]

    server.wait_until(is_gone, f"stream {stream} to be gone")
    refused(server.client.list_shards, "ResourceNotFoundException", StreamName=stream)
    server.client.create_stream(StreamName=stream, ShardCount=1)
    server.settle(stream)
    assert server.ids(stream) == ["shardId-000000000000"]
    assert server.read(stream) == []
