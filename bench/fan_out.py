"""Measure what enhanced fan-out costs the reader: decoding of events beside botocore's own, and subscriptions over TLS.

    python bench/fan_out.py [--json] [--seconds 3]

Decoding: both sides get the same bytes of an event stream, and take turns. Subscriptions: a sender in a process of its own
sends the same event repeatedly over HTTP/2 and TLS. This process asks for one event after the other, decodes it and
drops it. Only its CPU time counts, so the sender's speed does not matter. A shard at its full 2 MiB/s of 1 KiB records
is about 3.1 MB/s on the wire.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import multiprocessing
import os
import statistics
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import botocore.session
import trustme
from botocore.eventstream import EventStream
from botocore.parsers import EventStreamJSONParser
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamReset
from row_printing import parser_of, print_rows

from penstock.aws.aws_options import AwsOptions
from penstock.aws.event_stream import FrameBuffer, decode_event
from penstock.aws.fan_out import AwsFanOut
from penstock.core.reading.resume import IteratorStart, IteratorType
from penstock.ports.fan_out import FanOutFailed, FanOutPage

ROUNDS = 15
SHARD_WIRE_MB_PER_S = 3.1
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/bench/consumer/bench:1700000000"
HEADERS = {
    ":event-type": "SubscribeToShardEvent",
    ":content-type": "application/x-amz-json-1.1",
    ":message-type": "event",
}


def frame_of(record_count: int) -> bytes:
    """Return an event of 1 KiB records as it is on the wire."""
    records = [
        {
            "SequenceNumber": f"4967{number:052d}",
            "ApproximateArrivalTimestamp": 1.7e9 + number / 1000,
            "Data": base64.b64encode(os.urandom(1024)).decode(),
            "PartitionKey": f"key-{number % 50}",
        }
        for number in range(record_count)
    ]
    event = {
        "Records": records,
        "ContinuationSequenceNumber": f"4967{record_count:052d}",
        "MillisBehindLatest": 0,
    }
    payload = json.dumps(event).encode()
    head = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in HEADERS.items()
    )
    prelude = struct.pack(">II", len(head) + len(payload) + 16, len(head))
    body = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
    return body + struct.pack(">I", zlib.crc32(body))


SHAPES = {"100 KB events": 70, "2 KB events": 1}

# --- decoding -----------------------------------------------------------------------------------------------------


class Raw:
    """Bytes as botocore's event stream wants them."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self) -> Any:
        """Return them in pieces, as from a socket."""
        return (self._data[place : place + 65536] for place in range(0, len(self._data), 65536))

    def close(self) -> None:
        """Nothing is open."""


def decode_theirs(data: bytes) -> int:
    """Count the records that botocore's event stream gives."""
    model = botocore.session.get_session().get_service_model("kinesis")
    shape = model.operation_model("SubscribeToShard").output_shape.members["EventStream"]
    events = EventStream(Raw(data), shape, EventStreamJSONParser(), "SubscribeToShard")
    return sum(len(event["SubscribeToShardEvent"]["Records"]) for event in events)


def decode_ours(data: bytes) -> int:
    """Count the records that Penstock reads."""
    frames, count = FrameBuffer(), 0
    for place in range(0, len(data), 65536):
        frames.add(data[place : place + 65536], 0.0)
        while (frame := frames.take()) is not None:
            count += len(decode_event(frame.payload).records)
    return count


def measure_decoding() -> list[dict[str, Any]]:
    """Return one row per size of event."""
    rows = []
    for name, record_count in SHAPES.items():
        data = frame_of(record_count) * (4000 // record_count // 20 + 1)
        times: dict[Any, list[float]] = {decode_ours: [], decode_theirs: []}
        counts = {read(data) for read in times}
        if len(counts) != 1:
            raise SystemExit(f"{name}: the two readers disagree: {counts}")
        for _ in range(ROUNDS):
            for read, found in times.items():
                began_s = time.process_time()
                read(data)
                found.append(time.process_time() - began_s)
        ours_s, theirs_s = (statistics.median(found) for found in times.values())
        rows.append(
            {
                "name": f"decode {name}",
                "mb_per_cpu_s": round(len(data) / ours_s / 1e6, 1),
                "peer_mb_per_cpu_s": round(len(data) / theirs_s / 1e6, 1),
                "ratio": round(theirs_s / ours_s, 1),
            }
        )
    return rows


# --- subscriptions ------------------------------------------------------------------------------------------------


class Sender(asyncio.Protocol):
    """Sends one event repeatedly on every stream, as its window allows."""

    def __init__(self, event: bytes) -> None:
        self._event = event
        self._h2 = H2Connection(H2Configuration(client_side=False))
        self._rests: dict[int, bytes] = {}
        self._is_writable = True

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._h2.initiate_connection()
        transport.write(self._h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            if isinstance(event, RequestReceived):
                self._h2.send_headers(event.stream_id, [(":status", "200")])
                self._rests[event.stream_id] = b""
            elif isinstance(event, StreamReset):
                self._rests.pop(event.stream_id, None)
        self._send()

    def connection_lost(self, _error: Exception | None) -> None:
        self._is_writable = False

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._send()

    def _send(self) -> None:
        has_sent = True
        while has_sent and self._is_writable:
            has_sent = False
            for number, rest in list(self._rests.items()):
                left = rest or self._event
                size = min(
                    len(left), self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size
                )
                if size > 0 and self._is_writable and not self._transport.is_closing():
                    self._h2.send_data(number, left[:size])
                    self._rests[number] = left[size:]
                    self._transport.write(self._h2.data_to_send())
                    has_sent = True
        if not self._transport.is_closing():
            self._transport.write(self._h2.data_to_send())


def serve(event: bytes, certificate_file: str, ports: Connection) -> None:
    """Serve until the process is ended."""
    logging.disable(logging.WARNING)  # asyncio's, when the reader has gone

    async def run() -> None:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate_file)
        context.set_alpn_protocols(["h2"])
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Sender(event), "127.0.0.1", 0, ssl=context)
        ports.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


