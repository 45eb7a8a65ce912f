"""Scripted faults, from Python and by HTTP, seen by an ordinary boto3 client."""

from __future__ import annotations

import json
import time
import urllib.request

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from local.error_codes import code
from penstock_local import Fault
from penstock_local.errors import OptionError
from waiting import wait_until

FIRST = "shardId-000000000000"
SECOND = "shardId-000000000001"
TOP = str(2**128 - 1)


def put(rig, data: bytes = b"x", key: str = "0"):
    return rig.kinesis.put_record(StreamName="s", Data=data, PartitionKey="k", ExplicitHashKey=key)


def both_shards(count: int = 2) -> list[dict[str, object]]:
    return [
        {"Data": b"x", "PartitionKey": "k", "ExplicitHashKey": key}
        for _ in range(count)
        for key in ("0", TOP)
    ]


def errors(answer) -> list[str | None]:
    return [record.get("ErrorCode") for record in answer["Records"]]


def test_the_next_calls_on_one_shard_are_throttled(rig):
    rig.server.create_stream("s", shards=2)
    rig.faults.throttle("PutRecords", count=2, shard=FIRST)
    throttled = "ProvisionedThroughputExceededException"
    for _ in range(2):
        answer = rig.kinesis.put_records(StreamName="s", Records=both_shards())
        assert errors(answer) == [throttled, None, throttled, None]
        assert answer["FailedRecordCount"] == 2
    assert errors(rig.kinesis.put_records(StreamName="s", Records=both_shards())) == [None] * 4
    assert rig.faults.active() == []


def test_calls_to_other_shards_do_not_use_a_fault_up(rig):
    rig.server.create_stream("s", shards=2)
    rig.faults.throttle("PutRecord", shard=SECOND)
    put(rig)
    (active,) = rig.faults.active()
    assert (active["hits"], active["shard"]) == (0, SECOND)
    with pytest.raises(ClientError, match="Rate exceeded for shard shardId-000000000001"):
        put(rig, key=TOP)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("get_records", "ProvisionedThroughputExceededException"),
        ("get_shard_iterator", "ProvisionedThroughputExceededException"),
        ("list_shards", "LimitExceededException"),
    ],
)
def test_a_throttle_has_the_code_of_its_operation(rig, operation, expected):
    rig.server.create_stream("s")
    arguments = {
        "get_records": {"ShardIterator": rig.iterator("s")},
        "get_shard_iterator": {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "LATEST"},
        "list_shards": {"StreamName": "s"},
    }[operation]
    rig.faults.throttle("*", count=1)
    assert code(getattr(rig.kinesis, operation), **arguments) == expected
    assert code(getattr(rig.kinesis, operation), **arguments) == "ok"


def test_half_of_the_entries_fail_and_only_the_others_are_stored(rig):
    rig.server.create_stream("s")
    rig.faults.partial(seed=3, code="InternalFailure")
    entries = [{"Data": b"%d" % i, "PartitionKey": "k"} for i in range(10)]
    answer = rig.kinesis.put_records(StreamName="s", Records=entries)
    assert answer["FailedRecordCount"] == 5
    assert sorted(errors(answer), key=str) == ["InternalFailure"] * 5 + [None] * 5
    accepted = [b"%d" % i for i, error in enumerate(errors(answer)) if error is None]
    assert rig.read("s") == accepted


def test_a_fault_of_all_operations_hits_those_that_its_kind_has_an_effect_on(rig):
    rig.server.create_stream("s")
    rig.faults.partial("*", fraction=1.0)
    put(rig, b"x")
    assert [fault["hits"] for fault in rig.faults.active()] == [0]
    answer = rig.kinesis.put_records(StreamName="s", Records=[{"Data": b"y", "PartitionKey": "k"}])
    assert (answer["FailedRecordCount"], rig.read("s"), rig.faults.active()) == (1, [b"x"], [])


def test_entries_may_fail_and_be_stored_all_the_same(rig):
    rig.server.create_stream("s")
    rig.faults.partial(fraction=1.0, applied=True)
    answer = rig.kinesis.put_records(StreamName="s", Records=[{"Data": b"x", "PartitionKey": "k"}] * 3)
    assert answer["FailedRecordCount"] == 3
    assert rig.read("s") == [b"x"] * 3


