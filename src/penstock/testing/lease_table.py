"""The lease table of one run: it records checkpoints, and another worker of the application takes leases from it."""

from __future__ import annotations

from typing import Final

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import (
    Applied,
    Checkpoint,
    Create,
    End,
    LeaseWrite,
    Outcome,
    Release,
    Take,
)
from penstock.core.position import Position
from penstock.errors import Throttled
from penstock.runtime.memory_lease_table import MemoryLeaseTable

OTHER_WORKER: Final = "another-worker"


class WatchedLeaseTable(MemoryLeaseTable):
    """Records the checkpoints of one shard.

    Args:
        shard_id: The shard of the run. Leases of other shards, its children, go to another worker as soon as they exist.
        start: The checkpoint of its lease before the run; TRIM_HORIZON: there is no lease yet.
    """

    def __init__(self, shard_id: str, start: Position) -> None:
        super().__init__("testing")
        self.checkpoints: list[Position] = []
        """Each position that was stored for the shard, in order."""
        self.is_refusing = False
        """Whether checkpoints are refused as throttled."""
        self.start = start
        self._shard_id = shard_id
        if start.is_record:
            super().write(Create(Lease(shard_id, checkpoint=start)))

    @property
    def lease(self) -> Lease | None:
        """The lease of the shard; None before it exists."""
        return self.fetch(self._shard_id)

    def write(self, write: LeaseWrite) -> Outcome:
        """Do one write, or refuse a checkpoint."""
        if self.is_refusing and isinstance(write, Checkpoint | Release | End):
            raise Throttled("the test refuses checkpoints", operation="UpdateItem", resource=write.key)
        outcome = super().write(write)
        if not isinstance(outcome, Applied) or outcome.lease is None:
            return outcome
        if write.key != self._shard_id:
            if isinstance(write, Create):
                self.take_by_another(write.key)
        else:
            self._add_checkpoint(outcome.lease.checkpoint)
        return outcome

    def _add_checkpoint(self, checkpoint: Position) -> None:
        is_checkpoint = checkpoint.is_record or checkpoint.is_shard_end
        if is_checkpoint and checkpoint != self.start and checkpoint not in self.checkpoints[-1:]:
            self.checkpoints.append(checkpoint)

    def take_by_another(self, key: str) -> None:
        """Take a lease as another worker, as when its owner did not renew it in time."""
        row = self.fetch(key)
        assert row is not None
        super().write(Take(key, row.counter, OTHER_WORKER))
