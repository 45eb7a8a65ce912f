"""Measure `penstock record` and a replay of its file: time against the read quota, and the memory of both processes.

    python bench/recording.py [--mb 1000] [--shards 32] [--json]

An embedded server with the service's quotas runs in a separate process. It is filled as fast as the quotas allow, with records
of 10 kB that do not compress. The command records them in a process of its own. Another server replays the file, and one
client reads all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from contenders import process_tree

_RECORD_BYTES = 10_000
_CALL_RECORDS = 100
_QUOTA_BYTES_PER_S = 2 * 2**20


def fill(server: Any, shard: int, shards: int, count: int) -> None:
    client, chance = server.client("kinesis"), random.Random(shard)
    hash_key = str(2**128 // shards * shard + 1)
    for start in range(0, count, _CALL_RECORDS):
        records = [
            {
                "Data": chance.randbytes(_RECORD_BYTES),
                "PartitionKey": f"k{shard}",
                "ExplicitHashKey": hash_key,
            }
            for _ in range(min(_CALL_RECORDS, count - start))
        ]
        while records:
            answers = client.put_records(StreamName="orders", Records=records)["Records"]
            records = [
                record for record, answer in zip(records, answers, strict=True) if "ErrorCode" in answer
            ]
            time.sleep(0.3 if records else 0)


def record(server: Any, path: Path) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "penstock",
        "record",
        "orders",
        "--since",
        "1d",
        "-o",
        str(path),
        "--json",
    ]
    process = subprocess.Popen(
        command, env={**os.environ, **server.environ()}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    peak = cpu_s = 0.0
    while process.poll() is None:
        peak = max(peak, process_tree.memory_mb(process.pid))
        cpu_s = max(cpu_s, process_tree.cpu_s(process.pid))
        time.sleep(0.1)
    assert process.stdout is not None
    with process.stdout as said:
        return {**json.loads(said.read()), "peak_mb": peak, "cpu_s": cpu_s}


def replay(path: Path) -> dict[str, Any]:
    from penstock_local import LocalKinesis

    began = time.monotonic()
    read_bytes = 0
    with LocalKinesis.process(replay=(path,), limits=False) as server:
        started_s = time.monotonic() - began
        client = server.client("kinesis")
        peak = 0.0
        for shard in client.list_shards(StreamName="orders")["Shards"]:
            iterator = client.get_shard_iterator(
                StreamName="orders", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            is_read = False
            while not is_read:
                page = client.get_records(ShardIterator=iterator)
                read_bytes += sum(len(each["Data"]) for each in page["Records"])
                iterator, is_read = page["NextShardIterator"], not page["MillisBehindLatest"]
                peak = max(peak, process_tree.memory_mb(server.pid))
        return {
            "start_s": started_s,
            "read_s": time.monotonic() - began - started_s,
            "read_bytes": read_bytes,
            "peak_mb": peak,
        }


def measure(mb: int, shards: int) -> dict[str, Any]:
    from penstock_local import LocalKinesis

    count = mb * 1_000_000 // _RECORD_BYTES // shards
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "incident.penstock"
        with LocalKinesis.process() as server:
            server.create_stream("orders", shards)
            threads = [
                threading.Thread(target=fill, args=(server, shard, shards, count)) for shard in range(shards)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            recorded = record(server, path)
        replayed = replay(path)
    assert replayed["read_bytes"] == count * shards * _RECORD_BYTES
    quota_s = recorded["record_bytes"] / (_QUOTA_BYTES_PER_S * shards)
    return {
        "mb": mb,
        "shards": shards,
        "record_s": recorded["seconds"],
        "of_quota": quota_s / recorded["seconds"],
        "record_cpu_s": recorded["cpu_s"],
        "record_peak_mb": recorded["peak_mb"],
        "replay_start_s": replayed["start_s"],
        "replay_read_s": replayed["read_s"],
        "replay_peak_mb": replayed["peak_mb"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=1000, help="megabytes of records")
    parser.add_argument("--shards", type=int, default=32, help="shards")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    row = measure(args.mb, args.shards)
    if args.json:
        print(json.dumps(row))
        return 0
    print(
        f"record: {row['mb']} MB of {row['shards']} shards in {row['record_s']:.1f} s, {row['of_quota']:.0%} of the read quota, "
        f"{row['record_cpu_s']:.1f} CPU seconds, peak {row['record_peak_mb']:.0f} MB\n"
        f"replay: there after {row['replay_start_s']:.1f} s, read in {row['replay_read_s']:.1f} s, peak {row['replay_peak_mb']:.0f} MB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
