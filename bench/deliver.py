"""Measure `penstock deliver` beside a Spark program written by hand: freshness, and time and CPU seconds of a backlog.

    python bench/deliver.py [--mb 20 400] [--turns 3] [--schema raw|json] [--seconds 60] [--only backlog|freshness] [--json]

The embedded server runs in a process of its own, without quotas. Both contenders read the same stream with the same options of the source and
write Parquet, partitioned by date: the command with its defaults, and `contenders/table_by_hand.py`, which parses the same columns
and appends each batch. Each runs in a new process, the start of Spark included, and each in turn.

* backlog: two of them, of records of 1 kB on four shards, as the source's columns (raw) and as JSON. Wall and CPU seconds of the process and
  its descendants. The small one is mostly the start of Python and Spark. The difference of the two is the cost of records alone, in CPU
  seconds per GB. Each figure is the median of `--turns`.
* freshness: 1 MB/s for `--seconds`, with a batch every 5 s. The age of a row is the time from its PutRecords to the moment at which its
  file is in the table, seen by a look at the folder every 50 ms. The load begins after the first batch; its first 15 s do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent / "contenders"))
import process_tree
from program import percentile

RECORD_BYTES: Final = 1000
SHARDS: Final = 4
CALL_RECORDS: Final = 500
SCHEMA: Final = "id BIGINT, sent_ms BIGINT, price DOUBLE, country STRING, note STRING"
FRESHNESS_S: Final = 5
SETTLED_S: Final = 15.0
RUN_S_MAX: Final = 900.0
STOP_S_MAX: Final = 120.0
FILES: Final = "date=*/[!._]*.parquet"
_LOOK_S: Final = 0.05
_SAMPLE_S: Final = 0.4
BY_HAND: Final = Path(__file__).parent / "contenders" / "table_by_hand.py"
CONTENDERS: Final = ("penstock deliver", "by hand")


@dataclass(frozen=True)
class Job:
    """A delivery.

    Args:
        stream: Its stream.
        to: Folder of the table.
        schema: Columns, or `raw`.
        freshness_s: Time between two batches; 0 reads what is there and ends.
        options: Of the source.
    """

    stream: str
    to: str
    schema: str
    freshness_s: int
    options: dict[str, str]

    def command(self, contender: str) -> list[str]:
        """Return the command line of a contender."""
        if contender == "by hand":
            return [sys.executable, str(BY_HAND), json.dumps(vars(self))]
        until = ["--freshness", f"{self.freshness_s}s"] if self.freshness_s else ["--once"]
        options = [word for each in self.options.items() for word in ("--option", "=".join(each))]
        layout = ["--schema", self.schema, "--partition-by", "date(arrived)"]
        command = [sys.executable, "-m", "penstock", "deliver", self.stream, "--to", self.to]
        return [*command, *layout, *until, *options]


def records(first: int, count: int, chance: random.Random) -> list[dict[str, Any]]:
    """Return entries of PutRecords: JSON of 1 kB, with the moment."""
    found = []
    for number in range(first, first + count):
        head = {"id": number, "sent_ms": time.time_ns() // 10**6, "price": number / 8, "country": "de"}
        text = json.dumps({**head, "note": ""})
        note = f"{chance.getrandbits(4 * (RECORD_BYTES - len(text))):0{RECORD_BYTES - len(text)}x}"
        found.append({"PartitionKey": str(number), "Data": json.dumps({**head, "note": note}).encode()})
    return found


def put(client: Any, stream: str, entries: list[dict[str, Any]]) -> None:
    """Put entries, all of which must be accepted."""
    if client.put_records(StreamName=stream, Records=entries)["FailedRecordCount"]:
        raise RuntimeError("the server refused records")


def row_count(folder: str) -> int:
    """Return the rows of a table."""
    count: int = ds.dataset(folder, format="parquet", exclude_invalid_files=False).count_rows()
    return count


def loads() -> str:
    """Return the machine's load."""
    return f"{os.getloadavg()[0]:.1f}"


# --- a backlog ---------------------------------------------------------------------------------------------------


