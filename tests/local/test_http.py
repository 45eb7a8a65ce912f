"""HTTP: requests in pieces, pipelines, bad requests, large bodies, slow readers."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import sys
import threading
import time
import warnings
from urllib.parse import urlsplit

import pytest

from penstock_local import LocalKinesis


def connect(rig) -> socket.socket:
    parts = urlsplit(rig.server.endpoint_url)
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def request(operation: str, document: object, *extra: str) -> bytes:
    body = json.dumps(document).encode()
    lines = ["POST / HTTP/1.1", "Host: localhost", f"X-Amz-Target: Kinesis_20131202.{operation}", *extra]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def read_answer(file) -> tuple[int, dict[str, str], bytes]:
    status = int(file.readline().split()[1])
    headers = {}
    while line := file.readline().strip():
        name, _, value = line.decode().partition(": ")
        headers[name.lower()] = value
    return status, headers, file.read(int(headers.get("content-length", 0)))


def test_a_request_may_come_byte_by_byte(rig):
    with connect(rig) as connection, connection.makefile("rb") as file:
        for byte in request("ListStreams", {}):
            connection.sendall(bytes((byte,)))
        status, _, body = read_answer(file)
    assert status == 200
    assert json.loads(body)["StreamNames"] == []


def test_requests_sent_at_once_are_answered_in_order(rig):
    rig.server.create_stream("s")
    rig.faults.delay("DescribeLimits", 0.05)
    with connect(rig) as connection, connection.makefile("rb") as file:
        connection.sendall(
            request("ListStreams", {})
            + request("DescribeLimits", {})
            + request("ListShards", {"StreamName": "s"})
        )
        members = [set(json.loads(read_answer(file)[2])) for _ in range(3)]
    assert [m & {"StreamNames", "ShardLimit", "Shards"} for m in members] == [
        {"StreamNames"},
        {"ShardLimit"},
        {"Shards"},
    ]


def test_a_client_that_asks_for_it_is_told_to_go_on(rig):
    with connect(rig) as connection, connection.makefile("rb") as file:
        connection.sendall(request("ListStreams", {}, "Expect: 100-continue"))
        assert read_answer(file)[0] == 100
        assert read_answer(file)[0] == 200


def test_a_client_that_wants_to_close_is_obeyed(rig):
    with connect(rig) as connection, connection.makefile("rb") as file:
        connection.sendall(request("ListStreams", {}, "Connection: close"))
        status, headers, _ = read_answer(file)
        assert (status, headers["connection"]) == (200, "close")
        assert file.read() == b""


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 404),
    ],
)
def test_what_is_not_plain_http_is_answered_and_closed(rig, sent, status):
    with connect(rig) as connection, connection.makefile("rb") as file:
        connection.sendall(sent)
        assert read_answer(file)[0] == status
        assert file.read() == b""


def test_a_body_beyond_all_limits_is_refused(rig):
    with connect(rig) as connection, connection.makefile("rb") as file:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n")
        assert read_answer(file)[0] == 413


def test_a_body_of_unknown_length_is_refused_when_it_has_grown_too_large(rig):
    piece = b"100000\r\n" + bytes(1024 * 1024) + b"\r\n"
    with connect(rig) as connection, connection.makefile("rb") as file:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        # the server reads on for a moment after its refusal, so that the refusal is not lost
        connection.sendall(piece * 33)
        assert read_answer(file)[0] == 413
        assert file.read() == b""


def test_too_many_requests_at_once_are_refused(rig):
    rig.faults.delay("ListStreams", 60)
    with connect(rig) as connection, connection.makefile("rb") as file:
        connection.sendall(request("ListStreams", {}) * 40)
        assert read_answer(file)[0] == 429


def test_a_large_answer_reaches_a_reader_that_waits_before_it_reads(rig):
    rig.server.create_stream("s")
    for _ in range(8):
        rig.kinesis.put_record(StreamName="s", Data=bytes(1024 * 1024 - 1), PartitionKey="k")
    with connect(rig) as connection, connection.makefile("rb") as file:
        connection.sendall(request("GetRecords", {"ShardIterator": rig.iterator("s")}))
        # the server is busy with other clients while this one holds its answer up
        rig.kinesis.list_streams()
        _, headers, body = read_answer(file)
    assert len(body) == int(headers["content-length"])
    assert len(json.loads(body)["Records"]) == 8


def test_a_client_that_leaves_in_the_middle_of_an_answer_disturbs_nobody(rig):
    rig.server.create_stream("s")
    rig.kinesis.put_record(StreamName="s", Data=bytes(1024 * 1024 - 1), PartitionKey="k")
    iterator = rig.iterator("s")
    for _ in range(5):
        with connect(rig) as connection:
            connection.sendall(request("GetRecords", {"ShardIterator": iterator}))
            connection.recv(1000)
    rig.faults.delay("ListStreams", 0.05)
    with connect(rig) as connection:
        connection.sendall(request("ListStreams", {}))
    assert len(rig.read("s")) == 1


def test_a_bug_in_an_operation_is_a_500_and_in_the_log(rig, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("boom")

    monkeypatch.setattr("penstock_local.operations.dispatch.answer", broken)
    assert rig.refused(rig.kinesis.list_streams) == ("InternalFailure", 500)
    assert "boom" in caplog.text


def test_who_comes_while_the_server_stops_leaves_nothing_open(monkeypatch):
    left_open = []
    monkeypatch.setattr(sys, "unraisablehook", left_open.append)
    port, is_over = [0], threading.Event()

    def knock():
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port[0]), timeout=60).close()

    knocking = [threading.Thread(target=knock) for _ in range(3)]
    for thread in knocking:
        thread.start()
    gc.freeze()  # existing objects are not scanned ten times
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            for _ in range(10):
                with LocalKinesis(limits=False) as server:
                    port[0] = urlsplit(server.endpoint_url).port
                    time.sleep(0.05)
                gc.collect()
    finally:
        gc.unfreeze()
        is_over.set()
        for thread in knocking:
            thread.join()
    assert [str(entry.exc_value) for entry in left_open] == []
