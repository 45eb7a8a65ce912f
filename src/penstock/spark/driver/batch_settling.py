"""Settling a batch that is done: claim its missing ends, and resolve the next start of every shard.

When Spark asks for the next batch, the previous one is done, and the next one starts at its claims. If a shard has no claim, no
action of the query has read it to the batch's end; the driver then claims this end. While there is nothing to read, claims become
checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from penstock.core.batches.claims import StartReason
from penstock.core.batches.known_batches import KnownBatches
from penstock.core.batches.offsets import Share, SharedLimits, StreamOffset
from penstock.core.batches.query_shards import QueryShards
from penstock.core.batches.shard_state import Settlement
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Applied, Promote, Refused
from penstock.errors import AnotherDriver, ClaimConflict, NotFound, ServiceError, Unavailable
from penstock.ports.clock import Clock
from penstock.ports.lease_table import LeaseTable
from penstock.runtime.threads import Threads, map_on_pool
from penstock.spark.driver.batch_tasks import PlannedBatch
from penstock.spark.driver.joining import JoinedQuery
from penstock.spark.driver.lease_recreation import LeaseRecreation
from penstock.spark.driver.startup_checks import refuse_sharing_in_one_query, scan_leases
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.shard_read import BatchPart

_log: Final = logging.getLogger("penstock.spark")
_THREADS_MAX: Final = 16
_FULL_SCANS: Final = 3
"""First batches of a run after which the whole lease table is read, to find other workers. Later only the batch's rows."""
_CLAIM_ATTEMPTS_MAX: Final = 4
_PROMOTE_AFTER_S_MAX: Final = 5.0
_EMPTY_SHARE: Final = Share(record_count_max=0)
_UNEXPECTED: Final = {
    StartReason.NOT_READ: "shard %s: batch %d did not read it to its end, so its records are offered again",
    StartReason.LEASE_GONE: "shard %s: its lease is gone; the shard is read again from the start of batch %d",
}


