"""Measure how fast a Kinesis on this machine serves from one process: Penstock's embedded one, moto's and kinesis-local.

The client is this process. It sends requests that were built beforehand and drops the answers, so that only the server is
measured. An MB is 10^6 bytes of user data (before base64). moto and kinesis-local get smaller answers, because larger ones
would take minutes.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from program import Figures, Meter, run

RECORD_BYTES = 1024
BATCH_RECORDS = 500
TIMEOUT_S = 60.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 7, 8
END_STREAM, END_HEADERS, INITIAL_WINDOW_SIZE = 1, 4, 4
FRAME_BYTES = 16_384
WINDOW_BYTES = 2**31 - 1
SIGNED_AT = "20260101T000000Z"
SCOPE = "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/kinesis/aws4_request, SignedHeaders=host, Signature=0"


class RawClient:
    """Sends requests over one connection and discards the answers."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        self.address = (parts.hostname, parts.port)
        self.socket: socket.socket | None = None
        self.buffer = bytearray(4 * 1024 * 1024)

    def connected(self) -> socket.socket:
        if self.socket is None:
            self.socket = socket.create_connection(self.address, TIMEOUT_S)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.socket

    def request(self, operation: str, document: dict[str, object]) -> bytes:
        body = json.dumps(document).encode()
        head = (
            f"POST / HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: {SCOPE}\r\nX-Amz-Date: {SIGNED_AT}\r\n"
            f"Content-Type: application/x-amz-json-1.1\r\nX-Amz-Target: Kinesis_20131202.{operation}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def exchange(self, request: bytes) -> int:
        """Send a request; returns the bytes of the answer's body, which is thrown away."""
        connection = self.connected()
        connection.sendall(request)
        got = 0
        while (end := self.buffer.find(b"\r\n\r\n", 0, got)) < 0:
            got += received(connection.recv_into(memoryview(self.buffer)[got:]))
        head = bytes(self.buffer[:end]).lower()
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(f"the server answered {bytes(self.buffer[:got])!r}")
        size = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        left = size - (got - end - 4)
        while left:
            left -= received(connection.recv_into(self.buffer, min(left, len(self.buffer))))
        if b"connection: close" in head:
            connection.close()
            self.socket = None
        return size

    def call(self, operation: str, document: dict[str, object]) -> dict[str, object]:
        """Make one ordinary call and return its document."""
        connection = http.client.HTTPConnection(self.host, timeout=TIMEOUT_S)
        headers = {
            "Authorization": SCOPE,
            "X-Amz-Date": SIGNED_AT,
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": f"Kinesis_20131202.{operation}",
        }
        connection.request("POST", "/", json.dumps(document), headers)
        response = connection.getresponse()
        raw = response.read()
        connection.close()
        if response.status != 200:
            raise SystemExit(f"{operation}: {response.status} {raw!r}")
        return json.loads(raw) if raw else {}


class RawHttp2Client(RawClient):
    """The same over HTTP/2: one stream after the other, with windows so large that the server never waits."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.stream = -1

    def connected(self) -> socket.socket:
        if self.socket is None:
            settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, WINDOW_BYTES)
            opened = struct.pack(">I", WINDOW_BYTES - 65_535)
            super().connected().sendall(
                PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, opened)
            )
        return super().connected()

    def request(self, operation: str, document: dict[str, object]) -> bytes:
        """Return the header block, behind its length, and the body."""
        body = json.dumps(document).encode()
        block = b"".join(
            b"\x00" + hpack_text(name) + hpack_text(value)
            for name, value in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", "/"),
                (":authority", self.host),
                ("authorization", SCOPE),
                ("x-amz-date", SIGNED_AT),
                ("content-type", "application/x-amz-json-1.1"),
                ("x-amz-target", f"Kinesis_20131202.{operation}"),
                ("content-length", str(len(body))),
            )
        )
        return struct.pack(">I", len(block)) + block + body

    def exchange(self, request: bytes) -> int:
        connection = self.connected()
        self.stream += 2
        begin = 4 + struct.unpack_from(">I", request)[0]
        frames = [frame(HEADERS, END_HEADERS, self.stream, request[4:begin])]
        for at in range(begin, len(request), FRAME_BYTES):
            flags = END_STREAM if at + FRAME_BYTES >= len(request) else 0
            frames.append(frame(DATA, flags, self.stream, request[at : at + FRAME_BYTES]))
        connection.sendall(b"".join(frames))
        size = at = have = 0
        view = memoryview(self.buffer)
        while True:
            if have - at < 9 or have - at < 9 + int.from_bytes(view[at : at + 3], "big"):
                view[: have - at] = bytes(view[at:have])
                at, have = 0, have - at
                have += received(connection.recv_into(view[have:]))
                continue
            length = int.from_bytes(view[at : at + 3], "big")
            kind, flags = view[at + 3], view[at + 4]
            # a status of 200 is one byte, index 8 of the table
            if kind in (GOAWAY, RST_STREAM) or (kind == HEADERS and view[at + 9] != 0x88):
                raise SystemExit(f"the server answered {bytes(view[at : at + 9 + length])!r}")
            at += 9 + length
            size += length if kind == DATA else 0
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                break
        connection.sendall(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", size)))
        return size


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def hpack_text(text: str) -> bytes:
    """Return a text as HPACK has it without Huffman's code: RFC 7541, 5.2."""
    raw = text.encode()
    if len(raw) < 127:
        return bytes((len(raw),)) + raw
    rest = len(raw) - 127
    return b"\x7f" + (bytes((rest,)) if rest < 128 else bytes((rest & 127 | 128, rest >> 7))) + raw


def received(count: int) -> int:
    if count == 0:
        raise SystemExit("the server closed the connection in the middle of an answer")
    return count


def put_request(client: RawClient, stream: str) -> bytes:
    data = base64.b64encode(os.urandom(RECORD_BYTES)).decode()
    entries = [{"Data": data, "PartitionKey": f"key-{i}"} for i in range(BATCH_RECORDS)]
    return client.request("PutRecords", {"StreamName": stream, "Records": entries})


def rate(client: RawClient, request: bytes, payload_bytes: int, seconds: float) -> float:
    """MB/s of user data, over at least this many seconds of the same request."""
    client.exchange(request)
    calls = 0
    started = time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        client.exchange(request)
        calls += 1
    return calls * payload_bytes / spent / 1e6


def fill(client: RawClient, records: int) -> None:
    create_streams(client, ("read", "write"))
    batch = put_request(client, "read")
    for _ in range(records // BATCH_RECORDS):
        client.exchange(batch)


def measure_calls(client: RawClient, *, records: int, seconds: float) -> dict[str, float]:
    shard = {"StreamName": "read", "ShardId": "shardId-000000000000", "ShardIteratorType": "TRIM_HORIZON"}
    iterator = client.call("GetShardIterator", shard)["ShardIterator"]
    given = client.call("GetRecords", {"ShardIterator": iterator, "Limit": records})["Records"]
    if len(given) != records:
        raise SystemExit(f"asked {client.host} for {records} records of one read and got {len(given)}")
    read = client.request("GetRecords", {"ShardIterator": iterator, "Limit": records})
    return {
        "GetRecords": rate(client, read, records * RECORD_BYTES, seconds),
        **measure_writes(client, "write", seconds=seconds),
    }


def measure_writes(client: RawClient, stream: str, *, seconds: float) -> dict[str, float]:
    """Write batches, then single records."""
    data = base64.b64encode(os.urandom(RECORD_BYTES)).decode()
    one = client.request("PutRecord", {"StreamName": stream, "Data": data, "PartitionKey": "key"})
    return {
        "PutRecords": rate(client, put_request(client, stream), BATCH_RECORDS * RECORD_BYTES, seconds),
        "PutRecord": rate(client, one, RECORD_BYTES, seconds),
    }


def create_streams(client: RawClient, streams: tuple[str, ...]) -> None:
    for stream in streams:
        client.call("CreateStream", {"StreamName": stream, "ShardCount": 1})
    deadline = time.monotonic() + 10
    while not described_active(client, streams):
        if time.monotonic() > deadline:
            raise SystemExit(f"the streams at {client.host} did not become active")
        time.sleep(0.01)


def described_active(client: RawClient, streams: tuple[str, ...]) -> bool:
    for stream in streams:
        answer = client.call("DescribeStreamSummary", {"StreamName": stream})
        if answer["StreamDescriptionSummary"]["StreamStatus"] != "ACTIVE":
            return False
    return True


def figures(client: RawClient, seconds: float, records: int) -> Figures:
    meter = Meter()
    fill(client, records)
    rates = measure_calls(client, records=records, seconds=seconds)
    return {
        "get_records_mb_per_s": rates["GetRecords"],
        "put_records_mb_per_s": rates["PutRecords"],
        "put_record_per_s": rates["PutRecord"] * 1e6 / RECORD_BYTES,
        **meter.read(),
    }


def penstock(seconds: float, *, http2: bool = False, keeps: bool = False) -> Figures:
    from penstock_local import LocalKinesisProcess

    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        LocalKinesisProcess(limits=False, state_dir=folder if keeps else None) as server,
    ):
        client = RawHttp2Client if http2 else RawClient
        return figures(client(server.endpoint_url), seconds, 10_000)


def peer(name: str, seconds: float) -> Figures:
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
    import peers

    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        peers.running(name, Path(folder) / "log") as url,
    ):
        return figures(RawClient(url), seconds, 1_000)


if __name__ == "__main__":
    run(
        {
            "penstock": penstock,
            "penstock-http2": lambda seconds: penstock(seconds, http2=True),
            "penstock-state": lambda seconds: penstock(seconds, keeps=True),
            "moto": lambda seconds: peer("moto", seconds),
            "kinesis-local": lambda seconds: peer("kinesis-local", seconds),
            "ministack": lambda seconds: peer("ministack", seconds),
        }
    )