def backlog(
    server: Any, folder: str, sizes_mb: list[int], turns: int, schemas: list[str]
) -> list[dict[str, Any]]:
    """Deliver a small and a large stream by each contender, each turn in the other order."""
    chance, client = random.Random(1), server.client("kinesis")
    for mb in sizes_mb:
        server.create_stream(f"backlog-{mb}", shards=SHARDS)
        count = record_count(mb)
        for first in range(0, count, CALL_RECORDS):
            put(client, f"backlog-{mb}", records(first, min(CALL_RECORDS, count - first), chance))
    rows = []
    for schema in schemas:
        runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for turn in range(turns):
            for contender in CONTENDERS if turn % 2 == 0 else reversed(CONTENDERS):
                for mb in sizes_mb:
                    to = f"{folder}/{turn}-{contender.replace(' ', '-')}-{schema[:3].strip()}-{mb}"
                    job = Job(f"backlog-{mb}", to, schema, 0, {"fetchInterval": "0s"})
                    run = {"contender": contender, "mb": mb, **run_to_the_end(server, job, contender, mb)}
                    runs.setdefault((contender, mb), []).append(run)
                    print(json.dumps(run), file=sys.stderr, flush=True)
                    shutil.rmtree(to)
        rows += summary("raw" if schema == "raw" else "JSON", runs, sizes_mb)
    return rows


def summary(
    kind: str, runs: dict[tuple[str, int], list[dict[str, Any]]], sizes_mb: list[int]
) -> list[dict[str, Any]]:
    """Return the medians of each contender's runs, and of the quotients of the two in each turn."""
    small, large = sizes_mb
    whole = {who: [each["cpu_s"] for each in runs[who, large]] for who in CONTENDERS}
    start = {who: [each["cpu_s"] for each in runs[who, small]] for who in CONTENDERS}
    per_gb = {
        who: [
            (most - least) / (large - small) * 1000
            for most, least in zip(whole[who], start[who], strict=True)
        ]
        for who in CONTENDERS
    }
    figures = {f"cpu_s_of_{small}_mb": start, f"cpu_s_of_{large}_mb": whole, "cpu_s_per_gb_more": per_gb}
    rows: list[dict[str, Any]] = [
        {
            "measurement": f"backlog, {kind}",
            "contender": who,
            **{name: round(statistics.median(values[who]), 1) for name, values in figures.items()},
            "wall_s": statistics.median(each["wall_s"] for each in runs[who, large]),
            "peak_mb": max(each["peak_mb"] for each in runs[who, large]),
        }
        for who in CONTENDERS
    ]
    own, other = CONTENDERS
    quotients = {
        name: [mine / theirs for mine, theirs in zip(values[own], values[other], strict=True)]
        for name, values in figures.items()
    }
    shown = {
        name: f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"
        for name, each in quotients.items()
    }
    return [*rows, {"measurement": f"backlog, {kind}", "contender": f"{own} / {other}", **shown}]


def record_count(mb: int) -> int:
    """Return the number of records of a backlog."""
    return mb * 1_000_000 // RECORD_BYTES


