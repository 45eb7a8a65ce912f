"""A view of one stream's rows in a lease table of several streams, with the interface of a lease table.

The table has the form of the KCL's multi-stream mode, as a consumer of several streams has it: keys are
`account:stream:epoch:shardId`. The driver and the tasks of one stream see its rows under their bare shard ids.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from penstock.core.leases.lease import Lease, TablePart, lease_key, shard_id_of, stream_id_of
from penstock.core.leases.lease_writes import Applied, Create, End, LeaseWrite, Outcome
from penstock.core.stream_identity import StreamIdentity
from penstock.ports.lease_table import LeaseScan, LeaseTable, SkippedRow


class StreamTable:
    """The leases of one stream in a table of several streams. Implements `penstock.ports.lease_table.LeaseTable`.

    Args:
        stream_id: The prefix of the stream's keys.
    """

    def __init__(self, table: LeaseTable, stream_id: str) -> None:
        assert stream_id, "a table of several streams has an id for each"
        self._table = table
        self._stream_id = stream_id

    @property
    def name(self) -> str:
        return self._table.name

    def ensure_exists(self) -> bool:
        return self._table.ensure_exists()

    @property
    def row_count(self) -> int:
        """The rows of the whole table: a scan reads them all."""
        return self._table.row_count

    def scan(self, part: TablePart | None = None) -> LeaseScan:
        return self._of_stream(self._table.scan(part))

    def fetch(self, key: str) -> Lease | None:
        row = self._table.fetch(self._key(key))
        return None if row is None else bare_lease(row)

    def fetch_many(self, keys: Collection[str]) -> LeaseScan:
        return self._of_stream(self._table.fetch_many([self._key(key) for key in keys]))

    def write(self, write: LeaseWrite) -> Outcome:
        outcome = self._table.write(self._with_table_keys(write))
        if isinstance(outcome, Applied):
            return outcome if outcome.lease is None else Applied(bare_lease(outcome.lease))
        return outcome if outcome.row is None else replace(outcome, row=bare_lease(outcome.row))

    def _key(self, shard_id: str) -> str:
        return lease_key(self._stream_id, shard_id)

    def _keys(self, shard_ids: Collection[str]) -> frozenset[str]:
        return frozenset(map(self._key, shard_ids))

    def _with_table_keys(self, write: LeaseWrite) -> LeaseWrite:
        if isinstance(write, Create):
            lease = write.lease
            return Create(
                replace(
                    lease,
                    key=self._key(lease.key),
                    parents=self._keys(lease.parents),
                    children=self._keys(lease.children),
                )
            )
        if isinstance(write, End):
            return replace(write, key=self._key(write.key), children=self._keys(write.children))
        return replace(write, key=self._key(write.key))

    def _of_stream(self, scan: LeaseScan) -> LeaseScan:
        return LeaseScan(
            tuple(bare_lease(row) for row in scan.leases if stream_id_of(row.key) == self._stream_id),
            tuple(
                SkippedRow(shard_id_of(row.key), row.reason)
                for row in scan.skipped_rows
                if stream_id_of(row.key) == self._stream_id
            ),
        )


class EarlierLeaseTable(StreamTable):
    """The lease table that a query had before applicationName or leaseTable was changed. It is only read, and may be of one stream."""

    def __init__(self, table: LeaseTable, stream: StreamIdentity) -> None:
        super().__init__(table, stream.stream_id)
        self._stream = stream

    def scan(self, part: TablePart | None = None) -> LeaseScan:
        """Read the stream's rows; in a table of one stream, the rows of this stream and those that name no stream."""
        scan = self._table.scan(part)
        bare_rows = [row for row in scan.leases if not stream_id_of(row.key)]
        if bare_rows:
            return LeaseScan(tuple(row for row in bare_rows if row.stream in (None, self._stream)))
        return self._of_stream(scan)


def bare_lease(lease: Lease) -> Lease:
    """Return a lease of a table of several streams under its bare shard ids."""
    return replace(
        lease,
        key=shard_id_of(lease.key),
        parents=frozenset(map(shard_id_of, lease.parents)),
        children=frozenset(map(shard_id_of, lease.children)),
    )
