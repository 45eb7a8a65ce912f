"""Measure how long a record takes from its PutRecord to `foreachBatch`, or to a loop that polls with boto3.

Records are put by a process of its own, at random moments; each carries the moment before its put. The first ones, in
which a reader warms up, do not count. `idle` are single records after some seconds without any.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from program import DEADLINE_S, Figures, percentile, run
from spark_session import kinesis, running, session, wait_until

WARM_UP = 12
IDLE_S = 5.0
LAST = b"last"


def put(stream: str, per_s: float, seconds: float, idle_count: int) -> Figures:
    """Put warm-up records, a load and records after pauses; each has its kind and the moment of its put."""
    import boto3

    client, chance = boto3.client("kinesis"), random.Random(1)

    def send(kind: str, count: int = 1) -> None:
        data = f"{kind} {time.time()}".encode()
        entries = [{"Data": data, "PartitionKey": str(chance.random())} for _ in range(count)]
        client.put_records(StreamName=stream, Records=entries)

    for number in range(WARM_UP):
        send("warm")
        time.sleep(1.0 if number < 3 else 0.3)
    began_s = next_s = time.monotonic()
    at_once = max(1, round(per_s / 50))  # a busy writer puts several records in a call
    while next_s < began_s + seconds:
        time.sleep(max(0.0, next_s - time.monotonic()))
        send("load", at_once)
        next_s += chance.expovariate(per_s / at_once)
    for _ in range(idle_count):
        time.sleep(IDLE_S)
        send("idle")
    time.sleep(1.0)
    client.put_record(StreamName=stream, Data=LAST, PartitionKey="last")
    return {}


class Arrivals:
    """The latencies of each kind of record."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {"warm": [], "load": [], "idle": []}
        self.is_over = threading.Event()

    def note(self, data: bytes, now_s: float) -> None:
        if data == LAST:
            self.is_over.set()
            return
        kind, _, put_s = data.decode().partition(" ")
        self.times[kind].append(now_s - float(put_s))

    def figures(self) -> Figures:
        load = self.times["load"]
        found = {
            "records": float(len(load)),
            "median_s": statistics.median(load),
            "p99_s": percentile(load, 0.99),
        }
        if self.times["idle"]:
            found["after_idling_s"] = statistics.median(self.times["idle"])
        return found


def loaded(stream: str, load: list[float], follow: Callable[[Arrivals, Callable[[], None]], None]) -> Figures:
    """Start the writer once a reader follows the stream; return the reader's records."""
    arrivals = Arrivals()
    writers: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        import json

        options = dict(zip(("per_s", "seconds", "idle_count"), load, strict=True))
        command = [sys.executable, __file__, "put", json.dumps({"stream": stream, **options})]
        writers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    try:
        follow(arrivals, begin)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    return arrivals.figures()


def penstock(stream: str, turn: int, load: list[float], daemon: str = "penstock.spark.daemon") -> Figures:
    def follow(arrivals: Arrivals, begin: Callable[[], None]) -> None:
        def note(batch: Any, _: int) -> None:
            rows = batch.select("data").collect()
            now_s = time.time()
            for row in rows:
                arrivals.note(bytes(row.data), now_s)

        with (
            session(daemon=daemon) as spark,
            running(kinesis(spark, stream, f"{stream}-{turn}"), note) as query,
        ):
            begin()
            wait_until(query, arrivals.is_over.is_set, "the load")

    return loaded(stream, load, follow)


def boto3(stream: str, turn: int, load: list[float]) -> Figures:
    """Poll every shard five times a second, which is all that the service allows."""
    del turn

    def follow(arrivals: Arrivals, begin: Callable[[], None]) -> None:
        import boto3

        client = boto3.client("kinesis")
        iterators = {
            shard["ShardId"]: client.get_shard_iterator(
                StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            for shard in client.list_shards(StreamName=stream)["Shards"]
        }
        begin()
        end_s = time.monotonic() + DEADLINE_S
        while not arrivals.is_over.is_set():
            if time.monotonic() > end_s:
                raise SystemExit(f"the load took longer than {DEADLINE_S:g} s")
            round_ends_s = time.monotonic() + 0.21
            for shard, iterator in iterators.items():
                page = client.get_records(ShardIterator=iterator)
                iterators[shard] = page["NextShardIterator"]
                now_s = time.time()
                for record in page["Records"]:
                    arrivals.note(record["Data"], now_s)
            time.sleep(max(0.0, round_ends_s - time.monotonic()))

    return loaded(stream, load, follow)


if __name__ == "__main__":
    run({"penstock": penstock, "boto3": boto3, "put": put})
