"""Random histories of puts, splits, merges and rescales: nothing is lost, and lineage keeps each key's order."""

from __future__ import annotations

import base64
import json
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from fan_out import messages_of
from penstock_local import sequence, subscriptions
from penstock_local.faults import FaultBook
from penstock_local.operations import dispatch
from penstock_local.operations.call import Service, ServiceCall
from penstock_local.queues.long_polls import LongPolls
from penstock_local.quotas import Quotas
from penstock_local.service_errors import RequestRefused
from penstock_local.store import Store, StoreOptions
from penstock_local.stream_metrics import StreamMetrics
from penstock_local.subscriptions import Subscriptions
from penstock_local.tokens import Tokens
from penstock_local.virtual_clock import VirtualClock
from penstock_local.wire import JSON

SPACE = 2**128
KEYS = [0, 1, SPACE // 3, SPACE // 2 - 1, SPACE // 2, SPACE - 1]


class Direct:
    """The operations without a server: a call is a function call, time is a number."""

    def __init__(self, settle_ms: int = 0) -> None:
        store = Store(StoreOptions(settle_ms=settle_ms))
        metrics = StreamMetrics()
        self.service = Service(
            store,
            Quotas(enforced=False),
            Tokens(b"key"),
            FaultBook(),
            Subscriptions(store, VirtualClock(0), metrics, limits=False),
            metrics,
            LongPolls(store.queues, VirtualClock(0)),
        )
        self.now_ms = 1_700_000_000_000

    def call(self, operation: str, **request: Any) -> dict[str, Any]:
        call = ServiceCall(self.service, operation, JSON, self.now_ms)
        return json.loads(dispatch.answer(call, json.dumps(request).encode()))

    def read(self, shard: str) -> list[dict[str, Any]]:
        answer = self.call(
            "GetShardIterator", StreamName="s", ShardId=shard, ShardIteratorType="TRIM_HORIZON"
        )
        records: list[dict[str, Any]] = []
        iterator = answer["ShardIterator"]
        while iterator is not None:
            answer = self.call("GetRecords", ShardIterator=iterator, Limit=3)
            records += answer["Records"]
            iterator = answer["NextShardIterator"] if answer["Records"] else None
        return records

    def pushed(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """The events that a subscription sends at this moment, of two records each."""
        call = ServiceCall(self.service, "SubscribeToShard", JSON, self.now_ms)
        dispatch.answer(call, json.dumps(request).encode())
        stream = self.service.store.streams["us-east-1", "s"]
        shard = stream.shards[request["ShardId"]]
        subscription = self.service.subscriptions.pair(stream, stream.consumers["c"], shard).open_subscription
        found = []
        with mock.patch.object(subscriptions, "EVENT_RECORDS_MAX", 2):
            while (step := subscription.next_step(self.now_ms)).frame:
                (message,) = messages_of(step.frame)
                found.append(json.loads(message.payload))
                if step.is_last:
                    break
        return found

    def shards(self, **request: Any) -> list[dict[str, Any]]:
        return list(self.call("ListShards", StreamName="s", **request)["Shards"])


put = st.tuples(st.just("put"), st.sampled_from(KEYS))
split = st.tuples(st.just("split"), st.integers(0, 99), st.floats(0.05, 0.95))
merge = st.tuples(st.just("merge"), st.integers(0, 99))
scale = st.tuples(st.just("scale"), st.integers(1, 5))
wait = st.tuples(st.just("wait"), st.integers(1, 3000))
histories = st.lists(st.one_of(put, put, put, split, merge, scale, wait), max_size=40)


def play(direct: Direct, history: list[tuple[Any, ...]]) -> dict[int, list[bytes]]:
    """Run a history; return the put records, per hash key in order."""
    put_per_key: dict[int, list[bytes]] = {}
    for number, step in enumerate(history):
        data = b"%d" % number
        refusal = carry_out(direct, data, step)
        # a change may be under way, or the shard be too narrow
        assert refusal in (None, "ResourceInUseException", "InvalidArgumentException")
        if step[0] == "put":
            assert refusal is None
            put_per_key.setdefault(step[1], []).append(data)
    direct.now_ms += 1000
    direct.call("DescribeStreamSummary", StreamName="s")
    return put_per_key


def carry_out(direct: Direct, data: bytes, step: tuple[Any, ...]) -> str | None:
    """Carry one step out; returns the code with which it was refused."""
    what, *args = step
    try:
        if what == "put":
            where = {"PartitionKey": "k", "ExplicitHashKey": str(args[0])}
            direct.call("PutRecord", StreamName="s", Data=base64.b64encode(data).decode(), **where)
        elif what == "wait":
            direct.now_ms += args[0]
        elif what == "scale":
            how = {"TargetShardCount": args[0], "ScalingType": "UNIFORM_SCALING"}
            direct.call("UpdateShardCount", StreamName="s", **how)
        else:
            reshard(direct, what, args)
    except RequestRefused as refusal:
        return refusal.code
    return None


def reshard(direct: Direct, what: str, args: list[Any]) -> None:
    shards = sorted(
        direct.shards(ShardFilter={"Type": "AT_LATEST"}),
        key=lambda s: int(s["HashKeyRange"]["StartingHashKey"]),
    )
    at = args[0] % len(shards)
    if what == "split":
        bounds = [int(v) for v in shards[at]["HashKeyRange"].values()]
        key = min(bounds) + int((max(bounds) - min(bounds)) * args[1])
        direct.call(
            "SplitShard", StreamName="s", ShardToSplit=shards[at]["ShardId"], NewStartingHashKey=str(key)
        )
    elif at + 1 < len(shards):
        pair = {"ShardToMerge": shards[at]["ShardId"], "AdjacentShardToMerge": shards[at + 1]["ShardId"]}
        direct.call("MergeShards", StreamName="s", **pair)


def ranges(shards: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted(
        (int(s["HashKeyRange"]["StartingHashKey"]), int(s["HashKeyRange"]["EndingHashKey"])) for s in shards
    )


def covers_everything(shards: list[dict[str, Any]]) -> bool:
    found = ranges(shards)
    ends = [end + 1 for _, end in found]
    return [start for start, _ in found] == [0, *ends[:-1]] and ends[-1] == SPACE


def in_lineage_order(shards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parents before children, and nothing more: the order in which a consumer may read."""
    known = {s["ShardId"] for s in shards}
    done: set[str] = set()
    order: list[dict[str, Any]] = []
    while len(order) < len(shards):
        ready = [
            s
            for s in shards
            if s["ShardId"] not in done
            and all(
                s.get(p) in done | {None} or s[p] not in known
                for p in ("ParentShardId", "AdjacentParentShardId")
            )
        ]
        assert ready, "the lineage has a circle"
        order += reversed(ready)
        done |= {s["ShardId"] for s in ready}
    return order


@settings(deadline=None, max_examples=60)
@given(histories, st.integers(1, 4), st.sampled_from([0, 200]))
def test_every_record_is_read_once_and_each_key_in_order_along_the_lineage(history, shard_count, settle_ms):
    direct = Direct(settle_ms)
    direct.call("CreateStream", StreamName="s", ShardCount=shard_count)
    direct.now_ms += settle_ms
    put_per_key = play(direct, history)
    expected = {str(key): data for key, data in put_per_key.items()}
    read: dict[str, list[bytes]] = {}
    numbers: dict[str, list[int]] = {}
    owner = {data: str(key) for key, all_data in put_per_key.items() for data in all_data}
    for shard in in_lineage_order(direct.shards()):
        for record in direct.read(shard["ShardId"]):
            data = base64.b64decode(record["Data"])
            read.setdefault(owner[data], []).append(data)
            numbers.setdefault(owner[data], []).append(int(record["SequenceNumber"]))
            start, end = ranges([shard])[0]
            assert start <= int(owner[data]) <= end
    assert read == expected
    assert all(found == sorted(found) for found in numbers.values())
    everything = [n for found in numbers.values() for n in found]
    assert len(everything) == len(set(everything))


@settings(deadline=None, max_examples=60)
@given(histories, st.integers(1, 3), st.data())
def test_a_subscription_that_breaks_off_anywhere_goes_on_behind_its_last_event(history, shard_count, data):
    direct = Direct()
    direct.call("CreateStream", StreamName="s", ShardCount=shard_count)
    arn = direct.call("DescribeStreamSummary", StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
    made = direct.call("RegisterStreamConsumer", StreamARN=arn, ConsumerName="c")["Consumer"]["ConsumerARN"]
    play(direct, history)
    for shard in direct.shards():
        position: dict[str, str] = {"Type": "TRIM_HORIZON"}
        pushed: list[dict[str, Any]] = []
        children = None
        while children is None:
            ask = {"ConsumerARN": made, "ShardId": shard["ShardId"], "StartingPosition": position}
            for event in direct.pushed(ask)[: data.draw(st.integers(1, 3))]:
                pushed += event["Records"]
                children = event.get("ChildShards")
                if "ContinuationSequenceNumber" in event:
                    number = event["ContinuationSequenceNumber"]
                    position = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": number}
            is_open = "EndingSequenceNumber" not in shard["SequenceNumberRange"]
            if is_open and not event["MillisBehindLatest"]:
                children = children or []
        assert pushed == direct.read(shard["ShardId"])
        assert (not children) == is_open


@settings(deadline=None, max_examples=60)
@given(histories, st.integers(1, 4), st.data())
def test_the_shards_of_any_moment_cover_the_hash_space(history, shard_count, data):
    direct = Direct()
    direct.call("CreateStream", StreamName="s", ShardCount=shard_count)
    born = direct.now_ms
    play(direct, history)
    assert covers_everything(direct.shards(ShardFilter={"Type": "AT_LATEST"}))
    assert covers_everything(direct.shards(ShardFilter={"Type": "AT_TRIM_HORIZON"}))
    stream = direct.service.store.streams["us-east-1", "s"]
    moments = {born, *(at for s in stream.shards.values() for at in (s.opened_ms, s.closed_ms) if at)}
    near = st.builds(int.__add__, st.sampled_from(sorted(moments)), st.integers(-2, 2))
    at_ms = min(data.draw(near | st.integers(born - 5000, direct.now_ms)), direct.now_ms)
    at = direct.shards(ShardFilter={"Type": "AT_TIMESTAMP", "Timestamp": at_ms / 1000})
    start_and_end = {end for pair in ranges(at) for end in pair}
    assert {0, SPACE - 1} <= start_and_end
    # shards that a rescale makes and closes at once live for a millisecond, in which they overlap nothing else
    assert covers_everything(at)


@settings(deadline=None, max_examples=60)
@given(histories, st.integers(1, 3))
def test_children_and_parents_name_each_other(history, shard_count):
    direct = Direct()
    direct.call("CreateStream", StreamName="s", ShardCount=shard_count)
    play(direct, history)
    shards = direct.shards()
    parents = {
        s["ShardId"]: [s[p] for p in ("ParentShardId", "AdjacentParentShardId") if p in s] for s in shards
    }
    for shard in shards:
        end = shard["SequenceNumberRange"].get("EndingSequenceNumber")
        ask = {"StreamName": "s", "ShardId": shard["ShardId"], "ShardIteratorType": "LATEST"}
        answer = direct.call(
            "GetRecords", ShardIterator=direct.call("GetShardIterator", **ask)["ShardIterator"]
        )
        children = {c["ShardId"]: c["ParentShards"] for c in answer.get("ChildShards", [])}
        assert (end is None) == (not children) == (answer["NextShardIterator"] is not None)
        assert children == {s: p for s, p in parents.items() if shard["ShardId"] in p}
        for child in children:
            first = next(s for s in shards if s["ShardId"] == child)["SequenceNumberRange"]
            assert int(end) < int(first["StartingSequenceNumber"])


@given(
    st.integers(0, 2**36 - 1),
    st.integers(0, sequence.TAG_MAX),
    st.integers(0, 2**32 - 1),
    st.integers(0, sequence.ORDINAL_END),
    st.integers(0, 2**36 - 1),
)
def test_a_sequence_number_gives_its_parts_back_and_has_56_digits(created_s, tag, index, ordinal, arrival_s):
    number = sequence.encode(created_s, tag, index, ordinal, arrival_s)
    assert sequence.decode(number) == (created_s, tag, index, ordinal, arrival_s)
    assert len(str(number)) == 56


@given(st.integers(0, 2**190))
def test_what_is_no_sequence_number_is_not_read_as_one(number):
    parts = sequence.decode(number)
    assert parts is None or sequence.encode(*parts) == number


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2000)), min_size=1, max_size=40),
    st.integers(0, 6000),
)
def test_at_timestamp_begins_with_the_first_record_at_or_after_it(steps, offset):
    direct = Direct()
    direct.call("CreateStream", StreamName="s", ShardCount=1)
    born = direct.now_ms
    arrivals = []
    for _, pause in steps:
        direct.now_ms += pause
        direct.call("PutRecord", StreamName="s", PartitionKey="k", Data="")
        arrivals.append(direct.now_ms)
    direct.now_ms += 6000
    ask = {"StreamName": "s", "ShardId": "shardId-000000000000", "ShardIteratorType": "AT_TIMESTAMP"}
    iterator = direct.call("GetShardIterator", Timestamp=(born + offset) / 1000, **ask)["ShardIterator"]
    read = direct.call("GetRecords", ShardIterator=iterator)["Records"]
    assert [round(r["ApproximateArrivalTimestamp"] * 1000) for r in read] == [
        at for at in arrivals if at >= born + offset
    ]
