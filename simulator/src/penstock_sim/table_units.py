"""Read and write units that DynamoDB bills for a lease table, by the size of the rows.

Source:
    DynamoDB developer guide, "Capacity unit consumption" (4 KB per strongly consistent read unit, half of it when
    eventually consistent; 1 KB per write unit; a scan counts the bytes of each page of 1 MB) and "Item sizes and formats".
"""

from __future__ import annotations

import math
from typing import Final

from penstock.core.leases.lease import Lease

_READ_UNIT_BYTES: Final = 4096
_WRITE_UNIT_BYTES: Final = 1024
_PAGE_BYTES: Final = 1 << 20
_NAMES_BYTES: Final = (
    len("leaseKeyleaseCounterownerSwitchesSinceCheckpointcheckpointcheckpointSubSequenceNumber") + 6
)
_OWNER_BYTES: Final = len("leaseOwner")
_READER_BYTES: Final = len("checkpointOwner")
_HASH_BYTES: Final = len("startingHashKeyendingHashKey") + 2 * 39
_FAMILY_BYTES: Final = len("parentShardId") + 3
_STREAM_BYTES: Final = len("penstockStream") + 80
_RECORD_BYTES: Final = 56 + len("penstockMarkpenstockTipMillisthroughputKBps") + 58 + 8 + 8


def row_bytes(row: Lease) -> int:
    """Return the estimated size of a row whose shard has records: with checkpoint, mark, throughput and stream."""
    size = _NAMES_BYTES + len(row.key) + _HASH_BYTES + _STREAM_BYTES + _RECORD_BYTES
    if row.owner is not None:
        size += _OWNER_BYTES + len(row.owner)
    if row.checkpoint_owner is not None:
        size += _READER_BYTES + len(row.checkpoint_owner)
    for family in (row.parents, row.children):
        if family:
            size += _FAMILY_BYTES + sum(map(len, family))
    return size


def scan_units(size_bytes: int, *, is_consistent: bool) -> float:
    """Return the read units of a scan over rows of a size in all."""
    pages = max(1, math.ceil(size_bytes / _PAGE_BYTES))
    units = max(1, pages * math.ceil(size_bytes / pages / _READ_UNIT_BYTES))
    return float(units) if is_consistent else units / 2


def get_units(size_bytes: int) -> float:
    """Return the read units of a strongly consistent read of one row; a missing one costs one."""
    return float(max(1, math.ceil(size_bytes / _READ_UNIT_BYTES)))


def write_units(size_bytes: int) -> float:
    """Return the write units of a write, done or refused."""
    return float(max(1, math.ceil(size_bytes / _WRITE_UNIT_BYTES)))