def test_a_dropped_call_is_applied_or_not_as_scripted(rig):
    rig.server.create_stream("s")
    rig.faults.drop_before("PutRecord")
    with pytest.raises(ConnectionClosedError):
        put(rig, b"never")
    rig.faults.drop_after("PutRecord")
    with pytest.raises(ConnectionClosedError):
        put(rig, b"applied")
    assert rig.read("s") == [b"applied"]


def test_a_client_that_retries_a_dropped_answer_stores_the_record_twice(rig):
    rig.server.create_stream("s")
    rig.faults.drop_after("PutRecord")
    client = rig.server.client("kinesis", config=Config(retries={"total_max_attempts": 2}))
    client.put_record(StreamName="s", Data=b"x", PartitionKey="k")
    assert rig.read("s") == [b"x", b"x"]


def test_errors_have_the_scripted_code_and_status(rig):
    rig.server.create_stream("s")
    rig.faults.error("GetRecords")
    rig.faults.error("PutRecord", code="KMSThrottlingException", status=400, message="slow down")
    with pytest.raises(ClientError, match="InternalFailure") as caught:
        rig.kinesis.get_records(ShardIterator=rig.iterator("s"))
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    with pytest.raises(ClientError, match=r"KMSThrottlingException.*slow down"):
        put(rig)
    assert rig.read("s") == []


def test_a_late_answer_is_applied_and_others_do_not_wait_for_it(rig):
    rig.server.create_stream("s")
    rig.faults.delay("PutRecord", 600.0)
    hasty = rig.server.client("kinesis", config=Config(retries={"total_max_attempts": 1}, read_timeout=0.2))
    began = time.monotonic()
    with pytest.raises(ReadTimeoutError):
        hasty.put_record(StreamName="s", Data=b"x", PartitionKey="k")
    wait_until(lambda: rig.read("s") == [b"x"], "the record of the client that has given up")
    assert time.monotonic() - began < 300


@pytest.mark.parametrize("kind", ["truncate", "garbage"])
def test_boto3_takes_a_spoilt_answer_for_an_empty_success(rig, kind):
    # a reader with boto3 must check for missing members: a spoilt GetRecords looks like a shard's end
    rig.server.create_stream("s")
    getattr(rig.faults, kind)("PutRecord")
    assert set(put(rig)) == {"ResponseMetadata"}
    iterator = rig.iterator("s")
    getattr(rig.faults, kind)("GetRecords")
    assert set(rig.kinesis.get_records(ShardIterator=iterator)) == {"ResponseMetadata"}
    assert rig.read("s") == [b"x"]


def test_all_iterators_expire_at_once(rig):
    rig.server.create_stream("s")
    old = rig.iterator("s")
    rig.faults.expire_iterators()
    assert code(rig.kinesis.get_records, ShardIterator=old) == "ExpiredIteratorException"
    assert code(rig.kinesis.get_records, ShardIterator=rig.iterator("s")) == "ok"


def test_all_page_tokens_expire_at_once(rig):
    rig.server.create_stream("s", shards=3)
    token = rig.kinesis.list_shards(StreamName="s", MaxResults=1)["NextToken"]
    rig.faults.expire_next_tokens()
    assert code(rig.kinesis.list_shards, NextToken=token) == "ExpiredNextTokenException"


def ids(rig) -> list[int]:
    return [int(s["ShardId"][-2:]) for s in rig.shards("s")]


def test_a_stale_listing_shows_the_shards_as_before_the_last_change(rig):
    rig.server.create_stream("s")
    rig.kinesis.split_shard(StreamName="s", ShardToSplit=FIRST, NewStartingHashKey="1000")
    rig.settle()
    rig.faults.stale_listing()
    (only,) = rig.shards("s")
    assert only["ShardId"] == FIRST
    assert "EndingSequenceNumber" not in only["SequenceNumberRange"]
    assert ids(rig) == [0, 1, 2]


def test_a_listing_may_be_out_of_order_or_incomplete(rig):
    rig.server.create_stream("s", shards=6)
    rig.faults.shuffle_listing(seed=1)
    shuffled = ids(rig)
    assert shuffled != sorted(shuffled)
    assert sorted(shuffled) == [0, 1, 2, 3, 4, 5]
    rig.faults.omit_shard(SECOND)
    assert ids(rig) == [0, 2, 3, 4, 5]
    assert ids(rig) == [0, 1, 2, 3, 4, 5]


