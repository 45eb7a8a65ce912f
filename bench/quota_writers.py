"""Measure the tasks of one write near the quota, in virtual time: the share of the quota, the calls, and how alike the tasks are.

    python bench/quota_writers.py [--records 200000] [--shards 24] [--tasks 4] [--latency-ms 5] [--json]

Each task is a `TaskWriter` with its own thread, rows and keys, beside a loop with boto3's shape: 500 records a call, refused
entries again with the next rows after a tenth of a second. The clock is virtual: one thread runs at a time, a call takes `--latency-ms`,
a row `--row-us`. The figures are the same on any machine, at any load, so two versions can be compared.
A shard accepts 1,000 records and 1 MiB a second, and one second's worth at once after a pause.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from penstock.core.hash_key import FULL_RANGE, HashRange, hash_partition_key
from penstock.core.limits import SHARD_WRITE_BYTES_PER_S_MAX, SHARD_WRITE_RECORDS_PER_S_MAX
from penstock.core.put_entry import EntryAnswer
from penstock.core.shard import Shard
from penstock.ports.kinesis import ShardListing
from penstock.producer import TaskWriter, TaskWriterOptions

REFUSED = "ProvisionedThroughputExceededException"
DATA = b"x" * 300
BOTO3_PAUSE_S = 0.1
ROWS_AT_ONCE = 50


class VirtualThreads:
    """A clock for threads of which one runs at a time: the one whose moment is the earliest."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._waiting: list[tuple[float, int, threading.Event]] = []
        self._number = 0

    def monotonic_s(self) -> float:
        return self._now_s

    def wall_ms(self) -> int:
        return round(1000 * self._now_s)

    def sleep(self, duration_s: float) -> None:
        """Let the other threads run until the clock has advanced by so much."""
        turn = threading.Event()
        self._number += 1
        heapq.heappush(self._waiting, (self._now_s + max(0.0, duration_s), self._number, turn))
        self._pass_on()
        turn.wait()

    def _pass_on(self) -> None:
        if self._waiting:
            self._now_s, _, turn = heapq.heappop(self._waiting)
            turn.set()

    def run(self, works: Sequence[Callable[[], None]]) -> list[float]:
        """Run functions in threads; return when each ended."""
        ended_s = [0.0] * len(works)

        def work_of(place: int, turn: threading.Event) -> None:
            turn.wait()
            works[place]()
            ended_s[place] = self._now_s
            self._pass_on()

        threads = []
        for place in range(len(works)):
            turn = threading.Event()
            heapq.heappush(self._waiting, (0.01 * place, place - len(works), turn))
            threads.append(threading.Thread(target=work_of, args=(place, turn)))
            threads[-1].start()
        self._pass_on()
        for thread in threads:
            thread.join()
        return ended_s


class QuotaStream:
    """A stream whose shards refuse above the quota; it counts the calls."""

    def __init__(self, clock: VirtualThreads, shard_count: int, latency_s: float) -> None:
        size = (FULL_RANGE.end + 1) // shard_count
        ends = [*((number + 1) * size - 1 for number in range(shard_count - 1)), FULL_RANGE.end]
        self.shards = [Shard(f"s{n}", HashRange(n * size, end), (), "1") for n, end in enumerate(ends)]
        self._clock = clock
        self._size = size
        self._latency_s = latency_s
        self._levels = [(1.0, 0.0)] * shard_count
        self.call_count = 0
        self.entry_count = 0
        self.accepted_count = 0

    def fetch_shards(self, stream: str, shard_filter: Any = None) -> ShardListing:
        del stream, shard_filter
        self._clock.sleep(self._latency_s)
        return ShardListing(tuple(self.shards))

    def put_records(self, stream: str, entries: Sequence[Any]) -> list[EntryAnswer]:
        del stream
        answers = self.put([(entry.partition_key, len(entry.data)) for entry in entries])
        return [
            EntryAnswer("1", shard_id)
            if is_accepted
            else EntryAnswer(error_code=REFUSED, error_message="slow down")
            for shard_id, is_accepted in answers
        ]

    def put(self, entries: Sequence[tuple[str, int]]) -> list[tuple[str, bool]]:
        """Return the shard of each entry and whether it accepts the entry."""
        self._clock.sleep(self._latency_s / 2)
        now_s = self._clock.monotonic_s()
        self.call_count += 1
        self.entry_count += len(entries)
        answers = []
        for key, data_bytes in entries:
            place = min(hash_partition_key(key) // self._size, len(self.shards) - 1)
            level, seen_s = self._levels[place]
            level = min(1.0, level + now_s - seen_s)
            cost = max(
                1 / SHARD_WRITE_RECORDS_PER_S_MAX, (data_bytes + len(key)) / SHARD_WRITE_BYTES_PER_S_MAX
            )
            is_accepted = level >= cost
            self._levels[place] = (level - cost * is_accepted, now_s)
            self.accepted_count += is_accepted
            answers.append((self.shards[place].shard_id, is_accepted))
        self._clock.sleep(self._latency_s / 2)
        return answers


def write_task(stream: QuotaStream, clock: VirtualThreads, keys: list[str], row_s: float, seed: int) -> None:
    """Write as a task of the sink does."""
    kinesis: Any = stream
    writer = TaskWriter(kinesis, "s", TaskWriterOptions(), clock=clock, chance=random.Random(seed))
    for number, key in enumerate(keys):
        if number % ROWS_AT_ONCE == 0:
            clock.sleep(ROWS_AT_ONCE * row_s)
        writer.write(DATA, key)
    writer.finish()


def write_boto3(stream: QuotaStream, clock: VirtualThreads, keys: list[str], row_s: float, seed: int) -> None:
    """Send 500 at a time, and refused entries with the next ones after a tenth of a second."""
    del seed
    waiting = list(reversed(keys))
    refused: list[str] = []
    while waiting or refused:
        fresh = [waiting.pop() for _ in range(min(500 - len(refused), len(waiting)))]
        clock.sleep(len(fresh) * row_s)
        batch = refused + fresh
        answers = stream.put([(key, len(DATA)) for key in batch])
        refused = [key for key, (_, is_accepted) in zip(batch, answers, strict=True) if not is_accepted]
        if refused:
            clock.sleep(BOTO3_PAUSE_S)


WRITERS = {"task": write_task, "boto3": write_boto3}


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the tasks of one write; return its figures."""
    clock = VirtualThreads()
    stream = QuotaStream(clock, arguments.shards, arguments.latency_ms / 1000)
    share = arguments.records // arguments.tasks
    works = [
        lambda task=task: WRITERS[name](
            stream,
            clock,
            [f"{task}-{number}" for number in range(share)],
            arguments.row_us / 1e6,
            arguments.seed + task,
        )
        for task in range(arguments.tasks)
    ]
    ended_s = clock.run(works)
    assert stream.accepted_count == share * arguments.tasks
    return {
        "writer": name,
        "s": round(max(ended_s), 2),
        "% of the quota": round(stream.accepted_count / arguments.shards / 10 / max(ended_s)),
        "calls": stream.call_count,
        "full calls": -(-stream.accepted_count // 500),
        "% refused": round(100 * (1 - stream.accepted_count / stream.entry_count)),
        "slowest / fastest": round(max(ended_s) / min(ended_s), 2),
    }


def main() -> int:
    """Measure both writers and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=24)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--latency-ms", type=float, default=5.0, help="how long a call takes")
    parser.add_argument("--row-us", type=float, default=15.0, help="how long a task needs for a row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of lines")
    arguments = parser.parse_args()
    rows = [measure(name, arguments) for name in WRITERS]
    if arguments.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
