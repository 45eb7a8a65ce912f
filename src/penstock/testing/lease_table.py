"""The lease table of one run: it notes checkpoints, and another worker of the application takes leases from it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from penstock.core.leases.lease import Lease, TablePart
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
from penstock.ports.lease_table import LeaseScan
from penstock.runtime.memory_lease_table import MemoryLeaseTable

OTHER_WORKER: Final = "another-worker"


class WatchedLeaseTable:
    """Implements `penstock.ports.lease_table.LeaseTable`.

    Args:
        shard_id: The shard of the run. Leases of other shards, its children, go to another worker as soon as they exist.
        start: The checkpoint of its lease before the run; TRIM_HORIZON: there is no lease yet.
    """

    def __init__(self, shard_id: str, start: Position) -> None:
        self.checkpoints: list[Position] = []
        """Each position that was stored for the shard, in order."""
        self.is_refusing = False
        """Whether checkpoints are refused for the rate."""
        self.start = start
        self._shard_id = shard_id
        self._table = MemoryLeaseTable("testing")
        if start.is_record:
            self._table.write(Create(Lease(shard_id, checkpoint=start)))

    @property
    def name(self) -> str:
        """The table's name, for messages."""
        return self._table.name

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return self._table.row_count

    @property
    def lease(self) -> Lease | None:
        """The lease of the shard."""
        return self._table.fetch(self._shard_id)

    def ensure_exists(self) -> bool:
        """Return that it existed before."""
        return False

    def scan(self, part: TablePart | None = None) -> LeaseScan:
        """Return every row, or those of a part."""
        return self._table.scan(part)

    def fetch(self, key: str) -> Lease | None:
        """Return one row."""
        return self._table.fetch(key)

    def fetch_many(self, keys: Collection[str]) -> LeaseScan:
        """Return the rows of these keys."""
        return self._table.fetch_many(keys)

    def write(self, write: LeaseWrite) -> Outcome:
        """Do one write, or refuse a checkpoint."""
        if self.is_refusing and isinstance(write, Checkpoint | Release | End):
            raise Throttled("the test refuses checkpoints", operation="UpdateItem", resource=write.key)
        outcome = self._table.write(write)
        if not isinstance(outcome, Applied) or outcome.lease is None:
            return outcome
        if write.key != self._shard_id:
            if isinstance(write, Create):
                self.take_by_another(write.key)
        else:
            self._note(outcome.lease.checkpoint)
        return outcome

    def _note(self, checkpoint: Position) -> None:
        is_one = checkpoint.is_record or checkpoint.is_shard_end
        if is_one and checkpoint != self.start and checkpoint not in self.checkpoints[-1:]:
            self.checkpoints.append(checkpoint)

    def take_by_another(self, key: str) -> None:
        """Take a lease as another worker, as when its owner did not renew it in time."""
        row = self._table.fetch(key)
        assert row is not None
        self._table.write(Take(key, row.counter, OTHER_WORKER))
