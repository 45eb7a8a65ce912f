"""Measure how fast the embedded Kinesis serves from one process, beside moto's server in the same run.

    python bench/server.py [--seconds 3] [--json] [--no-peer]

The client is this process. It sends requests that were built beforehand and drops the answers, so that only
the server is measured. An MB is 10^6 bytes of user data (before base64). `ratio` is Penstock's figure over
the peer's, each measured the same way; the peer gets smaller answers because it would take minutes otherwise. For writes
with a state folder, `ratio` is the rate with the folder over the rate without it; for HTTP/2, the rate over that of HTTP/1.1.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from penstock.local import LocalKinesisProcess

RECORD_BYTES = 1024
BATCH_RECORDS = 500
TIMEOUT_S = 60.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 7, 8
END_STREAM, END_HEADERS, INITIAL_WINDOW_SIZE = 1, 4, 4
FRAME_BYTES = 16_384
WINDOW_BYTES = 2**31 - 1
SCOPE = "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/kinesis/aws4_request, SignedHeaders=host, Signature=0"


class RawClient:
    """Sends requests over one connection and discards what comes back."""

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
            f"POST / HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: {SCOPE}\r\n"
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


def measure(url: str, *, records: int, seconds: float) -> dict[str, float]:
    """Fill a shard with records, read them over and over, then write to another stream."""
    client = RawClient(url)
    fill(client, records)
    return measure_calls(client, records=records, seconds=seconds)


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


def measure_kept_writes(*, seconds: float) -> dict[str, float]:
    """Write to a server that keeps its streams in a state folder."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        LocalKinesisProcess(limits=False, state_dir=folder) as server,
    ):
        client = RawClient(server.endpoint_url)
        create_streams(client, ("write",))
        return measure_writes(client, "write", seconds=seconds)


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


@contextmanager
def moto_server() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("moto's server did not start; it needs flask and flask-cors") from None
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of rows")
    parser.add_argument("--no-peer", action="store_true", help="do not measure moto's server")
    args = parser.parse_args()
    with LocalKinesisProcess(limits=False) as server:
        ours = measure(server.endpoint_url, records=10_000, seconds=args.seconds)
        http2 = measure_calls(RawHttp2Client(server.endpoint_url), records=10_000, seconds=args.seconds)
    kept = measure_kept_writes(seconds=args.seconds)
    peer: dict[str, float] = {}
    if not args.no_peer:
        with moto_server() as url:
            peer = measure(url, records=1_000, seconds=args.seconds)
    rows = []
    for operation, rate_mb in ours.items():
        base = peer.get(operation)
        rows.append((f"server {operation} 1 KiB, penstock local", rate_mb, rate_mb / base if base else None))
        if base:
            rows.append((f"server {operation} 1 KiB, moto server", base, 1.0))
    rows += [
        (f"server {operation} 1 KiB, penstock local, HTTP/2", rate_mb, rate_mb / ours[operation])
        for operation, rate_mb in http2.items()
    ]
    rows += [
        (f"server {operation} 1 KiB, penstock local, state folder", rate_mb, rate_mb / ours[operation])
        for operation, rate_mb in kept.items()
    ]
    if args.json:
        print(
            json.dumps([{"name": n, "mb_per_s": round(r, 1), "ratio": q and round(q, 2)} for n, r, q in rows])
        )
        return 0
    print(f"{'name':<56}{'MB/s':>10}{'ratio':>9}")
    for name, rate_mb, ratio in rows:
        print(f"{name:<56}{rate_mb:>10.1f}{'' if ratio is None else f'{ratio:.2f}x':>9}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
