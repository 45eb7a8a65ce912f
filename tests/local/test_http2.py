"""HTTP/2: requests beside each other, windows both ways, limits, faults, and clients that break the protocol."""

from __future__ import annotations

import base64
import socket
from urllib.parse import urlsplit

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from http2_client import Http2Client
from penstock_local import LocalKinesis, cbor
from penstock_local import http as server_http
from penstock_local import http2 as server_http2
from penstock_local.goaway_filter import GoawayFilter

MIB = 1024 * 1024
GOAWAY = b"\x00\x00\x08\x07\x00" + bytes(12)


@pytest.fixture
def client(rig):
    with Http2Client(rig.server.endpoint_url) as client:
        yield client


def put(client: Http2Client, *sizes: int) -> None:
    records = [{"Data": base64.b64encode(bytes(n)).decode(), "PartitionKey": "k"} for n in sizes]
    answer = client.call("PutRecords", {"StreamName": "s", "Records": records})
    assert (answer.status, answer.document()["FailedRecordCount"]) == (200, 0)


def test_records_are_put_and_read(rig, client):
    rig.server.create_stream("s")
    put(client, 3, 4)
    answer = client.call("GetRecords", {"ShardIterator": rig.iterator("s")})
    assert [len(base64.b64decode(r["Data"])) for r in answer.document()["Records"]] == [3, 4]
    assert answer.headers["content-type"] == "application/x-amz-json-1.1"
    assert int(answer.headers["content-length"]) == len(answer.body)


def test_documents_may_be_cbor(client):
    answer = client.call("ListStreams", body=cbor.encode({"Limit": 5}), kind="application/x-amz-cbor-1.1")
    assert cbor.decode(answer.body) == {"StreamNames": [], "HasMoreStreams": False, "StreamSummaries": []}


def test_other_services_and_the_control_paths_are_served(rig, client):
    answer = client.call("DynamoDB_20120810.ListTables", kind="application/x-amz-json-1.0")
    assert answer.document() == {"TableNames": []}
    number = client.begin(method="GET", path="/_penstock/clock")
    client.send_data(number, b"")
    assert client.wait(number).document()["now_ms"] == rig.clock.now_ms()


def test_an_error_is_answered_with_its_class(client):
    answer = client.call("ListShards", {"StreamName": "none"})
    assert (answer.status, answer.document()["__type"]) == (400, "ResourceNotFoundException")


def test_a_conversation_may_come_byte_by_byte(rig):
    with Http2Client(rig.server.endpoint_url, slowly=True) as client:
        assert client.call("ListStreams").status == 200


def test_many_requests_of_a_connection_are_answered_beside_each_other(rig, client):
    rig.faults.delay("DescribeLimits", 60)
    late = client.send("DescribeLimits")
    numbers = [client.send("ListStreams") for _ in range(300)]
    assert [client.wait(number).status for number in numbers] == [200] * 300
    assert not client.answers[late].is_over


