"""The ports of a worker, and the pools on which it runs."""

from __future__ import annotations

from msgspec import Struct

from penstock.ports.clock import Chance, Clock
from penstock.ports.kcl3_tables import Kcl3Tables
from penstock.ports.kinesis import Kinesis
from penstock.ports.lease_table import LeaseTable
from penstock.ports.metrics import Metrics
from penstock.runtime.loop import Pool


class WorkerPorts(Struct, frozen=True):
    """The ports of a worker.

    Args:
        kcl3: The rows that KCL 3 workers keep beside the leases; needed if the coordinator reads them.
    """

    kinesis: Kinesis
    table: LeaseTable
    clock: Clock
    chance: Chance
    metrics: Metrics
    kcl3: Kcl3Tables | None = None


class Pools(Struct, frozen=True):
    """The pools for work that may wait: calls to services, and user code."""

    renewal: Pool
    call: Pool
    read: Pool
    handler: Pool

    def close(self) -> None:
        """Accept no further tasks."""
        for pool in (self.renewal, self.call, self.read, self.handler):
            pool.close()