class BatchSettler:
    """Settles one query's batches. Called by one thread.

    Args:
        recreation: Creates missing leases.
        read_shard: Reads one shard of a batch as an executor does; its rows are dropped here. Its second argument is Spark's id
            of the query, or None while no task has claimed.
        parts_of: Returns the part of each shard that a batch reads.
    """

    def __init__(
        self,
        options: SourceOptions,
        table: LeaseTable,
        recreation: LeaseRecreation,
        *,
        clock: Clock,
        threads: Threads,
        read_shard: Callable[[BatchPart, str | None], Iterable[Any]],
        parts_of: Callable[[PlannedBatch, JoinedQuery], Iterator[BatchPart]],
    ) -> None:
        self._options = options
        self._recreation = recreation
        self._table = table
        self._clock = clock
        self._read_shard = read_shard
        self._parts_of = parts_of
        self._pool = threads.pool("penstock-promote", _THREADS_MAX)
        self._condition = threads.condition
        self._full_scans_left = _FULL_SCANS
        self._named_batches = 0  # number of batches whose claims name the query
        self._queries: frozenset[str] = frozenset()
        """Spark's ids of the queries whose tasks made this worker's claims; more than one if a location was copied."""
        # The claim of a shard's next batch also makes the end of its last batch the checkpoint. So a shard that gets records
        # now and then needs no promotion after each batch: at most one for each renewal of the lease.
        self._promote_after_s = min(options.lease_duration_s / 3, _PROMOTE_AFTER_S_MAX)
        self._pending_since_s: dict[Promote, float] = {}  # by promotion: since when it is pending
        self._has_warned_of_unread = False

    def settle(
        self,
        start: StreamOffset,
        planned: PlannedBatch | None,
        query: JoinedQuery,
        *,
        is_last: bool = False,
    ) -> Settlement:
        """Resolve the next start of every shard, now that a batch is done.

        Args:
            start: The done batch's offset.
            planned: The batch that this driver planned last; None if it has planned none.
            is_last: Whether the query ends: unread shards are not read, and not claimed.

        Raises:
            AnotherDriver: A batch was claimed that this driver has no record of, or another driver has reset a lease.
            OptionError: Two sources of the query share the stream's shards.
            Unavailable: With `is_last`, a shard has no claim.
        """
        shards = query.shards
        rows, keys_read = self._fetch_batch_leases(start, query)
        refuse_another_driver(start.known_batches, shards, rows.values())
        _refuse_replaced_claims(start, shards, rows)
        unclaimed = shards.find_unclaimed_shards(start, rows)
        if unclaimed and is_last:
            raise Unavailable(
                f"no execution of batch {start.batch} has claimed its end in shard {unclaimed[0]}"
            )
        recreated = shards.find_recreated_leases({key: rows[key] for key in unclaimed})
        # This must precede `_claim_ends`: the driver's own tasks, like those on executors, expect the claims of these rows.
        shards.on_fresh_rows(unclaimed, rows)
        if unclaimed:
            self._claim_ends(start, planned, query, unclaimed, recreated)
            rows |= self.fetch_leases(unclaimed)
        settlement = shards.settle(start, rows, self._clock.wall_ms(), self._clock.monotonic_s(), keys_read)
        if unclaimed:  # these claims are the driver's and do not show the size of the cluster
            settlement = replace(settlement, processes=frozenset())
        if settlement.queries:
            # This source finds another source of its query only by a claim that names the query, in a lease that it reads. The
            # other source may make its first such claim late: it makes none while its leases are lost, or while no action
            # reads its records. The full scans of the first batches could miss it. So the whole table is scanned again after
            # the 1st, 2nd, 4th, 8th ... of the batches whose claims name the query.
            self._named_batches += 1
            if self._named_batches.bit_count() == 1 and keys_read is not None:
                rows = self.fetch_leases(None)
        self._queries |= settlement.queries
        refuse_sharing_in_one_query(self._options, shards.worker, rows.values(), self._queries)
        for shard_id, reason in settlement.unexpected_starts:
            _log.warning(_UNEXPECTED[reason], shard_id, start.batch)
        return settlement

    def _fetch_batch_leases(
        self, start: StreamOffset, query: JoinedQuery
    ) -> tuple[dict[str, Lease], Collection[str] | None]:
        """Fetch the leases of a done batch's shards; return them by key, and the keys that were read.

        None in place of the keys: the whole table was read, after a start or because leases were missing. Those are created again.
        """
        keys = None if self._full_scans_left > 0 else query.shards.rows_to_read(start)
        rows = self.fetch_leases(keys)
        if keys is not None and rows.keys() >= set(keys):
            return rows, keys
        if keys is not None:  # some are missing, and only the whole table shows which ones to create again
            rows = self.fetch_leases(None)
        self._full_scans_left -= 1
        if self._recreation.recreate_missing(rows, start, query.stream):
            rows = self.fetch_leases(None)
        return rows, None

    def fetch_leases(self, keys: Collection[str] | None) -> dict[str, Lease]:
        """Fetch the current leases of these shards, or all leases."""
        if keys is None:
            return scan_leases(self._table)
        try:
            return {lease.key: lease for lease in self._table.fetch_many(keys).leases} if keys else {}
        except NotFound:  # the whole table was deleted
            return {}

    def refuse_reset_lease(self, shards: QueryShards, row: Lease) -> None:
        """Raise an error if another driver has reset a lease that the query gets now.

        Without this check the query would go on at its own position, and release the lease there. The other driver, which
        begins further back, would skip the records up to that position.

        Args:
            row: The lease as the coordinator has read it.

        Raises:
            AnotherDriver: The lease has the query's claim of an earlier batch than the last one that this driver saw.
        """
        if shards.find_reset_claim(row) is None:
            return
        # The coordinator may have read the row before the query's last claim: read it again.
        for fresh in self.fetch_leases([row.key]).values():
            claim = shards.find_reset_claim(fresh)
            if claim is not None:
                raise _reset_error(
                    f"shard {fresh.key}: its lease was reset to batch {claim.batch} of {shards.worker}"
                )

    def recreate_lost_leases(self, query: JoinedQuery) -> None:
        """Create leases again whose rows were deleted, between two batches.

        A lost lease whose row exists has another owner, or was ended by another worker: it stays as it is.
        """
        shards = query.shards
        lost = shards.lost_positions()
        existing = self.fetch_leases(lost)
        deleted = {key: mark for key, mark in lost.items() if key not in existing}
        if not deleted:
            return
        positions = {key: mark.position for key, mark in deleted.items()}
        no_shares = SharedLimits(None, None, shards=())  # no batch is under way: no shard has a part of one
        offset = StreamOffset(worker=shards.worker, shards=positions, limit=no_shares)
        tip_marks = {key: mark for key, mark in deleted.items() if mark.position.is_record}
        self._recreation.recreate_missing(self.fetch_leases(None), offset, query.stream, tip_marks)

    def _claim_ends(
        self,
        start: StreamOffset,
        planned: PlannedBatch | None,
        query: JoinedQuery,
        unclaimed: Collection[str],
        recreated: Container[str],
    ) -> None:
        """Claim the end of a done batch in shards that no action of the query read to that end.

        If this driver planned the batch and Spark went on, the batch is done: the shards are read to the batch's end, and
        the rows are dropped. If the batch ended under an earlier driver, it is unknown whether any action read it: an empty
        range is claimed, and the records are offered again. The same happens to a shard whose lease was deleted and created
        again during the batch, since its task may have read it to an unknown end, without a claim.
        """
        if planned is None or planned.offset.batch != start.batch:
            _log.warning(
                "batch %d ended under an earlier driver, and no claim shows that its rows of %s were read: they are offered again",
                start.batch,
                ", ".join(sorted(unclaimed)[:5]),
            )
            batch = PlannedBatch(start, self._clock.wall_ms())
            parts = [replace(part, share=_EMPTY_SHARE) for part in self._parts_of(batch, query)]
        else:
            self._warn_of_unread_rows(start, unclaimed)
            # Records that arrived after the plan belong to the next batch.
            parts = [
                replace(part, share=_EMPTY_SHARE)
                if part.shard_id in recreated
                else _with_earlier_end(part, planned.planned_ms)
                for part in self._parts_of(planned, query)
            ]
        parts = [part for part in parts if part.shard_id in unclaimed]
        for _ in map_on_pool(self._pool, self._condition(), self._claim_end, parts):
            pass

    def _warn_of_unread_rows(self, start: StreamOffset, unclaimed: Collection[str]) -> None:
        if self._has_warned_of_unread:
            return
        self._has_warned_of_unread = True
        _log.warning(
            "batch %d: no action of the query read the rows of %s to their end; the query goes on after the batch's records, as "
            "it does with other sources (logged once)",
            start.batch,
            ", ".join(sorted(unclaimed)[:5]),
        )

    def _claim_end(self, part: BatchPart) -> None:
        """Read a shard's part of a batch, and claim its end. If the claim is refused, read again."""
        for attempt in range(_CLAIM_ATTEMPTS_MAX):
            try:
                for _ in self._read_shard(part, min(self._queries, default=None)):
                    pass
            except ClaimConflict:
                if attempt == _CLAIM_ATTEMPTS_MAX - 1:
                    raise
            else:
                return

    def promote(self, shards: QueryShards, *, at_once: bool) -> None:
        """Write claims of done batches as checkpoints; only while no batch is under way.

        Args:
            at_once: Whether to write all of them, because the run may end. Otherwise a shard must have been without a batch
                for a third of a lease duration, at most five seconds.
        """
        now_s = self._clock.monotonic_s()
        since_s = self._pending_since_s
        since_s = self._pending_since_s = {write: since_s.get(write, now_s) for write in shards.promotions()}
        due = [write for write in since_s if at_once or now_s - since_s[write] >= self._promote_after_s]
        are_final = map_on_pool(self._pool, self._condition(), self._write_promotion, due)
        shards.on_promoted(write.key for write, is_final in zip(due, are_final, strict=True) if is_final)

    def _write_promotion(self, write: Promote) -> bool:
        """Write a claim as the checkpoint; return False if that must be tried again."""
        try:
            outcome = self._table.write(write)
        except ServiceError as error:
            _log.warning("the checkpoint of shard %s could not be written yet: %s", write.key, error)
            return False
        if isinstance(outcome, Refused):
            if isinstance(apply_write(outcome.row, write), Applied):
                return False  # the row has changed since the refusal, and would accept the write now
            _log.info("shard %s: its checkpoint stays, %s", write.key, outcome.reason.value)
        return True

    def close(self) -> None:
        """End the threads after their calls."""
        self._pool.close()


