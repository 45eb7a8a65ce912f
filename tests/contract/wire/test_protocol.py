"""The wire itself: headers, the shape of errors, and CBOR."""

import http.client
import json
from urllib.parse import urlsplit

import cbor2
import pytest

SCOPE = "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/kinesis/aws4_request, SignedHeaders=host, Signature=0"


@pytest.fixture
def ask(server):
    """Send one request by hand; gives status, headers (in lower case) and body."""

    def send(operation, body, kind="application/x-amz-json-1.1"):
        connection = http.client.HTTPConnection(urlsplit(server.endpoint_url).netloc, timeout=30)
        headers = {
            "Content-Type": kind,
            "X-Amz-Target": f"Kinesis_20131202.{operation}",
            "Authorization": SCOPE,
            "X-Amz-Date": "20260101T000000Z",
        }
        try:
            connection.request("POST", "/", body, headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    return send


def test_an_answer_carries_its_request_id_and_the_time(ask):
    status, headers, _ = ask("ListStreams", b"{}")
    assert status == 200
    assert headers["content-type"] == "application/x-amz-json-1.1"
    assert headers["x-amzn-requestid"]
    assert headers["date"].endswith("GMT")


def test_an_error_names_its_type_and_says_a_message(ask):
    body = json.dumps({"StreamName": "wire-no-such-stream"}).encode()
    status, _, answer = ask("DescribeStreamSummary", body)
    document = json.loads(answer)
    assert status == 400
    assert document["__type"].rpartition("#")[2] == "ResourceNotFoundException"
    assert "wire-no-such-stream" in document["message"]


def test_an_operation_that_does_not_exist_is_named(ask):
    status, _, answer = ask("MakeCoffee", b"{}")
    assert status == 400
    assert json.loads(answer)["__type"].rpartition("#")[2] == "UnknownOperationException"


def test_a_body_that_is_no_document_is_refused(ask):
    status, _, answer = ask("ListStreams", b"{")
    assert status == 400
    assert json.loads(answer)["__type"].rpartition("#")[2] == "SerializationException"


def test_a_stream_that_is_no_text_is_refused(ask):
    status, _, answer = ask("DescribeStreamSummary", b'{"StreamName": 5}')
    assert status == 400
    assert json.loads(answer)["__type"].rpartition("#")[2] in {
        "SerializationException",
        "ValidationException",
    }


def test_cbor_goes_in_and_out_as_bytes_with_times_in_milliseconds(server, ask):
    stream = server.create()
    kind = "application/x-amz-cbor-1.1"

    def call(operation, **document):
        status, headers, answer = ask(operation, cbor2.dumps(document), kind)
        assert (status, headers["content-type"]) == (200, kind)
        # Times are integers of milliseconds under tag 1, where the standard has seconds: the tag is taken off.
        return cbor2.loads(answer.replace(b"Timestamp\xc1", b"Timestamp")) if answer else {}

    put = call("PutRecord", StreamName=stream, Data=b"\x00\xff" * 20_000, PartitionKey="k")
    assert put["ShardId"] == "shardId-000000000000"
    iterator = call(
        "GetShardIterator", StreamName=stream, ShardId=put["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    (record,) = call("GetRecords", ShardIterator=iterator)["Records"]
    assert record["Data"] == b"\x00\xff" * 20_000
    assert record["SequenceNumber"] == put["SequenceNumber"]


def test_cbor_times_are_integer_milliseconds(server, ask):
    stream = server.create()
    server.put(stream, b"x")
    body = cbor2.dumps({"ShardIterator": server.iterator(stream)})
    _, _, answer = ask("GetRecords", body, "application/x-amz-cbor-1.1")
    name = b"ApproximateArrivalTimestamp"
    after = answer[answer.index(name) + len(name) :]
    assert after[:2] == b"\xc1\x1b"  # tag 1, then an integer of eight bytes
    assert int.from_bytes(after[2:10], "big") > 1_700_000_000_000