def test_both_versions_are_served_at_once(rig, client):
    put_first = rig.kinesis.create_stream(StreamName="s", ShardCount=1)
    rig.settle()
    assert put_first["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert client.call("ListStreams").document()["StreamNames"] == ["s"]


@pytest.mark.parametrize("first", [b"PUT / HTTP/1.1\r\n", b"PRI / HTTP/1.1\r\n"])
def test_a_request_that_begins_like_the_preface_is_one_of_the_older_version(rig, first):
    parts = urlsplit(rig.server.endpoint_url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        for byte in first + b"Host: localhost\r\nConnection: close\r\n\r\n":
            connection.sendall(bytes((byte,)))
        with connection.makefile("rb") as file:
            assert file.read().startswith(b"HTTP/1.1 4")


# --- windows ---


def test_a_request_larger_than_the_windows_is_read(rig, client):
    rig.server.create_stream("s")
    put(client, *[MIB - 1] * 6)
    put(client, *[MIB - 1] * 6)
    assert len(rig.read("s")) + len(rig.read("s")) > 12


def test_an_answer_waits_for_the_window_of_its_stream_and_the_others_pass(rig):
    rig.server.create_stream("s")
    rig.kinesis.put_record(StreamName="s", Data=bytes(200_000), PartitionKey="k")
    read = {"ShardIterator": rig.iterator("s")}
    with Http2Client(rig.server.endpoint_url, window_bytes=10_000, gives_back=False) as client:
        number = client.send("GetRecords", read)
        client.receive_until(lambda: len(client.answers[number].body) == 10_000)
        assert client.call("ListStreams").status == 200
        answer = client.answers[number]
        while not answer.is_over:
            assert len(answer.body) % 10_000 == 0
            before = len(answer.body)
            client.give_back(number)
            client.receive_until(lambda: answer.is_over or len(answer.body) == before + 10_000)  # noqa: B023
        assert len(answer.document()["Records"]) == 1


def test_answers_wait_for_the_window_of_the_connection(rig):
    rig.server.create_stream("s")
    rig.kinesis.put_record(StreamName="s", Data=bytes(60_000), PartitionKey="k")
    read = {"ShardIterator": rig.iterator("s")}
    with Http2Client(rig.server.endpoint_url, gives_back=False) as client:
        numbers = [client.send("GetRecords", read) for _ in range(3)]
        client.receive_until(lambda: sum(len(client.answers[n].body) for n in numbers) == 65_535)
        assert not all(client.answers[n].is_over for n in numbers)
        client.h2.increment_flow_control_window(MIB)
        client.flush()
        assert [len(client.wait(n).document()["Records"]) for n in numbers] == [1, 1, 1]


def test_a_window_that_the_settings_open_lets_answers_go_on(rig):
    rig.server.create_stream("s")
    rig.kinesis.put_record(StreamName="s", Data=bytes(30_000), PartitionKey="k")
    read = {"ShardIterator": rig.iterator("s")}
    with Http2Client(rig.server.endpoint_url, window_bytes=0, gives_back=False) as client:
        number = client.send("GetRecords", read)
        client.receive_until(lambda: client.answers[number].status == 200)
        assert client.answers[number].body == b""
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 60_000})
        client.flush()
        assert len(client.wait(number).document()["Records"]) == 1


# --- faults ---


def test_a_dropped_call_resets_its_stream_only(rig, client):
    rig.server.create_stream("s")
    rig.faults.delay("ListStreams", 0.2)
    other = client.send("ListStreams")
    record = {"StreamName": "s", "Data": "YQ==", "PartitionKey": "k"}
    rig.faults.drop_before("PutRecord")
    assert client.call("PutRecord", record).reset == ErrorCodes.INTERNAL_ERROR
    assert rig.read("s") == []
    rig.faults.drop_after("PutRecord")
    assert client.call("PutRecord", record).reset == ErrorCodes.INTERNAL_ERROR
    assert rig.read("s") == [b"a"]
    assert client.wait(other).status == 200


def test_a_dropped_call_to_another_service_resets_its_stream(rig, client):
    rig.faults.drop_after("dynamodb.ListTables")
    assert client.call("DynamoDB_20120810.ListTables").reset == ErrorCodes.INTERNAL_ERROR
    assert client.call("DynamoDB_20120810.ListTables").status == 200


def test_a_cut_answer_breaks_off_in_the_middle(rig, client):
    rig.faults.truncate("ListStreams")
    answer = client.call("ListStreams")
    assert answer.reset == ErrorCodes.INTERNAL_ERROR
    assert len(answer.body) == int(answer.headers["content-length"]) // 2


def test_an_unreadable_answer_is_sent_whole(rig, client):
    rig.faults.garbage("ListStreams")
    answer = client.call("ListStreams")
    assert answer.is_whole
    assert answer.body.startswith(b"\x00<garbage>")


# --- limits ---


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ([("a", "b")] * 101, "/", 431),
        ([], "/" + "a" * 20_000, 414),
        ([("content-length", "99999999")], "/", 413),
    ],
    ids=["headers", "target", "length"],
)
def test_a_head_beyond_the_limits_is_refused_and_the_connection_goes_on(client, headers, path, status):
    number = client.begin(headers, path=path)
    assert client.wait(number).status == status
    assert client.call("ListStreams").status == 200


def test_headers_beyond_all_limits_end_the_connection(rig, client):
    client.begin([(f"a{i}", "b" * 3000) for i in range(30)])
    client.receive_to_the_end()
    assert client.goodbye.error_code == ErrorCodes.ENHANCE_YOUR_CALM
    rig.kinesis.list_streams()


