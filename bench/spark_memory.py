"""Measure the memory of a Spark query that reads a backlog, by part: the JVM and each kind of Python process.

    python bench/spark_memory.py [--mb 100] [--shards 4] [--data-bytes 1024] [--per-aggregate 0] [--turns 1] [--json]
    python bench/spark_memory.py --empty ...

An embedded server without quotas runs in a process of its own. The query is that of the rows of `make bench`: `local[2]`, Penstock's
worker daemon, read twice in one session. The memory of each process is its proportional set size (PSS), sampled several times a
second. Each part has its own peak; `at the peak` are the parts at the moment at which the whole tree is largest. With `--empty` a
source in Python that has one row takes the place of Penstock's: Spark's own share.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "contenders"))

import process_tree
from harness import fill
from row_printing import parser_of, print_rows
from table import Streams

from penstock_local import LocalKinesisProcess

SAMPLE_S = 0.15
CONTENDERS = Path(__file__).parent / "contenders"


def part_of(pid: int, root: int) -> str | None:
    """Return the part of the query that a process belongs to; None if it has ended."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return None
    if pid == root:
        return "program"
    if line.split(" ", 1)[0].endswith("java"):
        return "JVM"
    if "python_streaming_source_runner" in line:
        return "planner"
    if "pyspark.worker" in line:
        return "tasks"
    return "Spark's planning"  # it looks the source up, creates it, and plans the tasks


def sample(root: int) -> Counter[str]:
    """Return the memory of each part in MB."""
    found: Counter[str] = Counter()
    for pid in process_tree.members(root):
        if (part := part_of(pid, root)) is not None:
            found[part] += process_tree.memory_mb(pid, with_children=False)
    return found


def watch(program: list[str], environ: dict[str, str]) -> tuple[Counter[str], Counter[str], dict[str, float]]:
    """Run a program; return the parts at the tree's peak, each part's own peak, and the program's figures."""
    at_peak: Counter[str] = Counter()
    own: Counter[str] = Counter()
    with subprocess.Popen(program, env=environ, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            now = sample(process.pid)
            own |= now
            if now.total() > at_peak.total():
                at_peak = now
            time.sleep(SAMPLE_S)
        assert process.stdout is not None
        answer = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{program} ended with {process.returncode}")
    return at_peak, own, json.loads(answer.splitlines()[-1])


def measure(arguments: Any) -> dict[str, Any]:
    """Run the query several times; return the medians."""
    count = arguments.mb * 1_000_000 // arguments.data_bytes
    count -= count % (arguments.shards * max(1, arguments.per_aggregate))
    streams = Streams(arguments.shards, count, arguments.data_bytes, arguments.per_aggregate)
    peaks, owns, figures = [], [], []
    with LocalKinesisProcess(limits=False) as server:
        fill(server, "backlog", streams)
        environ = {**os.environ, **server.environ(), "BENCH_BEGAN_S": repr(time.time())}
        for turn in range(arguments.turns):
            options: dict[str, Any] = {"stream": "backlog", "turn": turn}
            if arguments.empty:
                program = [sys.executable, str(CONTENDERS / "start.py"), "python-source", json.dumps(options)]
            else:
                options |= {"record_count": count, "data_bytes": count * arguments.data_bytes}
                program = [sys.executable, str(CONTENDERS / "source.py"), "penstock", json.dumps(options)]
            at_peak, own, found = watch(program, environ)
            peaks.append(at_peak)
            owns.append(own)
            figures.append(found)
    parts = sorted({part for peak in owns for part in peak})

    def median(values: list[float]) -> int:
        return round(statistics.median(values))

    name = (
        "an empty query"
        if arguments.empty
        else f"{count * arguments.data_bytes / 1e6:.0f} MB, {arguments.shards} shards, {arguments.data_bytes} B"
    )
    row: dict[str, Any] = {"name": name, "MB at the peak": median([peak.total() for peak in peaks])}
    row |= {f"{part} at the peak": median([peak[part] for peak in peaks]) for part in parts}
    row |= {f"{part}, own peak": median([own[part] for own in owns]) for part in parts}
    row |= {
        key: round(statistics.median(found[key] for found in figures), 2)
        for key in figures[0]
        if key.endswith("wall_s")
    }
    return row


def main() -> None:
    """Measure one query and print its row."""
    parser = parser_of(__doc__)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--data-bytes", type=int, default=1024)
    parser.add_argument("--per-aggregate", type=int, default=0)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--empty", action="store_true", help="a source in Python with one row instead")
    arguments = parser.parse_args()
    print_rows([measure(arguments)], as_json=arguments.json)


if __name__ == "__main__":
    main()
