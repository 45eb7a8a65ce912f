"""Measure enhanced fan-out end to end: from put to handler beside polling, and the cost of pushing for the embedded server.

    python bench/pushing.py [--records 200] [--kcl] [--json]

An embedded server runs in a process of its own. Latency: with its quotas on, two consumers read one stream of two shards, one by
fan-out and one by polling. Records are put one by one at random moments, about five a second; each carries the moment
before its put, and the time is taken when the handler has it. With `--kcl` two workers of the Java KCL 3 read the same stream, by
fan-out and by polling twice a second; they print each record, and the time is taken when its line arrives (`make test-interop`
builds them, which needs Maven). Server: twenty consumers subscribe to one shard; the measure is
the server's CPU time, minus that of the same puts without subscribers.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from row_printing import parser_of, print_rows

from penstock import Consumer
from penstock.aws.aws_options import AwsOptions
from penstock.aws.fan_out import AwsFanOut
from penstock.consumer import Batch
from penstock.core.reading.resume import IteratorStart, IteratorType
from penstock.ports.fan_out import FanOutFailed, FanOutOpened, FanOutPage
from penstock_local import LocalKinesisProcess

WARM_UP = 20
PER_S = 5.0
DEADLINE_S = 120.0
SUBSCRIBERS = 20
SMALL_PUTS, LARGE_PUTS = 500, 40
SHARD = "shardId-000000000000"
INTEROP = Path(__file__).parents[1] / "tests" / "interop"


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    """Wait for a condition; end the program at the deadline."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not is_true():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{what}: not within {DEADLINE_S:g} s")
        time.sleep(0.01)


# --- latency ------------------------------------------------------------------------------------------------------


class Reader:
    """A consumer that notes when its handler has each record."""

    def __init__(self, endpoint_url: str, retrieval: str) -> None:
        self.name = retrieval
        self.seen: dict[bytes, float] = {}
        self.consumer = Consumer(
            "latency",
            f"latency-{retrieval}",
            self._handle,
            retrieval=retrieval,
            starting_position="TRIM_HORIZON",
            endpoint_url=endpoint_url,
        )
        self.consumer.start()

    def _handle(self, batch: Batch) -> None:
        now_s = time.time()
        for record in batch:
            self.seen.setdefault(record.data, now_s)

    def stop(self) -> None:
        """Stop it in order."""
        self.consumer.stop()