def refuse_another_driver(known_batches: KnownBatches, shards: QueryShards, rows: Iterable[Lease]) -> None:
    """Raise AnotherDriver if the query's name has claimed a batch that the checkpoint location has no record of."""
    for key, claim in shards.claims_of_another_driver(rows, known_batches):
        which = "batch" if claim.batch > known_batches.last else "another batch"
        raise AnotherDriver(
            f"shard {key}: {which} {claim.batch} of {shards.worker} was claimed, and this query is at batch {known_batches.last}: "
            "another query works from the same checkpoint location, or from a copy of it. Make sure that one query at a time uses it"
        )


def _reset_error(event: str) -> AnotherDriver:
    return AnotherDriver(
        f"{event}: another query works from a copy of the checkpoint location, or the lease table was restored from a backup. "
        "Make sure that one query at a time uses the location and its copies, and start it again: it goes on from its "
        "checkpoint location"
    )


def _refuse_replaced_claims(start: StreamOffset, shards: QueryShards, rows: Mapping[str, Lease]) -> None:
    # Without this check the driver would claim the batch's end again, and Spark may have accepted a different end.
    for key, claim in shards.find_replaced_claims(start, rows):
        raise _reset_error(
            f"shard {key}: its lease was reset to batch {claim.batch} during batch {start.batch} of {shards.worker}"
        )


def _with_earlier_end(part: BatchPart, moment_ms: int) -> BatchPart:
    """Return the part with an earlier end: records that arrived at this moment or later stay for a later batch."""
    until_ms = moment_ms if part.until_ms is None else min(part.until_ms, moment_ms)
    return replace(part, until_ms=until_ms)
