"""Splits and merges: lineage, where records go, how a closed shard ends."""

from botocore.exceptions import ClientError

HASH_KEY_MAX = 2**128 - 1
HALF = 2**127
FIRST = "shardId-000000000000"


def span(shard):
    return (int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"]))


def test_a_split_closes_the_parent_and_gives_each_child_a_half(server):
    stream = server.create()
    children = server.split(stream)
    assert [span(child) for child in children] == [(0, HALF - 1), (HALF, HASH_KEY_MAX)]
    assert [child["ParentShardId"] for child in children] == [FIRST, FIRST]
    assert all("AdjacentParentShardId" not in child for child in children)
    assert sorted(server.open_ids(stream)) == ["shardId-000000000001", "shardId-000000000002"]


def test_after_a_split_a_put_goes_to_the_child_that_owns_its_key(server):
    stream = server.create()
    before = server.put(stream, b"before", hash_key=0)
    low, high = server.split(stream)
    assert before["ShardId"] == FIRST
    assert server.put(stream, b"low", hash_key=0)["ShardId"] == low["ShardId"]
    assert server.put(stream, b"high", hash_key=HALF)["ShardId"] == high["ShardId"]
    assert server.read(stream, low["ShardId"]) == [b"low"]
    assert server.read(stream, high["ShardId"]) == [b"high"]


def test_a_closed_parent_stays_readable(server):
    stream = server.create()
    server.put(stream, b"1")
    server.put(stream, b"2")
    server.split(stream)
    assert server.read(stream, FIRST) == [b"1", b"2"]


def test_a_closed_shard_ends_with_no_next_iterator_and_the_names_of_its_children(server):
    stream = server.create()
    server.put(stream, b"1")
    low, high = server.split(stream)
    named = {child["ShardId"]: child for child in server.last_page(stream, FIRST)["ChildShards"]}
    assert set(named) == {low["ShardId"], high["ShardId"]}
    for child in (low, high):
        assert named[child["ShardId"]]["ParentShards"] == [FIRST]
        assert named[child["ShardId"]]["HashKeyRange"] == child["HashKeyRange"]


def test_an_empty_closed_shard_ends_too(server):
    stream = server.create()
    server.split(stream)
    assert server.last_page(stream, FIRST)["Records"] == []


def test_latest_on_a_closed_shard_is_its_end(server):
    stream = server.create()
    server.put(stream, b"1")
    server.split(stream)
    page = server.client.get_records(ShardIterator=server.iterator(stream, FIRST, "LATEST"))
    assert page["Records"] == []
    assert page.get("NextShardIterator") is None


def test_sequence_numbers_keep_their_order_across_a_split(server):
    stream = server.create()
    before = int(server.put(stream, b"", hash_key=0)["SequenceNumber"])
    low, _ = server.split(stream)
    after = int(server.put(stream, b"", hash_key=0)["SequenceNumber"])
    parent = next(shard for shard in server.shards(stream) if shard["ShardId"] == FIRST)[
        "SequenceNumberRange"
    ]
    assert int(parent["StartingSequenceNumber"]) <= before <= int(parent["EndingSequenceNumber"])
    assert (
        int(parent["EndingSequenceNumber"])
        < int(low["SequenceNumberRange"]["StartingSequenceNumber"])
        <= after
    )


def test_a_merge_has_two_parents_and_both_name_the_child(server):
    stream = server.create(shards=2)
    one, other = server.shards(stream)
    server.put(stream, b"low", hash_key=0)
    server.put(stream, b"high", hash_key=HALF)
    child = server.merge(stream, one, other)
    parents = {one["ShardId"], other["ShardId"]}
    assert {child["ParentShardId"], child["AdjacentParentShardId"]} == parents
    assert span(child) == (0, HASH_KEY_MAX)
    assert server.open_ids(stream) == [child["ShardId"]]
    for parent, data in ((one, b"low"), (other, b"high")):
        assert server.read(stream, parent["ShardId"]) == [data]
        (named,) = server.last_page(stream, parent["ShardId"])["ChildShards"]
        assert named["ShardId"] == child["ShardId"]
        assert set(named["ParentShards"]) == parents
    assert server.put(stream, b"new", hash_key=0)["ShardId"] == child["ShardId"]


def test_only_neighbours_are_merged(server, refused):
    stream = server.create(shards=3)
    one, _, third = sorted(server.shards(stream), key=span)
    refused(
        server.client.merge_shards,
        "InvalidArgumentException",
        StreamName=stream,
        ShardToMerge=one["ShardId"],
        AdjacentShardToMerge=third["ShardId"],
    )


def test_a_split_must_leave_both_children_a_key(server, refused):
    stream = server.create()
    for key in ("0", str(HASH_KEY_MAX + 1)):
        refused(
            server.client.split_shard,
            "InvalidArgumentException",
            StreamName=stream,
            ShardToSplit=FIRST,
            NewStartingHashKey=key,
        )


def test_a_closed_shard_is_not_split_again(server, refused):
    stream = server.create()
    server.split(stream)
    refused(
        server.client.split_shard,
        "InvalidArgumentException",
        "ResourceInUseException",
        StreamName=stream,
        ShardToSplit=FIRST,
        NewStartingHashKey=str(HALF),
    )


def test_a_stream_is_updating_while_it_is_resharded_and_refuses_another_change(server):
    for _ in range(10):  # it lasts 150 ms where it is fast: a machine that stalls for longer misses it
        stream = server.create(shards=2)
        one, other = server.shards(stream)
        server.begin_split(stream, one)
        status, answer = server.status(stream), None
        try:
            server.begin_split(stream, other)
        except ClientError as error:
            answer = (error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"])
        server.settle(stream)
        if status == "UPDATING" and answer is not None:
            break
    assert (status, answer) == ("UPDATING", ("ResourceInUseException", 400))


def test_a_stream_is_rescaled_evenly_with_lineage_and_loses_nothing(server):
    stream = server.create(shards=2)
    old = server.ids(stream)
    server.put(stream, b"low", hash_key=0)
    server.put(stream, b"high", hash_key=HALF)
    answer = server.client.update_shard_count(
        StreamName=stream, TargetShardCount=4, ScalingType="UNIFORM_SCALING"
    )
    assert (answer["CurrentShardCount"], answer["TargetShardCount"]) == (2, 4)
    server.settle(stream)
    shards = {shard["ShardId"]: shard for shard in server.shards(stream)}
    fresh = [shards[shard_id] for shard_id in server.open_ids(stream)]
    spans = sorted(span(shard) for shard in fresh)
    assert [start for start, _ in spans] == [0, *(end + 1 for _, end in spans[:-1])]
    assert all(abs(end - start - 2**126) < 4 for start, end in spans)
    assert set(old) <= set(shards)
    assert all(shard["ParentShardId"] in old for shard in fresh)
    assert [server.read(stream, shard_id) for shard_id in old] == [[b"low"], [b"high"]]


def test_every_record_is_read_once_and_in_order_along_the_lineage(server):
    stream = server.create()
    sent = []

    def put_some(tag):
        for number in range(6):
            data = b"%s-%d" % (tag, number)
            server.put(stream, data, hash_key=0)
            sent.append(data)

    put_some(b"whole")
    low, high = server.split(stream)
    put_some(b"half")
    child = server.merge(stream, low, high)
    put_some(b"again")
    seen = [
        data for shard in (FIRST, low["ShardId"], child["ShardId"]) for data in server.read(stream, shard)
    ]
    assert seen == sent
