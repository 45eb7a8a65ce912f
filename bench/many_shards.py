"""Measure whether one consumer of many shards renews its leases in time on a busy machine.

    python bench/many_shards.py [--shards 1000] [--per-s 200] [--load 4] [--seconds 60] [--json]

An embedded server with its quotas and the consumer, with default options (a lease duration of 10 s), run in processes of their own.
Records are put one by one on random shards. So many processes as `--load` says compute beside them, which keep that many cores busy.
A lease is late if it has not been renewed within its duration: another worker may take it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from row_printing import parser_of, print_rows

from penstock import Consumer
from penstock_local import LocalKinesisProcess

STREAM = "many"
START_S_MAX = 180.0
DURATION_S = 10.0
LATE = re.compile(
    r"^(\d+) of \d+ leases have not been renewed within their duration, one of them for (\d+) s"
)


class Observed(logging.Handler):
    """The renewals of a consumer: its metrics, and its warnings about late leases."""

    def __init__(self) -> None:
        super().__init__()
        self.figures = dict.fromkeys(
            ("held", "renewals", "slowest_s", "late", "longest_s", "lost", "records"), 0.0
        )
        self._changing = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        if found := LATE.search(record.getMessage()):
            self._most("late", float(found[1]))
            self._most("longest_s", float(found[2]))

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        del labels
        if name == "lost_leases":
            self._add("lost", value)

    def gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        del labels
        if name == "worker_leases":
            self._most("held", value)

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        del labels
        if name == "renewal_latency_s":
            self._add("renewals", 1)
            self._most("slowest_s", value)

    def handle_batch(self, batch: Any) -> None:
        self._add("records", len(batch))

    def _add(self, name: str, value: float) -> None:
        with self._changing:
            self.figures[name] += value

    def _most(self, name: str, value: float) -> None:
        with self._changing:
            self.figures[name] = max(value, self.figures[name])


def consume() -> None:
    """Run a consumer until the input ends; print the figures so far at each line of it."""
    observed = Observed()
    logging.getLogger("penstock").addHandler(observed)
    with Consumer(STREAM, STREAM, observed.handle_batch, metrics=observed, metrics_interval_s=1.0):
        for _ in sys.stdin:
            print(json.dumps(observed.figures), flush=True)


def compute() -> None:
    """Keep a core busy."""
    while True:
        pass


def measure(arguments: Any) -> dict[str, Any]:
    """Run the consumer beside the load; return its row."""
    chance = random.Random(1)
    me = [sys.executable, __file__]
    busy: list[subprocess.Popen[bytes]] = []
    with LocalKinesisProcess(limits=True) as server:
        server.create_stream(STREAM, shards=arguments.shards)
        client = server.client()
        with subprocess.Popen(
            [*me, "consume"],
            env={**os.environ, **server.environ()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as reader:

            def figures() -> dict[str, float]:
                assert reader.stdin is not None
                assert reader.stdout is not None
                reader.stdin.write("\n")
                reader.stdin.flush()
                return dict(json.loads(reader.stdout.readline()))

            try:
                began_s = time.monotonic()
                while figures()["held"] < arguments.shards:
                    if time.monotonic() > began_s + START_S_MAX:
                        raise SystemExit(f"after {START_S_MAX:.0f} s: {figures()}")
                    time.sleep(0.5)
                held_after_s = time.monotonic() - began_s
                busy += [subprocess.Popen([*me, "compute"]) for _ in range(arguments.load)]
                before = figures()
                began_s = next_s = time.monotonic()
                while (now_s := time.monotonic()) < began_s + arguments.seconds:
                    if now_s < next_s:
                        time.sleep(next_s - now_s)
                    client.put_record(
                        StreamName=STREAM,
                        Data=b"x" * 200,
                        PartitionKey="k",
                        ExplicitHashKey=str(chance.randrange(2**128)),
                    )
                    next_s += chance.expovariate(arguments.per_s)
                took_s = time.monotonic() - began_s
                after = figures()
            finally:
                for process in busy:
                    process.kill()
                if reader.stdin is not None:
                    reader.stdin.close()
    return {
        "name": f"{arguments.shards} shards, {arguments.per_s:g}/s, load of {arguments.load}",
        "leases late": round(after["late"]),
        "leases lost": round(after["lost"]),
        "longest without renewal s": f"{after['longest_s']:.0f}" if after["late"] else f"< {DURATION_S:.0f}",
        "renewals/s": round((after["renewals"] - before["renewals"]) / took_s, 1),
        "slowest renewal s": round(after["slowest_s"], 2),
        "records/s": round((after["records"] - before["records"]) / took_s, 1),
        "all held after s": round(held_after_s, 1),
    }


def main() -> None:
    """Measure one consumer and print its row."""
    if sys.argv[1:] == ["consume"]:
        consume()
        return
    if sys.argv[1:] == ["compute"]:
        compute()
        return
    parser = parser_of(__doc__)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--per-s", type=float, default=200.0, help="records per second over all shards")
    parser.add_argument("--load", type=int, default=4, help="processes that keep a core busy each")
    parser.add_argument("--seconds", type=float, default=60.0, help="measured time")
    arguments = parser.parse_args()
    print_rows([measure(arguments)], as_json=arguments.json)


if __name__ == "__main__":
    main()
