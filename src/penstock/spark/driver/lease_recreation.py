"""Creates missing leases of a query, when it starts and while it runs. `penstock.core.batches.recreation` decides which."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from penstock.core.batches.offsets import StreamOffset
from penstock.core.batches.recreation import (
    Recreation,
    find_missing_leases,
    find_missing_parents,
    is_table_complete,
    plan_lost_leases,
    plan_recreation,
)
from penstock.core.leases.lease import Lease, TipMark
from penstock.core.leases.lease_writes import Applied, Reset
from penstock.core.leases.required_leases import find_holes
from penstock.core.position import Position
from penstock.core.shard import Shard
from penstock.core.shard_graph import ShardGraph
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import (
    AccessDenied,
    ClaimConflict,
    DataLossError,
    NotFound,
    OptionError,
    Rejected,
    ServiceError,
    Unavailable,
)
from penstock.ports.clock import Clock
from penstock.ports.kinesis import IteratorStart, IteratorType, Kinesis
from penstock.ports.lease_table import LeaseTable
from penstock.spark.options.spark_options import SourceOptions

_log: Final = logging.getLogger("penstock.spark")
_LISTINGS_MAX: Final = 8
_LISTING_PAUSE_S: Final = 1.0
_DENIALS_MIN: Final = 2  # answers that there is no such shard; one may be outdated, and a skip is final
_NAMED_MAX: Final = 5


class LeaseRecreation:
    """Creates the missing leases of one query. Called by one thread.

    Args:
        open_earlier_table: Opens the query's lease table before its name was changed; it is only read.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        table: LeaseTable,
        options: SourceOptions,
        clock: Clock,
        open_earlier_table: Callable[[str], LeaseTable],
    ) -> None:
        self._kinesis = kinesis
        self._table = table
        self._options = options
        self._clock = clock
        self._open_earlier_table = open_earlier_table

    def repair_at_start(
        self, rows: Mapping[str, Lease], offset: StreamOffset, stream: StreamIdentity
    ) -> bool:
        """Bring the table into agreement with the offset that a query starts from; return whether the leases may have changed.

        Raises:
            ClaimConflict: A lease changed during the repair; start the query again.
            DataLossError: A shard left the stream before it was read to its end, and failOnDataLoss is on.
            Unavailable: The service has a shard and does not list it; or the earlier table does not answer.
        """
        earlier_rows, why_no_rows = None, ""
        if offset.lease_table not in ("", self._options.lease_table):
            earlier_rows, why_no_rows = self._read_earlier_table(offset)
        elif is_table_complete(rows, offset):
            return False
        shards = self._list_shards_with(find_missing_leases(rows, offset, {}))
        plan = plan_recreation(rows, offset, shards, stream, earlier_rows, now_ms=self._clock.wall_ms())
        return self._apply_plan(plan, rows, shards, offset, why_no_rows)

    def recreate_missing(
        self,
        rows: Mapping[str, Lease],
        offset: StreamOffset,
        stream: StreamIdentity,
        marks: Mapping[str, TipMark] | None = None,
    ) -> bool:
        """Create the missing leases of the shards in a running query's offset; return whether any were missing.

        Args:
            rows: The lease table.
            offset: The query's current positions.
            marks: Tip marks that the offset does not have.

        Raises:
            DataLossError: As `repair_at_start`.
            Unavailable: As `repair_at_start`.
        """
        missing = find_missing_leases(rows, offset, {})
        if not missing and not find_missing_parents(rows, offset):
            return False
        shards = self._list_shards_with(missing)
        self._apply_plan(plan_lost_leases(rows, offset, shards, stream, marks or {}), rows, shards, offset)
        return True

    def _read_earlier_table(self, offset: StreamOffset) -> tuple[dict[str, Lease], str]:
        """Return the leases of the query's earlier lease table, which the offset names; or no leases, and the reason."""
        try:
            rows = {row.key: row for row in self._open_earlier_table(offset.lease_table).scan().leases}
        except (AccessDenied, NotFound, OptionError, Rejected) as error:
            return {}, f"cannot be read: {error}"
        except ServiceError as error:
            raise Unavailable(
                f"lease table {offset.lease_table} does not answer. The query had its leases there before applicationName or "
                f"leaseTable was changed, and needs them to go on after batch {offset.batch}. Start it again when the table "
                f"answers: {error}",
                operation=error.operation,
                code=error.code,
                resource=offset.lease_table,
            ) from error
        return rows, "" if rows else "is empty"

    def _apply_plan(
        self,
        plan: Recreation,
        rows: Mapping[str, Lease],
        shards: Mapping[str, Shard],
        offset: StreamOffset,
        why_no_rows: str = "",
    ) -> bool:
        """Report the shards that have left the stream, and do the plan's writes; return whether there were any.

        Args:
            rows: The leases before the writes.
            shards: The stream's shards, as listed.
            offset: The offset from which leases are created again.
            why_no_rows: Why the query's earlier lease table has no leases; empty if it has some, or there is no such table.
        """
        coverage = find_holes(rows.values(), {key: shard.hash_range for key, shard in shards.items()})
        are_all_keys_covered = bool(rows) and not coverage.holes and not coverage.leases_without_range
        for key, position in plan.vanished_shards.items():
            # If leases cover every hash key, another worker has read on to the shards that follow this one.
            self._report_vanished_shard(key, position, are_all_keys_covered=are_all_keys_covered)
        created = []
        for write in plan.writes:
            outcome = self._table.write(write)
            if isinstance(outcome, Applied):
                created += [] if isinstance(write, Reset) else [write.key]
            elif isinstance(write, Reset):  # a refused Create is fine: another worker has created the lease
                raise ClaimConflict(
                    f"lease {write.key} in table {self._table.name} changed while it was being set to this query's position "
                    f"({outcome.reason.value}); start the query again"
                )
        self._log_plan(plan, created, offset, why_no_rows)
        return bool(plan.writes)

    def _log_plan(self, plan: Recreation, created: list[str], offset: StreamOffset, why_no_rows: str) -> None:
        table, earlier = self._table.name, offset.lease_table
        is_moved = earlier not in ("", self._options.lease_table)
        if plan.is_forked and plan.writes:
            _log.warning(
                "stream %s: lease table %s, which this query had before, has claims of batches that its checkpoint location has no record "
                "of: the location is a copy, or was restored from one. The query goes on in %s from its location's positions, and "
                "takes no other worker's positions from the earlier table",
                self._options.stream,
                earlier,
                table,
            )
        if is_moved and plan.continued_shards and not plan.repeated_shards:
            _log.info(
                "stream %s: the leases are in %s now, and were in %s (applicationName or leaseTable was changed). They are copied "
                "with the ends of batch %d: nothing is read again",
                self._options.stream,
                table,
                earlier,
                offset.batch,
            )
        elif not is_moved and not offset.shards.keys().isdisjoint(created):  # not only children
            _log.warning(
                "lease table %s has lost the leases of %s (or applicationName or leaseTable was changed): they are created again at "
                "this query's positions",
                table,
                _first_keys(created),
            )
        if plan.repeated_shards:
            reason = (
                f"the claims were in lease table {earlier}, which {why_no_rows}"
                if why_no_rows
                else "no lease has its claim"
            )
            _log.warning(
                "stream %s: the end of batch %d in %s is unknown (%s). Its records are read again: from %s on",
                self._options.stream,
                offset.batch,
                _first_keys(plan.repeated_shards),
                reason,
                ", ".join(
                    f"{position} in {key}"
                    for key, position in sorted(plan.repeated_shards.items())[:_NAMED_MAX]
                ),
            )

    def _report_vanished_shard(self, key: str, position: Position, *, are_all_keys_covered: bool) -> None:
        """Warn that a shard has left the stream before the query read its end; raise DataLossError if records are lost."""
        text = (
            f"stream {self._options.stream}: shard {key} has left the stream (retention) and its lease is gone from table "
            f"{self._table.name}; the query had read it up to {position}"
        )
        if are_all_keys_covered:
            _log.warning(
                "%s. The leases of the table cover all hash keys: the shards that follow it are read", text
            )
            return
        text += ", and the records after it are lost"
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{text}. To go on with the shards that are left, from their beginning, set option failOnDataLoss=false"
            )
        _log.warning("%s; going on with the shards that are left, from their beginning", text)

    def _list_shards_with(self, keys: Collection[str]) -> dict[str, Shard]:
        """List the stream's shards until the listing is complete, and return them by id.

        A listing is complete if its open shards cover every hash key, and if it has each of the needed shards, except those that
        the service has twice reported as missing. The last of eight listings need not cover every hash key.

        Args:
            keys: The needed shards.

        Raises:
            Unavailable: The service has one of the shards and does not list it.
        """
        denials = dict.fromkeys(keys, 0)
        for attempt in range(_LISTINGS_MAX):
            if attempt:
                self._clock.sleep(_LISTING_PAUSE_S)
            listing = self._kinesis.fetch_shards(self._options.stream)
            shards = {shard.shard_id: shard for shard in listing.shards}
            unlisted = [key for key in keys if key not in shards]
            for key in unlisted:
                denials[key] += not self._has_shard(key)
            is_whole = not ShardGraph(listing.shards).open_cover().holes
            is_last = attempt == _LISTINGS_MAX - 1
            if all(denials[key] >= _DENIALS_MIN for key in unlisted) and (is_whole or is_last):
                return shards
        raise Unavailable(
            f"stream {self._options.stream}: its listing leaves out {', '.join(unlisted[:5])}, which the service has, and whose "
            "leases must be created again. Start the query again when the listing is whole",
            operation="ListShards",
            resource=self._options.stream,
        )

    def _has_shard(self, key: str) -> bool:
        try:
            self._kinesis.fetch_iterator(self._options.stream, key, IteratorStart(IteratorType.TRIM_HORIZON))
        except NotFound:
            return False
        return True


def _first_keys(keys: Collection[str]) -> str:
    return f"{', '.join(sorted(keys)[:_NAMED_MAX])}{' ...' if len(keys) > _NAMED_MAX else ''}"