def test_a_body_that_has_grown_too_large_is_refused(client, monkeypatch):
    monkeypatch.setattr(server_http, "BODY_BYTES_MAX", MIB)
    number = client.begin()
    client.send_data(number, bytes(MIB + 1), end=False)
    assert client.wait(number).status == 413
    assert client.call("ListStreams").status == 200


def test_a_refused_request_that_was_reset_meanwhile_costs_nothing(client):
    number = client.h2.get_next_available_stream_id()
    head = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", "/" + "a" * 20_000),
    ]
    client.h2.send_headers(number, head)
    client.h2.reset_stream(number)
    client.flush()
    assert client.call("ListStreams").status == 200


def test_more_streams_than_announced_end_the_connection(rig, client):
    assert client.h2.remote_settings.max_concurrent_streams == server_http2.STREAMS_MAX
    rig.faults.delay("ListStreams", 60, count=None)
    client.h2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 5000
    client.h2.remote_settings.acknowledge()
    for _ in range(server_http2.STREAMS_MAX + 1):
        client.send("ListStreams")
    client.receive_to_the_end()
    assert client.goodbye.error_code == ErrorCodes.PROTOCOL_ERROR
    rig.faults.clear()
    rig.kinesis.list_streams()


def test_a_page_of_another_name_is_not_answered(client):
    number = client.begin(authority="evil.example")
    client.send_data(number, b"")
    assert client.wait(number).status == 403


# --- the end of a connection ---


def test_a_server_that_stops_says_goodbye():
    with LocalKinesis(limits=False) as server, Http2Client(server.endpoint_url) as client:
        client.call("ListStreams")
        server.stop()
        client.receive_to_the_end()
        assert client.goodbye.error_code == ErrorCodes.NO_ERROR
        assert client.goodbye.last_stream_id == 1


def test_a_client_that_says_goodbye_still_gets_its_answers(rig):
    rig.server.create_stream("s")
    rig.kinesis.put_record(StreamName="s", Data=bytes(200_000), PartitionKey="k")
    read = {"ShardIterator": rig.iterator("s")}
    with Http2Client(rig.server.endpoint_url, window_bytes=10_000) as client:
        number = client.send("GetRecords", read)
        client.socket.sendall(GOAWAY)
        assert len(client.wait(number).document()["Records"]) == 1
        client.receive_to_the_end()
        assert client.goodbye.error_code == ErrorCodes.NO_ERROR


@pytest.mark.parametrize("size", [1, 2, 8, 9, 10, 24, 1000])
def test_a_goodbye_is_taken_out_wherever_the_bytes_are_cut(size):
    before = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04" + bytes(5)
    after = b"\x00\x01\x2c\x00" + bytes(5) + GOAWAY * 10 + bytes(130) + b"\x00\x00\x00\x04" + bytes(5)
    filter_ = GoawayFilter()
    said = before + GOAWAY + after + GOAWAY
    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    assert b"".join(filter_.remove_goaways(piece) for piece in pieces) == before + after
    assert filter_.has_goaway


def test_a_client_that_breaks_the_protocol_ends_its_own_connection(rig, client):
    with Http2Client(rig.server.endpoint_url) as broken:
        broken.socket.sendall(b"\x00\x00\x01\x00\x00\x00\x00\x00\x00x")
        broken.receive_to_the_end()
        assert broken.goodbye.error_code == ErrorCodes.PROTOCOL_ERROR
    assert client.call("ListStreams").status == 200


def test_a_client_that_leaves_in_the_middle_of_everything_disturbs_nobody(rig, client):
    rig.server.create_stream("s")
    rig.kinesis.put_record(StreamName="s", Data=bytes(500_000), PartitionKey="k")
    read = {"ShardIterator": rig.iterator("s")}
    rig.faults.delay("DescribeLimits", 60)
    with Http2Client(rig.server.endpoint_url, window_bytes=1000) as leaving:
        leaving.send("GetRecords", read)
        leaving.send("DescribeLimits")
        leaving.send_data(leaving.begin(), b"half", end=False)
    assert client.call("ListStreams").status == 200
