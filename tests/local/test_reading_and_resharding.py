"""Positions, resharding and listings: what local servers often get wrong, as the service documents it."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

HASH_KEY_MAX = 2**128 - 1
FIRST = "shardId-000000000000"


def test_every_iterator_type_begins_where_it_says(rig):
    rig.server.create_stream("s")
    numbers, times = [], []
    for i in range(5):
        times.append(rig.clock.now_ms())
        put = rig.kinesis.put_record(StreamName="s", Data=b"%d" % i, PartitionKey="k")
        numbers.append(put["SequenceNumber"])
        rig.clock.advance(1)
    assert rig.read("s", kind="TRIM_HORIZON") == [b"0", b"1", b"2", b"3", b"4"]
    assert rig.read("s", kind="LATEST") == []
    assert rig.read("s", kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[3]) == [b"3", b"4"]
    assert rig.read("s", kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[3]) == [b"4"]
    assert rig.read("s", kind="AT_TIMESTAMP", Timestamp=rig.moment(times[2])) == [b"2", b"3", b"4"]
    assert rig.read("s", kind="AT_TIMESTAMP", Timestamp=rig.moment(times[2] + 1)) == [b"3", b"4"]
    assert rig.read("s", kind="AT_TIMESTAMP", Timestamp=rig.moment(times[0] - 10**9)) == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]
    start = rig.shards("s")[0]["SequenceNumberRange"]["StartingSequenceNumber"]
    assert rig.read("s", kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=start)[0] == b"0"


def test_latest_gives_what_is_put_after_it_was_taken(rig):
    rig.server.create_stream("s")
    rig.kinesis.put_record(StreamName="s", Data=b"before", PartitionKey="k")
    iterator = rig.iterator("s", kind="LATEST")
    rig.kinesis.put_record(StreamName="s", Data=b"after", PartitionKey="k")
    assert [r["Data"] for r in rig.kinesis.get_records(ShardIterator=iterator)["Records"]] == [b"after"]


def test_future_timestamps_and_bogus_sequence_numbers_are_refused(rig):
    rig.server.create_stream("s", shards=2)
    number = rig.kinesis.put_record(StreamName="s", Data=b"", PartitionKey="k", ExplicitHashKey="0")[
        "SequenceNumber"
    ]
    take = rig.kinesis.get_shard_iterator
    invalid = ("InvalidArgumentException", 400)
    future = rig.moment(rig.clock.now_ms() + 1000)
    assert (
        rig.refused(take, StreamName="s", ShardId=FIRST, ShardIteratorType="AT_TIMESTAMP", Timestamp=future)
        == invalid
    )
    for bad, shard in (
        (str(12345), FIRST),
        (str(int(number) + (1 << 80)), FIRST),
        (number, FIRST[:-1] + "1"),
    ):
        assert (
            rig.refused(
                take,
                StreamName="s",
                ShardId=shard,
                ShardIteratorType="AT_SEQUENCE_NUMBER",
                StartingSequenceNumber=bad,
            )
            == invalid
        )
    assert rig.refused(take, StreamName="s", ShardId=FIRST, ShardIteratorType="AT_SEQUENCE_NUMBER") == invalid
    assert rig.refused(take, StreamName="s", ShardId=FIRST, ShardIteratorType="AT_TIMESTAMP") == invalid
    assert (
        rig.refused(
            take, StreamName="s", ShardId=FIRST, ShardIteratorType="LATEST", StartingSequenceNumber=number
        )
        == invalid
    )
    assert rig.refused(take, StreamName="s", ShardId=FIRST[:-1] + "9", ShardIteratorType="LATEST") == (
        "ResourceNotFoundException",
        400,
    )
    assert rig.refused(take, StreamName="s", ShardId=FIRST, ShardIteratorType="SOMEWHERE") == (
        "ValidationException",
        400,
    )


def test_a_sequence_number_of_another_streams_shard_with_the_same_id_is_refused(rig):
    rig.server.create_stream("one")
    rig.server.create_stream("other")
    foreign = str(rig.put_at("one", 0)[1])
    own = str(rig.put_at("other", 0)[1])
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        rig.iterator("other", kind=kind, StartingSequenceNumber=own)
        with pytest.raises(ClientError) as caught:
            rig.iterator("other", kind=kind, StartingSequenceNumber=foreign)
        assert caught.value.response["Error"] == {
            "Code": "InvalidArgumentException",
            "Message": f"StartingSequenceNumber {foreign} used in GetShardIterator on shard {FIRST} in stream other "
            "under account 123456789012 is invalid because it did not come from this stream.",
        }
    put = {"StreamName": "other", "Data": b"", "PartitionKey": "k"}
    rig.kinesis.put_record(**put, SequenceNumberForOrdering=own)
    assert rig.refused(rig.kinesis.put_record, **put, SequenceNumberForOrdering=foreign) == (
        "InvalidArgumentException",
        400,
    )


def test_a_sequence_number_of_a_stream_that_had_the_name_before_is_refused(rig):
    rig.server.create_stream("s")
    earlier = str(rig.put_at("s", 0)[1])
    rig.kinesis.delete_stream(StreamName="s")
    rig.settle()
    rig.server.create_stream("s")
    rig.put_at("s", 0)
    with pytest.raises(ClientError, match="did not come from this stream"):
        rig.iterator("s", kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=earlier)


def test_a_sequence_number_of_a_sibling_names_both_shards(rig):
    rig.server.create_stream("s", shards=2)
    second = str(rig.put_at("s", HASH_KEY_MAX)[1])
    with pytest.raises(ClientError, match=f"encodes {FIRST[:-1]}1, while it was used in .* with {FIRST}"):
        rig.iterator("s", kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=second)


def test_a_made_up_iterator_is_an_invalid_argument(rig):
    rig.server.create_stream("s")
    real = rig.iterator("s")
    for bad in ("AAAA", "not base64!", real[:-4] + "AAAA", real[:10]):
        assert rig.refused(rig.kinesis.get_records, ShardIterator=bad) == ("InvalidArgumentException", 400)


def test_iterators_expire_after_five_minutes(rig):
    rig.server.create_stream("s")
    iterator = rig.iterator("s")
    rig.clock.advance(300)
    assert rig.kinesis.get_records(ShardIterator=iterator)["Records"] == []
    rig.clock.advance(0.001)
    assert rig.refused(rig.kinesis.get_records, ShardIterator=iterator) == ("ExpiredIteratorException", 400)


def test_limit_is_kept_and_the_next_iterator_goes_on(rig):
    rig.server.create_stream("s")
    for i in range(7):
        rig.kinesis.put_record(StreamName="s", Data=b"%d" % i, PartitionKey="k")
    seen, iterator = [], rig.iterator("s")
    while len(seen) < 7:
        answer = rig.kinesis.get_records(ShardIterator=iterator, Limit=3)
        assert len(answer["Records"]) <= 3
        seen += [r["Data"] for r in answer["Records"]]
        iterator = answer["NextShardIterator"]
    assert seen == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]
    assert rig.refused(rig.kinesis.get_records, ShardIterator=iterator, Limit=10001) == (
        "ValidationException",
        400,
    )


def test_an_answer_has_at_most_10000_records_and_ten_mib(rig):
    rig.server.create_stream("s", shards=2)
    small = [{"Data": b"", "PartitionKey": "k", "ExplicitHashKey": "0"}] * 500
    for _ in range(21):
        rig.kinesis.put_records(StreamName="s", Records=small)
    assert len(rig.kinesis.get_records(ShardIterator=rig.iterator("s"))["Records"]) == 10_000
    second = FIRST[:-1] + "1"
    large = {"Data": bytes(1024 * 1024 - 1), "PartitionKey": "k", "ExplicitHashKey": str(HASH_KEY_MAX)}
    for _ in range(2):
        rig.kinesis.put_records(StreamName="s", Records=[large] * 6)
    assert len(rig.kinesis.get_records(ShardIterator=rig.iterator("s", second))["Records"]) == 10


def test_millis_behind_latest_is_the_age_of_the_oldest_unread_record(rig):
    rig.server.create_stream("s")
    for _ in range(3):
        rig.kinesis.put_record(StreamName="s", Data=b"", PartitionKey="k")
        rig.clock.advance(10)
    iterator = rig.iterator("s")
    answers = []
    for _ in range(3):
        answer = rig.kinesis.get_records(ShardIterator=iterator, Limit=1)
        answers.append(answer["MillisBehindLatest"])
        iterator = answer["NextShardIterator"]
    assert answers == [20_000, 10_000, 0]


def test_an_unread_record_of_this_very_millisecond_is_not_the_tip(rig):
    rig.server.create_stream("s")
    for _ in range(2):
        rig.kinesis.put_record(StreamName="s", Data=b"", PartitionKey="k")
    assert rig.kinesis.get_records(ShardIterator=rig.iterator("s"), Limit=1)["MillisBehindLatest"] == 1


def test_arrival_is_the_server_s_time_to_the_millisecond_and_so_is_the_date_header(rig):
    rig.server.create_stream("s")
    rig.clock.advance(86_400 * 3 + 0.007)
    rig.kinesis.put_record(StreamName="s", Data=b"", PartitionKey="k")
    answer = rig.kinesis.get_records(ShardIterator=rig.iterator("s"))
    (record,) = answer["Records"]
    now = rig.moment(rig.clock.now_ms())
    assert record["ApproximateArrivalTimestamp"] == now
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    assert headers["date"] == now.strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert len(headers["x-amzn-requestid"]) == 36


def test_after_a_split_puts_go_to_the_children_with_larger_numbers(rig):
    rig.server.create_stream("s")
    _, before = rig.put_at("s", 5)
    rig.split("s", FIRST, 1000)
    assert rig.open_shards("s") == [FIRST[:-1] + "1", FIRST[:-1] + "2"]
    left, left_number = rig.put_at("s", 999)
    right, right_number = rig.put_at("s", 1000)
    assert (left, right) == (FIRST[:-1] + "1", FIRST[:-1] + "2")
    parent = rig.shards("s")[0]["SequenceNumberRange"]
    ending = parent["EndingSequenceNumber"]
    assert len(ending) == 56
    assert int(parent["StartingSequenceNumber"]) < before < int(ending) < min(left_number, right_number)


def test_a_closed_parent_is_read_to_its_end_and_names_its_children(rig):
    rig.server.create_stream("s")
    for i in range(4):
        rig.put_at("s", 5, b"%d" % i)
    iterator = rig.iterator("s")
    rig.split("s", FIRST, 1000)
    answer = rig.kinesis.get_records(ShardIterator=iterator, Limit=3)
    assert [r["Data"] for r in answer["Records"]] == [b"0", b"1", b"2"]
    assert "ChildShards" not in answer
    answer = rig.kinesis.get_records(ShardIterator=answer["NextShardIterator"], Limit=3)
    assert [r["Data"] for r in answer["Records"]] == [b"3"]
    assert "NextShardIterator" not in answer
    assert answer["MillisBehindLatest"] == 0
    assert answer["ChildShards"] == [
        {
            "ShardId": FIRST[:-1] + "1",
            "ParentShards": [FIRST],
            "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "999"},
        },
        {
            "ShardId": FIRST[:-1] + "2",
            "ParentShards": [FIRST],
            "HashKeyRange": {"StartingHashKey": "1000", "EndingHashKey": str(HASH_KEY_MAX)},
        },
    ]


@pytest.mark.parametrize("kind", ["LATEST", "TRIM_HORIZON"])
def test_an_iterator_on_an_empty_closed_shard_ends_at_once(rig, kind):
    rig.server.create_stream("s")
    rig.split("s", FIRST, 1000)
    answer = rig.kinesis.get_records(ShardIterator=rig.iterator("s", kind=kind))
    assert answer["Records"] == []
    assert "NextShardIterator" not in answer
    assert len(answer["ChildShards"]) == 2


def test_a_merge_has_two_parents_and_both_name_the_child(rig):
    rig.server.create_stream("s", shards=2)
    second, third = FIRST[:-1] + "1", FIRST[:-1] + "2"
    rig.kinesis.merge_shards(StreamName="s", ShardToMerge=FIRST, AdjacentShardToMerge=second)
    rig.settle()
    child = rig.shards("s")[2]
    assert (child["ShardId"], child["ParentShardId"], child["AdjacentParentShardId"]) == (
        third,
        FIRST,
        second,
    )
    whole = {"StartingHashKey": "0", "EndingHashKey": str(HASH_KEY_MAX)}
    assert child["HashKeyRange"] == whole
    for parent in (FIRST, second):
        answer = rig.kinesis.get_records(ShardIterator=rig.iterator("s", parent))
        assert answer["ChildShards"] == [
            {"ShardId": third, "ParentShards": [FIRST, second], "HashKeyRange": whole}
        ]
    assert rig.put_at("s", 0)[0] == rig.put_at("s", HASH_KEY_MAX)[0] == third


def test_what_cannot_be_split_or_merged_is_refused(rig):
    rig.server.create_stream("s", shards=3)
    invalid = ("InvalidArgumentException", 400)
    third = FIRST[:-1] + "2"
    merge, divide = rig.kinesis.merge_shards, rig.kinesis.split_shard
    assert rig.refused(merge, StreamName="s", ShardToMerge=FIRST, AdjacentShardToMerge=third) == invalid
    assert rig.refused(divide, StreamName="s", ShardToSplit=FIRST, NewStartingHashKey="0") == invalid
    assert (
        rig.refused(divide, StreamName="s", ShardToSplit=FIRST, NewStartingHashKey=str(HASH_KEY_MAX))
        == invalid
    )
    assert rig.refused(divide, StreamName="s", ShardToSplit=FIRST[:-1] + "9", NewStartingHashKey="9") == (
        "ResourceNotFoundException",
        400,
    )
    rig.split("s", FIRST, 1000)
    assert rig.refused(divide, StreamName="s", ShardToSplit=FIRST, NewStartingHashKey="900") == invalid


def test_update_shard_count_scales_evenly_with_lineage_and_loses_nothing(rig):
    rig.server.create_stream("s", shards=3)
    for i in range(60):
        rig.kinesis.put_record(StreamName="s", Data=b"%d" % i, PartitionKey=str(i))
    answer = rig.kinesis.update_shard_count(StreamName="s", TargetShardCount=2, ScalingType="UNIFORM_SCALING")
    assert (answer["CurrentShardCount"], answer["TargetShardCount"]) == (3, 2)
    rig.settle()
    shards = rig.shards("s")
    ranges = [s["HashKeyRange"] for s in shards if "EndingSequenceNumber" not in s["SequenceNumberRange"]]
    assert ranges == [
        {"StartingHashKey": "0", "EndingHashKey": str(2**127 - 1)},
        {"StartingHashKey": str(2**127), "EndingHashKey": str(HASH_KEY_MAX)},
    ]
    assert len({s["ShardId"] for s in shards}) == len(shards)
    known = {s["ShardId"] for s in shards}
    assert all(s["ParentShardId"] in known for s in shards[3:])
    assert sorted(int(d) for s in known for d in rig.read("s", s)) == list(range(60))


def test_a_stream_is_updating_while_it_is_resharded_and_refuses_another_change(rig):
    rig.server.create_stream("s")
    rig.kinesis.split_shard(StreamName="s", ShardToSplit=FIRST, NewStartingHashKey="1000")
    assert rig.summary("s")["StreamStatus"] == "UPDATING"
    change = {"StreamName": "s", "ShardToSplit": FIRST, "NewStartingHashKey": "2000"}
    assert rig.refused(rig.kinesis.split_shard, **change) == ("ResourceInUseException", 400)
    assert rig.put_at("s", 5)[0] == FIRST
    rig.settle()
    assert rig.summary("s")["StreamStatus"] == "ACTIVE"
    assert rig.put_at("s", 5)[0] == FIRST[:-1] + "1"


def test_every_shard_filter_selects_what_it_says(rig):
    rig.server.create_stream("s", shards=2)
    born = rig.clock.now_ms()
    rig.clock.advance(100)
    rig.split("s", FIRST, 1000)  # takes effect 0.2 s later; 2 and 3 replace 0
    changed = rig.clock.now_ms() - 800
    rig.clock.advance(100)

    def listed(kind: str, **more) -> list[int]:
        return rig.numbers(rig.shards("s", ShardFilter={"Type": kind, **more}))

    assert listed("AT_LATEST") == [1, 2, 3]
    assert listed("AT_TRIM_HORIZON") == [0, 1]
    assert listed("FROM_TRIM_HORIZON") == [0, 1, 2, 3]
    assert listed("AFTER_SHARD_ID", ShardId=FIRST[:-1] + "1") == [2, 3]
    assert listed("AT_TIMESTAMP", Timestamp=rig.moment(born - 10**7)) == [0, 1]
    assert listed("AT_TIMESTAMP", Timestamp=rig.moment(changed)) == [0, 1]
    assert listed("AT_TIMESTAMP", Timestamp=rig.moment(changed + 1)) == [1, 2, 3]
    assert listed("FROM_TIMESTAMP", Timestamp=rig.moment(changed)) == [0, 1, 2, 3]
    assert listed("FROM_TIMESTAMP", Timestamp=rig.moment(changed + 1)) == [1, 2, 3]


def test_a_filter_that_makes_no_sense_is_refused(rig):
    rig.server.create_stream("s")
    now = rig.moment(rig.clock.now_ms())
    later = rig.moment(rig.clock.now_ms() + 60_000)
    for bad in (
        {"Type": "AT_TIMESTAMP"},
        {"Type": "AFTER_SHARD_ID"},
        {"Type": "AT_LATEST", "Timestamp": now},
        {"Type": "AT_LATEST", "ShardId": FIRST},
        {"Type": "AT_TIMESTAMP", "Timestamp": later},
    ):
        assert rig.refused(rig.kinesis.list_shards, StreamName="s", ShardFilter=bad) == (
            "InvalidArgumentException",
            400,
        )
    assert rig.refused(rig.kinesis.list_shards, StreamName="s", ShardFilter={"Type": "ALL"}) == (
        "ValidationException",
        400,
    )


def test_listings_are_paged_by_a_token_that_stands_for_the_stream(rig):
    rig.server.create_stream("s", shards=5)
    answer = rig.kinesis.list_shards(StreamName="s", MaxResults=2)
    token, seen = answer["NextToken"], rig.numbers(answer["Shards"])
    assert rig.refused(rig.kinesis.list_shards, StreamName="s", NextToken=token) == (
        "InvalidArgumentException",
        400,
    )
    while True:
        answer = rig.kinesis.list_shards(NextToken=token, MaxResults=2)
        seen += rig.numbers(answer["Shards"])
        if "NextToken" not in answer:
            break
        token = answer["NextToken"]
    assert seen == [0, 1, 2, 3, 4]


def test_a_page_keeps_its_filter(rig):
    rig.server.create_stream("s", shards=2)
    rig.split("s", FIRST, 1000)
    first = rig.kinesis.list_shards(StreamName="s", MaxResults=1, ShardFilter={"Type": "AT_LATEST"})
    rest = rig.kinesis.list_shards(NextToken=first["NextToken"])
    assert rig.numbers(first["Shards"]) + rig.numbers(rest["Shards"]) == [1, 2, 3]


def test_page_tokens_expire_and_made_up_ones_are_refused(rig):
    rig.server.create_stream("s", shards=5)
    token = rig.kinesis.list_shards(StreamName="s", MaxResults=2)["NextToken"]
    assert rig.refused(rig.kinesis.list_shards, NextToken="bogus") == ("InvalidArgumentException", 400)
    rig.clock.advance(300)
    rig.kinesis.list_shards(NextToken=token)
    rig.clock.advance(0.001)
    assert rig.refused(rig.kinesis.list_shards, NextToken=token) == ("ExpiredNextTokenException", 400)


def test_the_boto3_paginator_fails_as_it_does_against_the_service(rig):
    rig.server.create_stream("s", shards=7)
    pages = rig.kinesis.get_paginator("list_shards").paginate(
        StreamName="s", PaginationConfig={"PageSize": 3}
    )
    with pytest.raises(ClientError, match="NextToken and StreamName cannot be provided together"):
        list(pages)


def test_describe_stream_is_paged_by_shard_id(rig):
    rig.server.create_stream("s", shards=3)
    page = rig.kinesis.describe_stream(StreamName="s", Limit=2)["StreamDescription"]
    assert (rig.numbers(page["Shards"]), page["HasMoreShards"]) == ([0, 1], True)
    last = page["Shards"][-1]["ShardId"]
    page = rig.kinesis.describe_stream(StreamName="s", ExclusiveStartShardId=last)["StreamDescription"]
    assert (rig.numbers(page["Shards"]), page["HasMoreShards"]) == ([2], False)
