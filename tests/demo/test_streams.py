"""The demonstration on the embedded Kinesis, without Spark: shards that change, averages that are followed."""

import json

import pytest

from penstock.core.aggregation import deaggregate
from penstock.errors import PenstockError
from penstock_demo.averages import AverageFollower
from penstock_demo.dataset import events_of, load_flights
from penstock_demo.publish import ProducerWriter, Publisher, Stop
from penstock_demo.resharding import merge_shards, open_shards, split_shard, wait_active
from penstock_demo.run import service_of
from waiting import wait_until


def test_a_shard_is_split_and_its_upper_half_merged_with_its_neighbour(local_kinesis):
    local_kinesis.create_stream("flights", shards=4)
    client = local_kinesis.client()
    assert split_shard(client, "flights", 1) == "shard 1 was split into 4 and 5"
    assert merge_shards(client, "flights", 2) == "shards 5 and 2 were merged into 6"
    ids = [shard["ShardId"][-1] for shard in open_shards(client, "flights")]
    assert ids == ["0", "4", "6", "3"]
    merged = open_shards(client, "flights")[2]
    assert {merged["ParentShardId"][-1], merged["AdjacentParentShardId"][-1]} == {"5", "2"}
    halves = [
        int(shard["HashKeyRange"]["EndingHashKey"]) - int(shard["HashKeyRange"]["StartingHashKey"])
        for shard in open_shards(client, "flights")[1:2]
    ]
    assert halves == [2**125 - 1]


@pytest.mark.local_kinesis(time_factor=0)
def test_a_stream_that_stays_in_change_is_an_error(local_kinesis):
    client = local_kinesis.client()
    client.create_stream(StreamName="slow", ShardCount=1)
    with pytest.raises(PenstockError, match=r"waited 0\.3 s for stream slow to be ACTIVE; it is CREATING"):
        wait_active(client, "slow", deadline_s=0.3)


def read_all(local_kinesis, stream):
    client = local_kinesis.client()
    found = []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        where = {"StreamName": stream, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = client.get_shard_iterator(**where)["ShardIterator"]
        while iterator:
            page = client.get_records(ShardIterator=iterator)
            for record in page["Records"]:
                inner = deaggregate(record["Data"])
                assert inner is not None or record["PartitionKey"]
                found += (
                    [(shard["ShardId"], record["PartitionKey"], record["Data"])]
                    if inner is None
                    else [(shard["ShardId"], each.partition_key, each.data) for each in inner]
                )
            iterator = page["NextShardIterator"] if page["MillisBehindLatest"] else None
    return found


@pytest.mark.local_kinesis(limits=False)
def test_flights_are_published_once_and_in_order_through_a_change_of_shards(local_kinesis):
    local_kinesis.create_stream("flights", shards=2)
    flights = load_flights(3000)
    client = local_kinesis.client()
    said = []
    publisher = Publisher(
        events_of(flights),
        lambda: ProducerWriter("flights", service_of(local_kinesis)),
        [
            Stop(1000, lambda: said.append(split_shard(client, "flights", 0))),
            Stop(2000, lambda: said.append(merge_shards(client, "flights", 1))),
        ],
    )
    publisher.start()
    wait_until(lambda: publisher.is_done, "everything to be published")
    assert said == ["shard 0 was split into 2 and 3", "shards 3 and 1 were merged into 4"]
    sent = publisher.acknowledged
    assert (sent.event_count, sent.possible_duplicate_count) == (3000, 0)
    assert sent.record_count < 100  # aggregated
    found = read_all(local_kinesis, "flights")
    ids = [json.loads(data)["id"] for _, _, data in found]
    assert sorted(ids) == list(range(3000))
    keys = dict(zip(flights["id"], flights["partition_key"], strict=True))
    assert all(keys[number] == key for number, (_, key, _) in zip(ids, found, strict=True))
    # Shards are read in the order of their numbers, and a child's number is above its parents'.
    by_key = {}
    for number in ids:
        assert by_key.get(keys[number], -1) < number
        by_key[keys[number]] = number


def put_average(client, origin, hour, flights, departed, delay_mean=None):
    document = {"origin": origin, "hour": hour, "flights": flights, "departed": departed}
    if delay_mean is not None:
        document["delay_mean"] = delay_mean
    client.put_record(
        StreamName="delays", PartitionKey=f"{origin} {hour}", Data=json.dumps(document).encode()
    )


def test_averages_are_followed_and_the_last_one_of_a_group_counts(local_kinesis):
    local_kinesis.create_stream("delays", shards=2)
    client = local_kinesis.client()
    follower = AverageFollower("delays", service_of(local_kinesis))
    follower.start()
    try:
        put_average(client, "EWR", "2013-01-01T10:00:00Z", 3, 2, 1.5)
        put_average(client, "JFK", "2013-01-01T10:00:00Z", 1, 0)
        wait_until(lambda: follower.flight_count == 4, "the first averages")
        put_average(client, "EWR", "2013-01-01T10:00:00Z", 5, 4, 2.25)
        wait_until(lambda: follower.flight_count == 6, "the one that replaces another")
    finally:
        follower.stop()
    assert follower.record_count == 3
    rows = follower.rows()
    assert list(rows.columns) == ["origin", "hour", "flights", "departed", "delay_mean"]
    last = rows.drop_duplicates(["origin", "hour"], keep="last").set_index("origin")
    assert list(last.loc["EWR"])[1:] == [5, 4, 2.25]
    assert last.loc["JFK", "departed"] == 0
    assert last["delay_mean"].isna().to_dict() == {"EWR": False, "JFK": True}
