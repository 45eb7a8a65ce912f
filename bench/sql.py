"""`penstock sql` beside a plain loop of GetRecords: CPU seconds, MB/s, peak memory and the time to the first row.

    python bench/sql.py [--megabytes 100] [--shards 10] [--record-bytes 440] [--json]

It asks a stream and a recording. Each contender is a process of its own. CPU seconds are those of the whole process, with its start.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from contenders import process_tree
from row_printing import parser_of, print_rows

from penstock_local import LocalKinesis

_LOOP = """
import concurrent.futures, sys, time, boto3
stream = sys.argv[1]
client = boto3.client("kinesis")
def read(shard):
    iterator = client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")["ShardIterator"]
    count = 0
    while True:
        began = time.monotonic()
        page = client.get_records(ShardIterator=iterator)
        count += len(page["Records"])
        if page["MillisBehindLatest"] == 0:
            return count
        iterator = page["NextShardIterator"]
        size = sum(len(record["Data"]) for record in page["Records"])
        time.sleep(max(0, began + max(0.21, size / 2**21) - time.monotonic()))
shards = [shard["ShardId"] for shard in client.list_shards(StreamName=stream)["Shards"]]
with concurrent.futures.ThreadPoolExecutor(len(shards)) as pool:
    print(sum(pool.map(read, shards)))
"""


_CALL_BYTES = 4_000_000


def fill(server: Any, megabytes: int, shards: int, record_bytes: int = 440) -> tuple[int, float]:
    """Put JSON documents; return their number and megabytes."""
    server.create_stream("orders", shards)
    client = server.client("kinesis")
    chance = random.Random(1)
    count, size = 0, 0
    while size < megabytes * 1_000_000:
        records = []
        for _ in range(max(1, min(500, _CALL_BYTES // record_bytes))):
            note = chance.randbytes(max(1, record_bytes // 2 - 20)).hex()
            order = {"order": count, "type": chance.choice("abcdefgh"), "note": note}
            records.append({"Data": json.dumps(order).encode(), "PartitionKey": str(chance.random())})
            count += 1
        size += sum(len(record["Data"]) for record in records)
        assert client.put_records(StreamName="orders", Records=records)["FailedRecordCount"] == 0
    return count, size / 1_000_000


def measure(name: str, arguments: list[str], megabytes: float, environment: dict[str, str]) -> dict[str, Any]:
    """Run one contender."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.monotonic()
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdout is not None
        peaks_mb = [0.0]
        watcher = threading.Thread(target=_watch, args=(process, peaks_mb))
        watcher.start()
        process.stdout.readline()
        first_s = time.monotonic() - began_s
        for _ in process.stdout:
            pass
        watcher.join()
    wall_s = time.monotonic() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.returncode == 0, name
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "name": name,
        "first row": f"{first_s:.1f} s",
        "wall": f"{wall_s:.1f} s",
        "CPU": f"{cpu_s:.1f} s",
        "peak memory": f"{max(peaks_mb):.0f} MB",
        "MB per CPU second": round(megabytes / cpu_s, 1),
        "MB/s": round(megabytes / wall_s, 1),
    }


def _watch(process: subprocess.Popen[bytes], peaks_mb: list[float]) -> None:
    while process.poll() is None:
        peaks_mb.append(process_tree.memory_mb(process.pid))
        time.sleep(0.1)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--record-bytes", type=int, default=440)
    options = parser.parse_args()
    sql = ["-m", "penstock", "sql", "--format", "json"]
    count_all = "select count(*) n from {}"
    by_type = "select json->>'type' t, count(*) n from {} group by 1"
    with LocalKinesis.process(limits=False, settle_s=0.0) as server, tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **server.environ()}
        _, megabytes = fill(server, options.megabytes, options.shards, options.record_bytes)
        file = str(Path(folder) / "orders.penstock")
        command = [sys.executable, "-m", "penstock", "record", "orders", "--since", "1h", "-o", file]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        contenders = [
            ("loop of GetRecords, boto3", ["-c", _LOOP, "orders"]),
            ("stream: count(*)", [*sql, count_all.format("orders")]),
            ("stream: JSON, group by", [*sql, by_type.format("orders")]),
            ("recording: first of all rows", [*sql, f"select sequenceNumber, text from '{file}'"]),
            ("recording: count(*)", [*sql, count_all.format(f"'{file}'")]),
            ("recording: JSON, group by", [*sql, by_type.format(f"'{file}'")]),
        ]
        rows = [measure(name, arguments, megabytes, environment) for name, arguments in contenders]
    print_rows(rows, as_json=options.json)


if __name__ == "__main__":
    main()
