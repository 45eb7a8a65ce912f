"""Shared by tests of consumers on real threads: a stream in memory, short times, and the records left to a next worker."""

from __future__ import annotations

import time

from virtual_world import TinyKinesis

FAST = {
    "starting_position": "TRIM_HORIZON",
    "cold_start_jitter_s": 0.0,
    "lease_duration_s": 10.0,
    "round_interval_s": 0.1,
    "idle_time_between_reads_s": 0.1,
    "handler_backoff_min_s": 0.001,
}


class Wall:
    """A clock for the stream's arrival times."""

    def __init__(self):
        self.now_s = time.time()


def tiny_stream(shard_count) -> TinyKinesis:
    """Return a stream whose records arrive by the machine's clock."""
    return TinyKinesis(Wall(), shard_count)


def put(stream, count, prefix="r") -> list[bytes]:
    """Put so many records with keys of their own; return their data."""
    sent = [f"{prefix}{index}".encode() for index in range(count)]
    for index, data in enumerate(sent):
        stream.put(f"k{index}", data)
    return sent


def unfinished(stream, table) -> list[bytes]:
    """Return the records that a next worker would get; no lease may be held any more."""
    left = []
    for lease in table.scan().leases:
        assert lease.owner is None
        for record in stream.shards[lease.key].records:
            done = lease.checkpoint.sequence_number
            if done is None or int(record.sequence_number) > int(done):
                left.append(record.data)
    return left