def test_an_empty_read_is_behind_the_tip_and_stays_where_it_is(rig):
    rig.server.create_stream("s")
    put(rig)
    rig.clock.advance(7)
    rig.faults.empty_reads()
    answer = rig.kinesis.get_records(ShardIterator=rig.iterator("s"))
    assert (answer["Records"], answer["MillisBehindLatest"]) == ([], 7000)
    answer = rig.kinesis.get_records(ShardIterator=answer["NextShardIterator"])
    assert ([r["Data"] for r in answer["Records"]], answer["MillisBehindLatest"]) == ([b"x"], 0)


def test_random_faults_repeat_with_their_seed(rig):
    rig.server.create_stream("s")

    def outcomes() -> list[str]:
        number = rig.faults.throttle("ListShards", count=None, rate=0.25, seed=7)
        found = [code(rig.kinesis.list_shards, StreamName="s") for _ in range(40)]
        rig.faults.clear(number)
        return found

    first = outcomes()
    assert 3 <= first.count("LimitExceededException") <= 20
    assert outcomes() == first


def test_a_fault_may_let_some_calls_pass_first(rig):
    rig.server.create_stream("s")
    rig.faults.error("ListShards", skip=2)
    found = [code(rig.kinesis.list_shards, StreamName="s") for _ in range(4)]
    assert found == ["ok", "ok", "InternalFailure", "ok"]


def test_a_fault_may_be_about_one_stream(rig):
    rig.server.create_stream("s")
    rig.server.create_stream("t")
    rig.faults.error("ListShards", stream="t", count=None)
    assert code(rig.kinesis.list_shards, StreamName="s") == "ok"
    assert code(rig.kinesis.list_shards, StreamName="t") == "InternalFailure"
    rig.faults.clear()
    assert code(rig.kinesis.list_shards, StreamName="t") == "ok"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "explode", "operation": "PutRecord"}, "unknown fault kind 'explode'; known are throttle"),
        ({"kind": "delay", "operation": ""}, "needs an operation"),
        ({"kind": "error", "operation": "*", "count": 0}, "count of a fault must be at least 1, not 0"),
        (
            {"kind": "error", "operation": "*", "count": 1.5},
            "count of a fault must be a whole number of at l",
        ),
        ({"kind": "error", "operation": "*", "skip": "1"}, "skip of a fault must be a whole number of at le"),
        ({"kind": "error", "operation": "*", "status": "400"}, "status of a fault must be a whole number of"),
        ({"kind": "error", "operation": "*", "rate": None}, "rate of a fault must be a number of 0 to 1, no"),
        ({"kind": "delay", "operation": "*", "delay_s": "5"}, "delay_s of a fault must be a number of at le"),
        ({"kind": "error", "operation": "*", "stream": 5}, "stream of a fault must be a text, not 5"),
        ({"kind": ["error"], "operation": "*"}, r"kind of a fault must be a text, not \['error'\]"),
        ({"kind": "error", "operation": "*", "seed": "x"}, "seed and applied of a fault must be a whole num"),
        ({"kind": "error", "operation": "*", "applied": 1}, "and true or false, not 0 and 1"),
        ({"kind": "error", "operation": "*", "rate": 0}, "rate and fraction must be over 0"),
        ({"kind": "error", "operation": "*", "status": 200}, "status of a fault must be 400 to 599, not 200"),
        ({"kind": "omit", "operation": "ListShards"}, "needs the shard to leave out"),
        ({"kind": "delay", "operation": "*", "delay_s": -1}, "at least 0"),
        ({"kind": "partial", "operation": "PutRecord"}, "partial faults are for PutRecords and Ack"),
        ({"kind": "stale", "operation": "DescribeStreamSummary"}, "stale faults are for ListShards and Desc"),
        ({"kind": "shuffle", "operation": "DescribeStream"}, "shuffle faults are for ListShards, not for"),
        ({"kind": "empty", "operation": "SubscribeToShard"}, "empty faults are for GetRecords and Receive"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        Fault(**options)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ("PutRecrods", "which is not an operation of kinesis, dynamodb, .*; did you mean PutRecords[?]"),
        ("dynamodb.UpdateItm", "which is not an operation of dynamodb; did you mean dynamodb.UpdateItem[?]"),
        ("kinesis.UpdateItem", "which is not an operation of kinesis"),
        ("dynamo.UpdateItem", "no service dynamo; known are kinesis, dynamodb, "),
    ],
)
def test_a_fault_of_a_misspelt_operation_is_refused_since_it_would_never_hit(rig, operation, message):
    with pytest.raises(OptionError, match=message):
        rig.faults.throttle(operation)
    assert rig.faults.active() == []


