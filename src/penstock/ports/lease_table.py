"""The lease table, as Penstock needs it.

Implemented by `penstock.aws.lease_table` (DynamoDB); the simulator's table runs the same rules in memory, with faults.
The rules of every write are `penstock.core.leases.lease_rules.apply_write`; a contract suite asks each implementation the
same questions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import LeaseWrite, Outcome


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A row that is no lease, or a broken one: left alone, reported."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseScan:
    """Every row that was asked for, read consistently per row, not as one snapshot."""

    leases: tuple[Lease, ...]
    skipped: tuple[SkippedRow, ...] = ()


class LeaseTable(Protocol):
    """One application's lease table. Safe to call from several threads.

    Raises (every method):
        Throttled, Unavailable: After the bound of retries; nothing happened.
        NotFound: The table does not exist.
        AccessDenied, Rejected: At once.
    """

    @property
    def name(self) -> str:
        """The table's name, for messages."""

    def ensure_exists(self) -> bool:
        """Create the table where it is missing and wait until it is usable; True when this call created it.

        Several workers may do this at once. Bounded by a deadline.
        """

    def scan(self) -> LeaseScan:
        """Read every row, strongly consistent, all pages."""

    def fetch(self, key: str) -> Lease | None:
        """Read one row, strongly consistent; None when it does not exist.

        Raises:
            Rejected: The row exists and is no readable lease.
        """

    def fetch_many(self, keys: Collection[str]) -> LeaseScan:
        """Read the rows of these keys, strongly consistent; a key without a row is left out.

        Costs a read unit for each key, and none for the rest of the table.
        """

    def write(self, write: LeaseWrite) -> Outcome:
        """Do one conditional write.

        Returns:
            `Applied` or `Refused`. An answer that was lost is read back: a write that is seen to stand is
            `Applied`, one that is seen not to stand is tried again inside the bound.

        Raises:
            UnknownOutcome: Sent, no answer, and reading back could not settle it.
        """
