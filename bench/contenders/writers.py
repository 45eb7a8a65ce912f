"""Four processes write one stream near its quota: a Spark task's writer each, or boto3's loop.

Each process writes its share of the records, with a key of their own, and waits until all are acknowledged. The time counts
from the moment at which all processes are ready.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from program import Figures, run

PROCESSES = 4
DATA = b"x" * 300
BOTO3_PAUSE_S = 0.1


def write_task(url: str, stream: str, keys: list[str]) -> int:
    """Write as a task of the sink does; return the number of requests."""
    from penstock.producer import TaskWriter
    from penstock.wiring import AwsOptions, open_kinesis

    writer = TaskWriter(open_kinesis(AwsOptions(endpoint_url=url, region="us-east-1")), stream)
    for key in keys:
        writer.write(DATA, key)
    return writer.finish().request_count


def write_boto3(url: str, stream: str, keys: list[str]) -> int:
    """Send 500 at a time, and refused entries with the next ones after a tenth of a second."""
    import boto3

    client: Any = boto3.client("kinesis", endpoint_url=url, region_name="us-east-1")
    waiting = [{"Data": DATA, "PartitionKey": key} for key in reversed(keys)]
    requests = 0
    while waiting:
        batch = [waiting.pop() for _ in range(min(500, len(waiting)))]
        answer = client.put_records(StreamName=stream, Records=batch)
        requests += 1
        refused = [
            entry for entry, found in zip(batch, answer["Records"], strict=True) if "ErrorCode" in found
        ]
        waiting += reversed(refused)
        if refused:
            time.sleep(BOTO3_PAUSE_S)
    return requests


WRITERS = {"task": write_task, "boto3": write_boto3}


def work(name: str, stream: str, number: int, count: int) -> None:
    """Write one process's share, from the line that it reads on."""
    keys = [f"{number}-{index}" for index in range(count)]
    print("ready", flush=True)
    sys.stdin.readline()
    began_s = time.perf_counter()
    requests = WRITERS[name](os.environ["AWS_ENDPOINT_URL"], stream, keys)
    print(json.dumps([time.perf_counter() - began_s, requests]), flush=True)


def measure(name: str, stream: str, record_count: int, shard_count: int) -> Figures:
    """Run the processes, and return what they took together."""
    share = record_count // PROCESSES
    command = [sys.executable, str(Path(__file__)), "--work", name, stream]
    processes = [
        subprocess.Popen(
            [*command, str(number), str(share)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    began_s = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in processes]
    wall_s = time.perf_counter() - began_s
    found = [json.loads(answer) for answer in answers]
    times = [each[0] for each in found]
    return {
        "wall_s": wall_s,
        "quota_percent": 100 * record_count / (1000 * shard_count) / wall_s,
        "requests": float(sum(each[1] for each in found)),
        "slowest_by_fastest": max(times) / min(times),
    }


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        run(
            {
                name: lambda stream, turn, name=name, **options: measure(name, stream, **options)  # noqa: ARG005
                for name in WRITERS
            }
        )
