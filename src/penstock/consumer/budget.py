"""How much all shards of a process hold together."""

from __future__ import annotations

import threading

from penstock.consumer.shard_run import ShardRun


class Budget:
    """Counts the bytes that all shards of the process hold. Safe to use from several threads."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[tuple[str, int], int] = {}
        self._total = 0
        self._lock = threading.Lock()

    @property
    def has_room(self) -> bool:
        """Whether more may be fetched."""
        return self._total < self._bytes_max

    def hold(self, run: ShardRun) -> None:
        """Note what a run holds now. What a paused one holds must not keep the others from reading."""
        key = (run.shard_id, run.epoch)
        held = 0 if run.is_paused else run.waiting_bytes
        with self._lock:
            self._total += held - self._held.pop(key, 0)
            if held:
                self._held[key] = held

    def forget(self, run: ShardRun) -> None:
        """Note that a run is gone."""
        with self._lock:
            self._total -= self._held.pop((run.shard_id, run.epoch), 0)