def run_to_the_end(server: Any, job: Job, contender: str, mb: int) -> dict[str, Any]:
    """Run a contender until all is in the table."""
    count, load_before, began_s = record_count(mb), loads(), time.monotonic()
    process = subprocess.Popen(
        job.command(contender),
        env={**os.environ, **server.environ()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    cpu_s = peak_mb = 0.0
    while process.poll() is None:
        cpu_s = max(cpu_s, process_tree.cpu_s(process.pid))
        peak_mb = max(peak_mb, process_tree.memory_mb(process.pid))
        if time.monotonic() - began_s > RUN_S_MAX:
            process.kill()
            raise RuntimeError(f"{contender} took longer than {RUN_S_MAX:.0f} s")
        time.sleep(_SAMPLE_S)
    if process.returncode != 0 or row_count(job.to) != count:
        raise RuntimeError(
            f"{contender} ended with {process.returncode}, {row_count(job.to)} of {count} rows"
        )
    wall_s = time.monotonic() - began_s
    return {
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 2),
        "peak_mb": round(peak_mb),
        "load": f"{load_before} to {loads()}",
    }


# --- freshness ---------------------------------------------------------------------------------------------------


class Load:
    """Puts 1 MB/s on a thread until it is stopped."""

    def __init__(self, client: Any, stream: str) -> None:
        self._client, self._stream = client, stream
        self._is_over = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        chance, per_call = random.Random(2), 100
        next_s = time.monotonic()
        while not self._is_over.is_set():
            put(self._client, self._stream, records(self.count, per_call, chance))
            self.count += per_call
            next_s += per_call * RECORD_BYTES / 1e6
            self._is_over.wait(max(0.0, next_s - time.monotonic()))

    def stop(self) -> None:
        """Stop, when the last call has its answer."""
        self._is_over.set()
        self._thread.join()


class Watch:
    """Notes the age of each row of a table when its file is first seen, on a thread.

    Args:
        folder: The table.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_over = threading.Event()
        self._found: list[tuple[float, float]] = []
        self._seen = set(folder.glob(FILES))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            now_s, now_ms = time.monotonic(), time.time_ns() // 10**6
            for path in set(self._folder.glob(FILES)) - self._seen:
                self._seen.add(path)
                sent = pq.ParquetFile(path).read(["sent_ms"])["sent_ms"].to_pylist()
                self._found += [(now_s, (now_ms - each) / 1000) for each in sent]

    def finish(self, count: int) -> list[tuple[float, float]]:
        """Wait until so many rows are in the table; return the moment and the age in seconds of each."""
        end_s = time.monotonic() + RUN_S_MAX
        while len(self._found) < count:
            if time.monotonic() > end_s:
                raise RuntimeError(f"{len(self._found)} of {count} rows came")
            time.sleep(_SAMPLE_S)
        self._is_over.set()
        self._thread.join()
        return self._found


def wait_for_files(process: subprocess.Popen[bytes], folder: Path, contender: str) -> None:
    """Wait until a contender has written its first batch."""
    end_s = time.monotonic() + RUN_S_MAX
    while not any(folder.glob(FILES)):
        if process.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError(f"{contender} has written nothing")
        time.sleep(_SAMPLE_S)


def freshness(server: Any, folder: str, seconds: float) -> list[dict[str, Any]]:
    """Measure the age of rows by each contender, over a stream of its own."""
    rows = []
    for contender in CONTENDERS:
        stream = f"fresh-{contender.replace(' ', '-')}"
        server.create_stream(stream, shards=SHARDS)
        job = Job(stream, f"{folder}/{stream}", SCHEMA, FRESHNESS_S, {})
        client = server.client("kinesis")
        put(client, stream, records(-1, 1, random.Random(0)))
        process = subprocess.Popen(
            job.command(contender),
            env={**os.environ, **server.environ()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for_files(process, Path(job.to), contender)
            load_before = loads()
            watch = Watch(Path(job.to))
            load = Load(client, stream)
            began_s, cpu_before_s = time.monotonic(), process_tree.cpu_s(process.pid)
            try:
                time.sleep(SETTLED_S + seconds)
                cpu_s = process_tree.cpu_s(process.pid) - cpu_before_s
            finally:
                load.stop()
            mb = load.count * RECORD_BYTES / 1e6
            found = watch.finish(load.count)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S_MAX)
        ages = [age_s for moment_s, age_s in found if moment_s > began_s + SETTLED_S]
        rows.append(
            {
                "measurement": "freshness",
                "contender": contender,
                "rows": len(ages),
                "mb_per_s": round(mb / (SETTLED_S + seconds), 2),
                "p50_s": round(percentile(ages, 0.5), 2),
                "p99_s": round(percentile(ages, 0.99), 2),
                "most_s": round(max(ages), 2),
                "cpu_s_per_gb": round(cpu_s / mb * 1000, 1),
                "load": f"{load_before} to {loads()}",
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--mb", type=int, nargs=2, default=[20, 400], help="of the two backlogs (default: 20 400)"
    )
    parser.add_argument("--turns", type=int, default=3, help="of the backlogs (default: 3)")
    parser.add_argument("--schema", choices=("raw", "json"), help="one of the backlogs' layouts")
    parser.add_argument("--seconds", type=float, default=60.0, help="of freshness (default: 60)")
    parser.add_argument("--only", choices=("backlog", "freshness"), help="one of the measurements")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of rows")
    args = parser.parse_args()
    from penstock_local import LocalKinesisProcess

    rows = []
    with tempfile.TemporaryDirectory() as folder, LocalKinesisProcess(limits=False) as server:
        if args.only != "freshness":
            schemas = {"raw": ["raw"], "json": [SCHEMA]}.get(args.schema, ["raw", SCHEMA])
            rows += backlog(server, folder, args.mb, args.turns, schemas)
        if args.only != "backlog":
            rows += freshness(server, folder, args.seconds)
    if args.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        figures = ", ".join(
            f"{name} {value}" for name, value in row.items() if name not in ("measurement", "contender")
        )
        print(f"{row['measurement']:14} {row['contender']:26} {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