class JavaReader:
    """A worker of the Java KCL as a process, which prints each record when its processor has it."""

    def __init__(self, server: LocalKinesisProcess, retrieval: str, folder: Path) -> None:
        sys.path.append(str(INTEROP))
        from counterparts import KCL_3, KCL_3_FAN_OUT, environment

        counterpart = KCL_3_FAN_OUT if retrieval == "fan-out" else KCL_3
        self.name = f"{retrieval}, Java KCL 3"
        self.seen: dict[bytes, float] = {}
        name = f"java-{retrieval}"
        line = counterpart.line(server, folder, "latency", f"latency-{name}", name)
        # As a service runs it: the machine may compile.
        line.remove("-XX:TieredStopAtLevel=1")
        with (folder / f"{name}.log").open("w") as log:  # the process has it open by itself
            self._process = subprocess.Popen(
                line,
                env=environment(server, folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("record "):
                self.seen.setdefault(line.split()[-1].encode(), time.time())

    def stop(self) -> None:
        """Stop it in order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._thread.join(DEADLINE_S)


def measure_latency(records: int, *, with_kcl: bool) -> list[dict[str, Any]]:
    """Return one row per way of reading."""
    chance = random.Random(1)
    ways = ("fan-out", "polling")
    with LocalKinesisProcess(limits=True) as server, tempfile.TemporaryDirectory() as folder:
        os.environ.update(server.environ())
        server.create_stream("latency", shards=2)
        client = server.client("kinesis")
        readers: list[Reader | JavaReader] = [Reader(server.endpoint_url, retrieval) for retrieval in ways]
        if with_kcl:
            readers += [JavaReader(server, retrieval, Path(folder)) for retrieval in ways]
        put: dict[bytes, float] = {}
        for number in range(records + WARM_UP):
            name = f"record-{number}".encode()
            put[name] = time.time()
            client.put_record(StreamName="latency", PartitionKey=name.decode(), Data=name)
            if number == 0:
                wait_until(lambda: all(reader.seen for reader in readers), "the first record")
            time.sleep(chance.expovariate(PER_S))
        wait_until(lambda: all(reader.seen.keys() == put.keys() for reader in readers), "all records")
        for reader in readers:
            reader.stop()
    rows = []
    for reader in readers:
        times = sorted(reader.seen[name] - put[name] for name in list(put)[WARM_UP:])
        rows.append(
            {
                "name": f"put to handler, {reader.name}",
                "records": len(times),
                "median_ms": round(statistics.median(times) * 1000, 1),
                "p99_ms": round(times[min(len(times) - 1, int(0.99 * len(times)))] * 1000, 1),
            }
        )
    return rows


# --- the server ---------------------------------------------------------------------------------------------------


def cpu_s_of(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Drain:
    """Asks for one event after the other, and counts the records."""

    def __init__(self) -> None:
        self.records = self.events = 0
        self.is_open = threading.Event()
        self.failure: object = None
        self.stream: Any = None

    def tell(self, event: object) -> None:
        """Receive bytes."""
        if isinstance(event, FanOutPage):
            self.records += len(event.page.records)
            self.events += bool(event.page.records)
            self.stream.request()
        elif isinstance(event, FanOutOpened):
            self.is_open.set()
        elif isinstance(event, FanOutFailed):
            self.failure = event.error
            self.is_open.set()


def measure_server() -> list[dict[str, Any]]:
    """Return one row per size of event."""
    rows = []
    shapes = {"2 KB events": (SMALL_PUTS, 1), "100 KB events": (LARGE_PUTS, 70)}
    with LocalKinesisProcess(limits=False) as server:
        os.environ.update(server.environ())
        client = server.client("kinesis")
        fan_out = AwsFanOut(AwsOptions(endpoint_url=server.endpoint_url))
        for place, (name, (puts, record_count)) in enumerate(shapes.items()):
            stream = f"pushed-{place}"
            server.create_stream(stream, shards=1)
            arn = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
            drains = [Drain() for _ in range(SUBSCRIBERS)]

            def put_all(stream: str = stream, puts: int = puts, record_count: int = record_count) -> float:
                began_s = cpu_s_of(server.pid)
                records = [{"Data": os.urandom(1024), "PartitionKey": "k"} for _ in range(record_count)]
                for _ in range(puts):
                    client.put_records(StreamName=stream, Records=records)
                return cpu_s_of(server.pid) - began_s

            alone_s = put_all()
            start = IteratorStart(IteratorType.LATEST)
            for number in range(SUBSCRIBERS):
                fan_out.register_consumer(arn, f"c{number}")
            for number, drain in enumerate(drains):
                consumer = f"c{number}"
                wait_until(
                    lambda consumer=consumer, arn=arn: (
                        fan_out.fetch_consumer(arn, consumer).status == "ACTIVE"
                    ),
                    consumer,
                )
                drain.stream = fan_out.subscribe(
                    fan_out.fetch_consumer(arn, consumer).arn, SHARD, start, drain.tell
                )
                wait_until(drain.is_open.is_set, consumer)
                if drain.failure is not None:
                    raise SystemExit(f"{consumer}: {drain.failure}")
                drain.stream.request()
            began_s = cpu_s_of(server.pid)
            put_all()
            wait_until(
                lambda drains=drains, count=puts * record_count: all(
                    each.records == count for each in drains
                ),
                name,
            )
            cpu_s = max(cpu_s_of(server.pid) - began_s - alone_s, 0.01)
            for drain in drains:
                drain.stream.close()
            events = sum(drain.events for drain in drains)
            pushed_mb = sum(drain.records for drain in drains) * 1024 / 1e6
            rows.append(
                {
                    "name": f"embedded server, {name}",
                    "events_per_cpu_s": round(events / cpu_s),
                    "mb_per_cpu_s": round(pushed_mb / cpu_s, 1),
                    "records_per_event": round(sum(drain.records for drain in drains) / events, 1),
                }
            )
    return rows


def main() -> int:
    """Print the rows, and how busy the machine was."""
    parser = parser_of(__doc__)
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--kcl", action="store_true", help="the Java KCL too")
    arguments = parser.parse_args()
    print_rows(
        [*measure_latency(arguments.records, with_kcl=arguments.kcl), *measure_server()],
        as_json=arguments.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
