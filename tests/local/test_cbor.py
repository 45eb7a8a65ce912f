"""The CBOR protocol, spoken by a test client over an encoder by others."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import urlsplit

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_local import cbor
from penstock_local.documents import Timestamp
from penstock_local.service_errors import RequestRefused

FIRST = "shardId-000000000000"


class CborClient:
    """Sends CBOR as the SDK for Java does: timestamps are milliseconds under tag 1."""

    def __init__(self, url: str) -> None:
        self.host = urlsplit(url).netloc

    def call(self, operation: str, document: dict[str, Any] | bytes) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        body = document if isinstance(document, bytes) else cbor2.dumps(document)
        headers = {
            "Content-Type": "application/x-amz-cbor-1.1",
            "X-Amz-Target": f"Kinesis_20131202.{operation}",
        }
        connection.request("POST", "/", body, headers)
        response = connection.getresponse()
        assert response.headers["Content-Type"] == "application/x-amz-cbor-1.1"
        answer = cbor.decode(response.read())
        connection.close()
        return response.status, answer


@pytest.fixture
def client(rig):
    return CborClient(rig.server.endpoint_url)


def test_records_go_in_and_out_as_byte_strings(rig, client):
    rig.server.create_stream("s")
    data = bytes(range(256)) * 200
    entries = [{"Data": data, "PartitionKey": "schlüssel"}, {"Data": b"", "PartitionKey": "k"}]
    status, put = client.call("PutRecords", {"StreamName": "s", "Records": entries})
    assert (status, put["FailedRecordCount"]) == (200, 0)
    status, one = client.call("PutRecord", {"StreamName": "s", "Data": b"one", "PartitionKey": "k"})
    iterator = rig.iterator("s")
    rig.clock.advance(3)
    status, answer = client.call("GetRecords", {"ShardIterator": iterator})
    assert status == 200
    assert [(r["Data"], r["PartitionKey"]) for r in answer["Records"]] == [
        (data, "schlüssel"),
        (b"", "k"),
        (b"one", "k"),
    ]
    assert [r["SequenceNumber"] for r in answer["Records"]] == [
        *(r["SequenceNumber"] for r in put["Records"]),
        one["SequenceNumber"],
    ]
    assert answer["MillisBehindLatest"] == 0
    json_records = rig.kinesis.get_records(ShardIterator=iterator)["Records"]
    assert [r["Data"] for r in json_records] == [data, b"", b"one"]


def test_timestamps_are_integer_milliseconds_under_tag_1_both_ways(rig, client):
    rig.server.create_stream("s")
    before = rig.clock.now_ms()
    client.call("PutRecord", {"StreamName": "s", "Data": b"old", "PartitionKey": "k"})
    rig.clock.advance(0.005)
    client.call("PutRecord", {"StreamName": "s", "Data": b"new", "PartitionKey": "k"})
    ask = {
        "StreamName": "s",
        "ShardId": FIRST,
        "ShardIteratorType": "AT_TIMESTAMP",
        "Timestamp": cbor2.CBORTag(1, before + 5),
    }
    _, taken = client.call("GetShardIterator", ask)
    _, answer = client.call("GetRecords", taken)
    (record,) = answer["Records"]
    assert record["Data"] == b"new"
    assert record["ApproximateArrivalTimestamp"].ms == before + 5
    _, described = client.call("DescribeStream", {"StreamName": "s"})
    assert described["StreamDescription"]["StreamCreationTimestamp"].ms == before


def test_children_and_the_missing_iterator_of_an_ended_shard(rig, client):
    rig.server.create_stream("s")
    rig.kinesis.split_shard(StreamName="s", ShardToSplit=FIRST, NewStartingHashKey="1000")
    rig.settle()
    _, answer = client.call("GetRecords", {"ShardIterator": rig.iterator("s")})
    assert answer["NextShardIterator"] is None
    assert [c["ParentShards"] for c in answer["ChildShards"]] == [[FIRST], [FIRST]]


def test_errors_are_cbor_too(rig, client):
    status, answer = client.call("DescribeStream", {"StreamName": "nowhere"})
    assert (status, answer["__type"]) == (400, "ResourceNotFoundException")


def test_partial_failures_are_reported_per_entry(rig, client):
    rig.server.create_stream("s")
    rig.faults.throttle("PutRecords")
    entries = [{"Data": b"x", "PartitionKey": "k"}]
    _, put = client.call("PutRecords", {"StreamName": "s", "Records": entries})
    assert put["FailedRecordCount"] == 1
    assert put["Records"][0]["ErrorCode"] == "ProvisionedThroughputExceededException"


@pytest.mark.parametrize(
    "document",
    [
        b"\xff",
        b"\xa1",
        b"\x01\x02",
        b"\x80",
        {"StreamName": "s", "Records": "x"},
        {"StreamName": "s", "Records": [{"Data": "text", "PartitionKey": "k"}]},
        {"StreamName": "s", "Records": [{"Data": b"", "PartitionKey": 1}]},
    ],
)
def test_what_is_no_request_is_a_serialization_error(rig, client, document):
    status, answer = client.call("PutRecords", document)
    assert (status, answer["__type"]) == (400, "SerializationException")


def test_indefinite_lengths_are_read():
    # {_ "a": [_ 1, 2], "b": (_ h'01', h'02'), "c": (_ "x", "y")}
    streamed = bytes.fromhex("bf6161 9f0102ff 6162 5f41014102ff 6163 7f61786179ff ff")
    assert cbor.decode(streamed) == {"a": [1, 2], "b": b"\x01\x02", "c": "xy"}


@pytest.mark.parametrize(
    "broken",
    ["", "5f01ff", "bfff00", "1c", "9f", "a1ff01", "f8", "81" * 40, "7f4100ff", "1f", "5bffffffffffffffff"],
)
def test_broken_cbor_is_refused(broken):
    with pytest.raises(RequestRefused, match="CBOR"):
        cbor.decode(bytes.fromhex(broken))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_our_cbor_and_that_of_others_agree(document):
    assert cbor2.loads(cbor.encode(document)) == document
    assert cbor.decode(cbor2.dumps(document)) == document


@given(st.integers(0, 2**40))
def test_timestamps_come_back(ms):
    assert cbor.decode(cbor.encode({"at": Timestamp(ms)}))["at"].ms == ms


def test_a_fractional_timestamp_is_seconds():
    assert cbor.decode(cbor2.dumps(cbor2.CBORTag(1, 1.5))).ms == 1500
