"""The port through which a worker joins a KCL 3 fleet: the rows that KCL 3 keeps beside the leases."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from penstock.core.leases.kcl3_fleet import Kcl3Rows, WorkerStats


class Kcl3Tables(Protocol):
    """The rows that KCL 3 keeps beside an application's leases. Safe to call from several threads.

    Implemented by `penstock.aws.kcl3_tables`: in the lease table itself, or in the two tables of KCL 3.0 to 3.4.

    Raises (every method):
        Throttled, Unavailable: After the last retry. A call that writes may have been applied.
        AccessDenied, Rejected: At once.
    """

    def fetch(self, workers: Collection[str] | None = ()) -> Kcl3Rows:
        """Read the rows, strongly consistent. The result is empty if the application never had a KCL 3 worker.

        Args:
            workers: Workers whose metrics are fetched in addition to the leader's; None fetches all, by a scan of the whole table.
        """

    def report(self, stats: WorkerStats) -> None:
        """Write a worker's metrics to the row that KCL 3 workers of this application read."""

    def withdraw(self, worker: str) -> None:
        """Delete a worker's metrics, so that no lease is assigned to it any more."""

    def find_keys_of(self, worker: str) -> frozenset[str]:
        """Return the keys of the leases that a worker owns. The index that is read may lag a moment behind the table.

        Raises:
            NotFound: The index does not exist.
        """