class Drain:
    """Asks for one event after the other, and drops it."""

    def __init__(self) -> None:
        self.count = 0
        self.failure: object = None
        self.is_open = threading.Event()
        self.stream: Any = None

    def tell(self, event: object) -> None:
        """Receive bytes."""
        if isinstance(event, FanOutPage):
            self.count += 1
            self.stream.request()
            return
        if isinstance(event, FanOutFailed):
            self.failure = event.error
        self.is_open.set()


@contextmanager
def subscribed(event: bytes, count: int) -> Iterator[list[Drain]]:
    """Yield subscriptions over TLS that are open and ask for nothing yet."""
    authority = trustme.CA()
    with tempfile.TemporaryDirectory() as folder:
        certificate_file, ca_file = f"{folder}/server.pem", f"{folder}/ca.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate_file)
        authority.cert_pem.write_to_path(ca_file)
        os.environ["AWS_CA_BUNDLE"] = ca_file
        mine, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        sender = context.Process(target=serve, args=(event, certificate_file, theirs), daemon=True)
        sender.start()
        port = mine.recv()
        fan_out = AwsFanOut(
            AwsOptions(
                region="us-east-1",
                endpoint_url=f"https://127.0.0.1:{port}",
                access_key_id="bench",
                secret_access_key="bench",
                connect_timeout_s=30.0,
            )
        )
        start = IteratorStart(IteratorType.TRIM_HORIZON)
        drains = [Drain() for _ in range(count)]
        for place, drain in enumerate(drains):
            drain.stream = fan_out.subscribe(ARN, f"shardId-{place}", start, drain.tell)
        for drain in drains:
            if not drain.is_open.wait(60) or drain.failure is not None:
                raise SystemExit(f"{count} subscriptions: {drain.failure}")
        yield drains
        for drain in drains:
            drain.stream.close()
        sender.terminate()
        sender.join()


def measure_subscriptions(name: str, record_count: int, count: int, seconds: float) -> dict[str, Any]:
    """Return the row of some subscriptions at once."""
    event = frame_of(record_count)
    with subscribed(event, count) as drains:
        for drain in drains:
            drain.stream.request()
        time.sleep(0.5)
        began, began_s = sum(drain.count for drain in drains), time.process_time()
        time.sleep(seconds)
        event_count, cpu_s = sum(drain.count for drain in drains) - began, time.process_time() - began_s
    mb_per_cpu_s = event_count * len(event) / cpu_s / 1e6
    return {
        "name": f"{count} subscriptions over TLS, {name}",
        "mb_per_cpu_s": round(mb_per_cpu_s, 1),
        "events_per_cpu_s": round(event_count / cpu_s),
        "full_shards_per_core": round(mb_per_cpu_s / SHARD_WIRE_MB_PER_S),
    }


def rss_mb() -> float:
    """Return the process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure_memory(name: str, record_count: int, count: int) -> dict[str, Any]:
    """Return the row of subscriptions with unread events: the memory of their windows."""
    event = frame_of(record_count)
    with subscribed(event, 1):
        before_mb = rss_mb()
        with subscribed(event, count):
            grown_mb = last_mb = 0.0
            while grown_mb == 0.0 or rss_mb() > last_mb + 0.5:  # until nothing more arrives
                last_mb = rss_mb()
                time.sleep(2.0)
                grown_mb = rss_mb() - before_mb
    return {
        "name": f"{count} subscriptions that wait, {name}",
        "rss_grown_mb": round(grown_mb, 1),
        "kib_per_subscription": round(grown_mb * 1e6 / 1024 / count),
    }


def main() -> int:
    """Print the rows, and how busy the machine was."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row of subscriptions")
    arguments = parser.parse_args()
    rows = [measure_memory(name, record_count, 100) for name, record_count in SHAPES.items()]
    rows += measure_decoding()
    for name, record_count in SHAPES.items():
        rows += [
            measure_subscriptions(name, record_count, count, arguments.seconds) for count in (1, 20, 100)
        ]
    print_rows(rows, as_json=arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
