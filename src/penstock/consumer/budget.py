"""How many bytes all shards of a process hold together."""

from __future__ import annotations

import threading

from penstock.consumer.shard_run import ShardRun


class MemoryBudget:
    """Counts the bytes that all shards of the process hold. Safe to use from several threads.

    A run counts from `add` to `remove`. Answers to its reads after `remove` do not count.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held_bytes: dict[ShardRun, int] = {}
        self.total_bytes: int = 0
        self._lock = threading.Lock()

    @property
    def has_room(self) -> bool:
        """Whether more may be fetched."""
        return self.total_bytes < self._bytes_max

    def add(self, run: ShardRun) -> None:
        """Begin to count a run."""
        with self._lock:
            self._held_bytes[run] = 0

    def update(self, run: ShardRun) -> None:
        """Store how many bytes a run holds now. A paused run counts as 0, so that other runs go on reading."""
        with self._lock:
            if run not in self._held_bytes:
                return  # the run has ended; this is a late answer
            # The figure is read under the lock: else the later of two threads could store an older figure.
            held_bytes = 0 if run.is_paused else run.waiting_bytes
            self.total_bytes += held_bytes - self._held_bytes[run]
            self._held_bytes[run] = held_bytes

    def remove(self, run: ShardRun) -> None:
        """Remove a run that has ended."""
        with self._lock:
            self.total_bytes -= self._held_bytes.pop(run, 0)
