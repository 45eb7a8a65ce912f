"""A queue's consumer beside a loop over boto3: records per second of wall time and of the consumer's CPU time, and latency.

    python bench/queue_consumer.py [RECORDS]

The latency is the time from before the put to the call of the handler, at 20 records a second. Each consumer runs in a process of its own, on an embedded Kinesis of its own; records have 200 bytes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from penstock_local import LocalKinesisProcess

MEASURED = """
import asyncio, sys, threading, time
import boto3
from penstock import AsyncQueueConsumer, QueueConsumer

COUNT = int(sys.argv[1])
OPTIONS = {"visibility_timeout_s": 60, "wait_time_s": 1}
done = 0
lock, ended = threading.Lock(), threading.Event()

def add(count):
    global done, cpu_s, wall_s
    with lock:
        if not done:
            cpu_s, wall_s = time.process_time(), time.monotonic()
        done += count
        if done >= COUNT:
            cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
            print(f"{COUNT / cpu_s:8,.0f} records per CPU second {COUNT / wall_s:8,.0f} per second", flush=True)
            ended.set()
"""
PROGRAMS = {
    "boto3, receive and acknowledge in a loop": """
kinesis = boto3.client("kinesis")
arn = kinesis.list_queues()["QueueSummaries"][0]["QueueARN"]
while done < COUNT:
    records = kinesis.receive_queue_records(QueueARN=arn, WaitTimeSeconds=1, VisibilityTimeoutSeconds=60)["QueueRecords"]
    if records:
        entries = [{"ReceiptHandle": each["ReceiptHandle"]} for each in records]
        kinesis.acknowledge_queue_records(QueueARN=arn, Entries=entries)
        add(len(records))
""",
    "QueueConsumer, concurrency=10": """
with QueueConsumer("q", lambda _: add(1), concurrency=10, **OPTIONS):
    ended.wait()
""",
    "QueueConsumer, concurrency=50": """
with QueueConsumer("q", lambda _: add(1), concurrency=50, **OPTIONS):
    ended.wait()
""",
    "QueueConsumer, batch_records_max=100": """
with QueueConsumer("q", lambda batch: add(len(batch)), concurrency=4, batch_records_max=100, **OPTIONS):
    ended.wait()
""",
    "AsyncQueueConsumer, concurrency=100": """
async def handle(_):
    add(1)

async def main():
    async with AsyncQueueConsumer("q", handle, concurrency=100, **OPTIONS):
        await asyncio.to_thread(ended.wait)

asyncio.run(main())
""",
}


LATENCY_COUNT = 200
LATENCY_PER_S = 20
LATENCY = """
import asyncio, sys, threading, time
from statistics import median, quantiles
import boto3
from penstock import AsyncQueueConsumer, QueueConsumer

COUNT = int(sys.argv[1])
latencies, ended = [], threading.Event()

def add(data):
    if data == b"begin":
        print("begun", flush=True)
        return
    latencies.append(time.time() - float(data))
    if len(latencies) == COUNT:
        print(f"{median(latencies) * 1000:8.1f} ms median {quantiles(latencies, n=100)[98] * 1000:8.1f} ms p99", flush=True)
        ended.set()
"""
LATENCY_PROGRAMS = {
    "boto3, long polls in a loop": """
kinesis = boto3.client("kinesis")
arn = kinesis.list_queues()["QueueSummaries"][0]["QueueARN"]
while not ended.is_set():
    records = kinesis.receive_queue_records(QueueARN=arn, WaitTimeSeconds=10)["QueueRecords"]
    for each in records:
        add(each["Data"])
    if records:
        entries = [{"ReceiptHandle": each["ReceiptHandle"]} for each in records]
        kinesis.acknowledge_queue_records(QueueARN=arn, Entries=entries)
""",
    "QueueConsumer, default options": """
with QueueConsumer("q", lambda record: add(record.data)):
    ended.wait()
""",
    "AsyncQueueConsumer, default options": """
async def handle(record):
    add(record.data)

async def main():
    async with AsyncQueueConsumer("q", handle):
        await asyncio.to_thread(ended.wait)

asyncio.run(main())
""",
}


@contextlib.contextmanager
def queue_on_a_server() -> Iterator[tuple[Any, dict[str, str]]]:
    """Serve a stream `s` with a queue `q`; yield a client, and the environment of a consumer."""
    with LocalKinesisProcess(limits=False) as server:
        kinesis = server.client("kinesis")
        kinesis.create_stream(StreamName="s", StreamModeDetails={"StreamMode": "ON_DEMAND"})
        kinesis.get_waiter("stream_exists").wait(StreamName="s", WaiterConfig={"Delay": 1})
        arn = kinesis.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
        start = {"StreamARN": arn, "StartingPosition": {"Type": "TRIM_HORIZON"}}
        queue = kinesis.create_queue(QueueName="q", StreamConfigurationList=[start])["QueueDescription"]
        while (
            kinesis.describe_queue(QueueARN=queue["QueueARN"])["QueueDescription"]["QueueStatus"] != "ACTIVE"
        ):
            pass
        yield kinesis, {**os.environ, **server.environ()}


def measure(name: str, program: str, count: int) -> None:
    """Run one consumer and print its figures."""
    with queue_on_a_server() as (kinesis, environ):
        for first in range(0, count, 500):
            records = [
                {"Data": os.urandom(200), "PartitionKey": str(number)}
                for number in range(first, min(first + 500, count))
            ]
            kinesis.put_records(StreamName="s", Records=records)
        print(f"{name:42}", end="", flush=True)
        subprocess.run(
            [sys.executable, "-c", MEASURED + program, str(count)], env=environ, check=True, timeout=300
        )


def measure_latency(name: str, program: str) -> None:
    """Put records at an even pace while one consumer runs; print its latencies."""
    with queue_on_a_server() as (kinesis, environ):
        kinesis.put_record(StreamName="s", Data=b"begin", PartitionKey="k")
        command = [sys.executable, "-c", LATENCY + program, str(LATENCY_COUNT)]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as consumer:
            assert consumer.stdout is not None
            if consumer.stdout.readline() != "begun\n":
                raise RuntimeError(f"{name} ended before its first record")
            began_s = time.monotonic() + 0.5  # then its acknowledgement is done
            for number in range(LATENCY_COUNT):
                time.sleep(max(0.0, began_s + number / LATENCY_PER_S - time.monotonic()))
                kinesis.put_record(StreamName="s", Data=str(time.time()).encode(), PartitionKey=str(number))
            print(f"{name:42}{consumer.stdout.readline()}", end="", flush=True)


if __name__ == "__main__":
    for each, text in PROGRAMS.items():
        measure(each, text, int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
    for each, text in LATENCY_PROGRAMS.items():
        measure_latency(each, text)
