"""The lease table that Penstock needs.

Implemented by `penstock.aws.lease_table` (DynamoDB), and by the simulator in memory, with faults. The rule of every
write is in `penstock.core.leases.lease_rules.apply_write`; one contract suite checks every implementation against it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct

from penstock.core.leases.lease import Lease, TablePart
from penstock.core.leases.lease_writes import LeaseWrite, Outcome


class SkippedRow(Struct, frozen=True):
    """A row that cannot be read as a lease. It is reported, and not changed."""

    key: str
    reason: str


class LeaseScan(Struct, frozen=True):
    """The rows that were read: each as it was at one moment, but not all at the same moment."""

    leases: tuple[Lease, ...]
    skipped_rows: tuple[SkippedRow, ...] = ()


class LeaseTable(Protocol):
    """One application's lease table. Safe to call from several threads.

    Raises (every method):
        Throttled, Unavailable: After the last retry; nothing happened.
        NotFound: The table does not exist.
        AccessDenied, Rejected: At once.
    """

    @property
    def name(self) -> str:
        """The table's name, for messages."""

    def ensure_exists(self) -> bool:
        """Create the table if it is missing and wait until it is usable; return True when this call created it.

        Several workers may do this at once. The wait has a deadline.
        """

    @property
    def row_count(self) -> int:
        """The number of rows when `ensure_exists` ran, if the service has it without a scan; otherwise 0.

        DynamoDB counts every six hours.
        """

    def scan(self, part: TablePart | None = None) -> LeaseScan:
        """Read all rows, strongly consistent, or only those of `part`, eventually consistent.

        The rows that KCL 3 keeps beside the leases (`penstock.ports.kcl3_tables`) are left out. Every row belongs to exactly one of
        `part.count` parts and stays in it.
        """

    def fetch(self, key: str) -> Lease | None:
        """Read one row, strongly consistent; return None when it does not exist.

        Raises:
            Rejected: The row exists and is not a readable lease.
        """

    def fetch_many(self, keys: Collection[str]) -> LeaseScan:
        """Read the rows with these keys, strongly consistent; keys without a row are left out.

        This costs one read unit for each key.
        """

    def write(self, write: LeaseWrite) -> Outcome:
        """Make one conditional write.

        Returns:
            `Applied` or `Refused`. If the answer is lost, the row is read back. A row that shows the write means `Applied`.
            Otherwise the write is sent again, a bounded number of times.

        Raises:
            UnknownOutcome: There was no answer, and reading back could not show whether the write was applied.
        """