def test_a_fault_of_another_type_is_refused(rig):
    with pytest.raises(OptionError, match="'throttle' is not a fault: give Fault"):
        rig.faults.add("throttle")


def ask(rig, method: str, path: str, document: object = None) -> tuple[int, object]:
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(f"{rig.server.endpoint_url}/_penstock/{path}", body, method=method)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_faults_and_clock_are_scripted_by_http_too(rig):
    rig.server.create_stream("s")
    status, answer = ask(rig, "POST", "faults", {"kind": "error", "operation": "ListShards"})
    assert (status, answer) == (200, {"number": 1})
    assert code(rig.kinesis.list_shards, StreamName="s") == "InternalFailure"
    before = ask(rig, "GET", "clock")[1]["now_ms"]
    assert ask(rig, "POST", "clock", {"advance_s": 1.5})[1] == {"now_ms": before + 1500, "time_factor": 0}
    assert ask(rig, "POST", "faults", {"kind": "error"}) == (400, {"error": "a fault needs operation"})
    assert ask(rig, "POST", "faults", {"kind": "error", "operation": 5})[0] == 400
    wrong = {"error": "advance_s must be a number, not 'x'"}
    assert ask(rig, "POST", "clock", {"advance_s": "x"}) == (400, wrong)
    wrong = {"error": "number must be a number, not 'x'"}
    assert ask(rig, "DELETE", "faults?number=x") == (400, wrong)
    status, answer = ask(rig, "POST", "faults", {"kind": "error", "operation": "x", "colour": "red"})
    assert status == 400
    assert answer["error"].startswith("unknown fields of a fault: ['colour']; known are")
    assert ask(rig, "POST", "clock", {"advance_s": -1})[0] == 400
    assert ask(rig, "POST", "clock", {})[0] == 400
    assert ask(rig, "POST", "clock", [1])[0] == 400
    assert ask(rig, "POST", "expire", {"what": "everything"})[0] == 400
    assert ask(rig, "POST", "streams", {"name": "s"})[0] == 400
    assert ask(rig, "POST", "streams", {"name": "bad name"})[0] == 400
    assert ask(rig, "POST", "streams", {"name": 5})[0] == 400
    assert ask(rig, "POST", "streams", {"name": "wide", "shards": "many"})[0] == 400
    assert "shard limit" in ask(rig, "POST", "streams", {"name": "wide", "shards": 300_000})[1]["error"]
    assert ask(rig, "POST", "clock", {"advance_s": 1e300})[0] == 400
    assert ask(rig, "GET", "state")[1]["streams"].keys() == {"s"}
    assert ask(rig, "GET", "nowhere")[0] == 404


def test_the_clock_does_not_run_backwards(rig):
    with pytest.raises(OptionError, match="forwards only"):
        rig.clock.advance(-1)


def test_calls_are_counted_per_operation_shard_and_error(rig):
    rig.server.create_stream("s", shards=2)
    put(rig)
    put(rig, key=TOP)
    put(rig, key=TOP)
    rig.faults.throttle("PutRecord")
    code(rig.kinesis.put_record, StreamName="s", Data=b"", PartitionKey="k")
    rig.faults.drop_after("ListShards")
    with pytest.raises(ConnectionClosedError):
        rig.shards("s")
    calls = rig.server.calls()
    assert calls.count("PutRecord") == calls.count("kinesis.PutRecord") == 4
    assert calls.count("PutRecord", shard=SECOND) >= 2
    assert calls.count("PutRecord", stream="s") == 4
    assert calls.count("PutRecord", stream="t") == 0
    assert (
        calls.failed("PutRecord") == calls.failed("PutRecord", "ProvisionedThroughputExceededException") == 1
    )
    assert calls.failed("ListShards", "drop_after") == 1
    assert [c["operation"] for c in calls.recent][-1] == "kinesis.ListShards"
    rig.server.reset_calls()
    assert rig.server.calls().count("PutRecord") == 0
