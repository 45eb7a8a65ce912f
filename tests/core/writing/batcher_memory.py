"""A program of its own, so that nothing else takes memory: prints what tiny records count in a batcher, and what Python takes."""

from __future__ import annotations

import sys
import tracemalloc

from penstock.core.hash_key import FULL_RANGE
from penstock.core.shard import Shard
from penstock.core.writing.batcher import Batcher
from penstock.core.writing.batcher_steps import BatcherSettings


def main(aggregates: bool, key_count: int, hash_key: str) -> None:
    """Add 10,000 records; print the bytes counted and those taken."""
    batcher = Batcher(BatcherSettings(aggregates=aggregates))
    batcher.add(b"", "first", None, 0.0)
    batcher.plan_step(0.0)
    batcher.on_shards([Shard("shardId-000000000000", FULL_RANGE)], 0.0)
    before_bytes = batcher.waiting_bytes
    tracemalloc.start()
    for number in range(10_000):
        # Strings of their own, as records that come from outside have.
        key, placed_by = f"key-{number % key_count}", str(int(hash_key)) if hash_key else None
        batcher.add(b"%d" % number, key, placed_by, float(number))
    taken_bytes, _ = tracemalloc.get_traced_memory()
    sys.stdout.write(f"{batcher.waiting_bytes - before_bytes} {taken_bytes}")


if __name__ == "__main__":
    main(sys.argv[1] == "aggregated", int(sys.argv[2]), sys.argv[3])
