"""A lease table in memory, to read a stream without a lease table, as `penstock tail` does."""

from __future__ import annotations

import threading
from collections.abc import Collection

from penstock.core.leases.lease import Lease, TablePart
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Applied, LeaseWrite, Outcome
from penstock.ports.lease_table import LeaseScan


class MemoryLeaseTable:
    """Implements `penstock.ports.lease_table.LeaseTable` in memory, for one process."""

    def __init__(self, name: str = "in memory") -> None:
        self._name = name
        self._rows: dict[str, Lease] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._name

    def ensure_exists(self) -> bool:
        """Return False: the table always exists."""
        return False

    @property
    def row_count(self) -> int:
        with self._lock:
            return len(self._rows)

    def scan(self, part: TablePart | None = None) -> LeaseScan:
        with self._lock:
            rows = self._rows.values()
            return LeaseScan(tuple(row for row in rows if part is None or part.holds(row.key)))

    def fetch(self, key: str) -> Lease | None:
        with self._lock:
            return self._rows.get(key)

    def fetch_many(self, keys: Collection[str]) -> LeaseScan:
        with self._lock:
            return LeaseScan(tuple(row for key, row in self._rows.items() if key in keys))

    def write(self, write: LeaseWrite) -> Outcome:
        with self._lock:
            outcome = apply_write(self._rows.get(write.key), write)
            if isinstance(outcome, Applied):
                if outcome.lease is None:
                    del self._rows[write.key]
                else:
                    self._rows[write.key] = outcome.lease
            return outcome
