"""A shard as user code sees it while it is read: acknowledgements and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.consumer.pending_checkpoint import PendingCheckpoint
from penstock.consumer.records import Record
from penstock.consumer.shard_run import ShardRun
from penstock.core.position import Position
from penstock.runtime.home_process import HomeProcess


class RunLoop(Protocol):
    """The loop that advances a run, as its handle uses it; implemented by `DeliveryLoop`. Thread-safe."""

    def post(self, run: ShardRun) -> None:
        """Advance a run soon."""

    def begin_checkpoint(self, run: ShardRun) -> PendingCheckpoint:
        """Request a checkpoint of the acknowledged records; raises LeaseLost."""

    def store_checkpoint(self, run: ShardRun) -> None:
        """Checkpoint the acknowledged records and wait until it is durable; raises LeaseLost or Unavailable."""


class RunHandle:
    """A run as user code sees it: acknowledgements, and checkpoints that are waited for."""

    def __init__(self, run: ShardRun, loop: RunLoop, home: HomeProcess) -> None:
        self._run = run
        self._loop = loop
        self._home = home

    @property
    def may_deliver(self) -> bool:
        """Whether the shard is still this worker's."""
        return self._run.may_deliver and self._home.is_here

    @property
    def last_delivered(self) -> Position:
        """The newest record that was delivered."""
        return self._run.last_delivered

    def acknowledge(self, records: Sequence[Record], ordinals: Sequence[int]) -> None:
        """Mark records as done."""
        self._home.check()
        self._run.acknowledge(records, ordinals)
        self._loop.post(self._run)

    def acknowledge_through(self, position: Position, ordinal: int | None = None) -> None:
        """Mark everything up to and including a position as done."""
        self._home.check()
        self._run.acknowledge_through(position, ordinal)
        self._loop.post(self._run)

    def begin_checkpoint(self) -> PendingCheckpoint:
        """Request a checkpoint of the acknowledged records, and return it for waiting."""
        self._home.check()
        return self._loop.begin_checkpoint(self._run)

    def store_checkpoint(self) -> None:
        """Checkpoint the acknowledged records, and wait until that is durable."""
        self._home.check()
        self._loop.store_checkpoint(self._run)
