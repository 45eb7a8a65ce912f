"""Measure how fast records are written and what they cost: Penstock's producers beside boto3 and async-kinesis, in one run.

    python bench/producer.py [--records 100000] [--json] [--no-peer]

An embedded server in a separate process, without quotas, takes everything. Each writer has its own process and its own stream of
four shards. The bench counts user records (100 bytes of data, one of 10,000 keys) from the first put to the last
acknowledgement, and the processor time of the writer's process only. `records/s` depends on how many processors the server
leaves to the writer; `CPU s per million` does not. Every record is counted in the stream afterwards, and a writer that
lost one fails the bench.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ASYNC_KINESIS = "async-kinesis==3.0.1"
PEER_FOLDER = Path(__file__).resolve().parent.parent / ".peers" / ASYNC_KINESIS.replace("==", "-")
SHARDS = 4
KEYS = 10_000
DATA_BYTES = 100
TIMEOUT_S = 300.0


def records(count: int) -> Iterator[tuple[bytes, str]]:
    """Yield data and key of each record, the same for every writer."""
    padding = "x" * (DATA_BYTES - 10)
    for number in range(count):
        yield f"{number:010d}{padding}".encode(), f"customer-{number * 7919 % KEYS:07d}"


# --- the writers, each run in a process of its own --------------------------------------------------------------


def write_producer(url: str, stream: str, count: int, **options: Any) -> None:
    from penstock.producer import Producer

    with Producer(stream, endpoint_url=url, region="us-east-1", **options) as producer:
        for data, key in records(count):
            producer.put(data, key)


def write_task(url: str, stream: str, count: int, **options: Any) -> None:
    from penstock.producer import TaskWriter, TaskWriterOptions
    from penstock.wiring import AwsOptions, open_kinesis

    kinesis = open_kinesis(AwsOptions(endpoint_url=url, region="us-east-1"))
    writer = TaskWriter(kinesis, stream, TaskWriterOptions(**options))
    for data, key in records(count):
        writer.write(data, key)
    assert writer.finish().user_record_count == count


def write_boto3(url: str, stream: str, count: int) -> None:
    """Send 500 at a time and what was refused again: the loop that everybody writes, without its usual mistake."""
    import boto3

    client = boto3.client("kinesis", endpoint_url=url, region_name="us-east-1")

    def send(batch: list[dict[str, Any]]) -> None:
        while batch:
            answer = client.put_records(StreamName=stream, Records=batch)
            batch = [
                entry for entry, word in zip(batch, answer["Records"], strict=True) if "ErrorCode" in word
            ]

    batch: list[dict[str, Any]] = []
    for data, key in records(count):
        batch.append({"Data": data, "PartitionKey": key})
        if len(batch) == 500:
            send(batch)
            batch = []
    send(batch)


def write_async_kinesis(url: str, stream: str, count: int) -> None:
    """Its own rate limits are lifted, so that its work is measured; 499 since it builds batches of one more."""
    from kinesis import Producer
    from kinesis.processors import StringProcessor

    async def write() -> None:
        async with Producer(
            stream_name=stream,
            endpoint_url=url,
            region_name="us-east-1",
            processor=StringProcessor(),
            batch_size=499,
            put_rate_limit_per_shard=10**9,
            put_bandwidth_limit_per_shard=10**9,
        ) as producer:
            for data, key in records(count):
                await producer.put(data.decode(), partition_key=key)
            await producer.flush()

    asyncio.run(write())


Writer = Callable[[str, str, int], None]

WRITERS: dict[str, Writer] = {
    "penstock Producer, aggregated": write_producer,
    "penstock TaskWriter, aggregated": lambda *to: write_task(*to, aggregation=True),
    "penstock Producer": lambda *to: write_producer(*to, aggregation=False),
    "penstock Producer, ordering none": lambda *to: write_producer(*to, aggregation=False, ordering="none"),
    "penstock TaskWriter": write_task,
    "boto3 put_records": write_boto3,
    "async-kinesis 3.0.1": write_async_kinesis,
}


def run_one(name: str, url: str, stream: str, count: int) -> None:
    """Warm up with a few records, then measure; prints one JSON line."""
    WRITERS[name](url, stream, 1000)
    cpu_s, began_s = _cpu_s(), time.perf_counter()
    WRITERS[name](url, stream, count)
    print(json.dumps({"cpu_s": _cpu_s() - cpu_s, "wall_s": time.perf_counter() - began_s}))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# --- the run ----------------------------------------------------------------------------------------------------


def peer_python() -> tuple[str | None, str]:
    """Return a Python that has async-kinesis, or the reason why there is none; it is installed into `.peers` once."""
    python = PEER_FOLDER / "bin" / "python"
    ready = PEER_FOLDER / "installed"
    if not ready.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", str(PEER_FOLDER)], check=True, capture_output=True)
            subprocess.run(
                [
                    str(python),
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    ASYNC_KINESIS,
                ],
                check=True,
                capture_output=True,
                timeout=TIMEOUT_S,
            )
        except (subprocess.SubprocessError, OSError) as error:
            return None, f"{ASYNC_KINESIS} could not be installed: {error}"
        ready.touch()
    return str(python), ""


def measure(server: Any, python: str, name: str, count: int, number: int) -> dict[str, Any]:
    """Run one writer; count what arrived."""
    stream = f"bench-{number}"
    server.create_stream(stream, shards=SHARDS)
    command = [python, __file__, "--one", name, "--url", server.endpoint_url, "--stream", stream]
    done = subprocess.run(
        [*command, "--records", str(count)],
        env={**os.environ, **server.environ()},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    cost = json.loads(done.stdout.splitlines()[-1])
    found, kinesis_records = arrived(server, stream)
    if found != count + 1000:
        raise SystemExit(f"{name}: {count + 1000} records were put and {found} are in the stream")
    return {
        "name": name,
        "records_per_s": round(count / cost["wall_s"]),
        "cpu_s_per_million": round(cost["cpu_s"] / count * 1e6, 2),
        "records_per_kinesis_record": round(found / kinesis_records, 1),
    }


def arrived(server: Any, stream: str) -> tuple[int, int]:
    """Count user records and Kinesis records in a stream."""
    from penstock.core.aggregation import deaggregate

    client = server.client()
    user_count = kinesis_count = 0
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while True:
            page = client.get_records(ShardIterator=iterator)
            if not page["Records"]:
                break
            kinesis_count += len(page["Records"])
            user_count += sum(len(deaggregate(record["Data"]) or [record]) for record in page["Records"])
            iterator = page["NextShardIterator"]
    return user_count, kinesis_count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=100_000, help="user records of each writer")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of rows")
    parser.add_argument("--no-peer", action="store_true", help="do not measure async-kinesis")
    for hidden in ("--one", "--url", "--stream"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run_one(args.one, args.url, args.stream, args.records)
        return 0
    from penstock.local import LocalKinesisProcess

    rows, skipped = [], []
    with LocalKinesisProcess(limits=False) as server:
        for number, name in enumerate(WRITERS):
            python: str | None = sys.executable
            if name.startswith("async-kinesis"):
                python, why = (None, "--no-peer") if args.no_peer else peer_python()
                if python is None:
                    skipped.append(f"{name}: skipped, {why}")
                    continue
            rows.append(measure(server, python, name, args.records, number))
    if args.json:
        print(json.dumps(rows))
        return 0
    base = next(row["cpu_s_per_million"] for row in rows if row["name"].startswith("boto3"))
    print(f"{'name':<36}{'records/s':>12}{'CPU s per million':>20}{'of boto3':>10}{'per Kinesis record':>21}")
    for row in rows:
        print(
            f"{row['name']:<36}{row['records_per_s']:>12,}{row['cpu_s_per_million']:>20.2f}"
            f"{row['cpu_s_per_million'] / base:>10.2f}{row['records_per_kinesis_record']:>21.1f}"
        )
    for line in skipped:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
