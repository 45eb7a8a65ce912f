"""Settle a batch that is done: fix its end where nobody has, and resolve where every shard goes on.

Spark asks for the next batch when the one before is done. Its claims on the leases are where the next one starts. A shard
without a claim was read by no action of the query; the driver then fixes its end. While nothing is to be read, claims
become checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.batches.claims import find_unknown_claims
from penstock.core.batches.known_batches import KnownBatches
from penstock.core.batches.offsets import Limit, Share, StreamOffset
from penstock.core.batches.query_shards import QueryShards, Settlement, UnexpectedStart
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Applied, Promote, Refused
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import AnotherDriver, ClaimConflict, NotFound, ServiceError, Unavailable
from penstock.ports.clock import Clock
from penstock.ports.lease_table import LeaseTable
from penstock.runtime.threads import Threads, map_on
from penstock.spark.lease_recreation import LeaseRecreation
from penstock.spark.shard_task import ShardTask
from penstock.spark.spark_options import SourceOptions
from penstock.spark.startup_checks import refuse_sharing_in_one_query, scan_leases

_log: Final = logging.getLogger("penstock.spark")
_THREADS_MAX: Final = 16
_FULL_LOOKS: Final = 3
"""Batches after which the whole lease table is read: what concerns other workers shows there. Later only the batch's rows."""
_FIX_ATTEMPTS_MAX: Final = 4
_NOTHING: Final = Share(record_count_max=0)


class GivenBatch(Struct, frozen=True):
    """A batch that this driver gave to Spark.

    Args:
        end: Its offset.
        planned_ms: When it was planned, by the time of day.
    """

    end: StreamOffset
    planned_ms: int


class BatchSettler:
    """Settles one query's batches. Called by one thread.

    Args:
        options: The source's options.
        table: The application's lease table.
        recreation: Brings back what the table lacks.
        clock: Time.
        threads: Where its threads come from.
        read: Reads one shard of a batch as an executor does; its rows are dropped here. It is told Spark's id of the query, or
            None while no task has claimed.
        tasks_of: The tasks of a batch.
    """

    def __init__(
        self,
        options: SourceOptions,
        table: LeaseTable,
        recreation: LeaseRecreation,
        *,
        clock: Clock,
        threads: Threads,
        read: Callable[[ShardTask, str | None], Iterable[Any]],
        tasks_of: Callable[[GivenBatch, QueryShards], Iterator[ShardTask]],
    ) -> None:
        self._options = options
        self._recreation = recreation
        self._table = table
        self._clock = clock
        self._read = read
        self._tasks_of = tasks_of
        self._pool = threads.pool("penstock-promote", _THREADS_MAX)
        self._condition = threads.condition
        self._full_looks_left = _FULL_LOOKS
        self._claimed_count = 0  # of batches; their claims tell Spark's id of the query
        self._queries: frozenset[str] = frozenset()
        """Spark's ids of the queries whose tasks made this worker's claims; more than one where a location was copied."""
        self._has_warned_of_unread = False
        self.rewound_from = -1
        """The last batch that was claimed and that the checkpoint location does not know."""
        self._passing: set[tuple[str, tuple[int, str]]] = set()

    def settle(
        self,
        start: StreamOffset,
        given: GivenBatch | None,
        shards: QueryShards,
        stream: StreamIdentity,
        *,
        is_last: bool = False,
    ) -> Settlement:
        """Resolve where every shard goes on, now that a batch is done.

        Args:
            start: The done batch's offset.
            given: The batch that this driver gave out last, or None.
            shards: The query's.
            stream: The stream that is read.
            is_last: The query ends: no shard is read any more.

        Raises:
            AnotherDriver: A later batch than this driver knows was claimed.
            OptionError: Two sources of the query share the stream's shards.
            Unavailable: With `is_last`: a shard's end is not fixed.
        """
        asked = None if self._full_looks_left > 0 else shards.rows_to_read(start)
        rows = self.look(asked)
        if asked is not None and not rows.keys() >= set(asked):
            # Some are gone: which ones must come back, only the whole table tells.
            asked, rows = None, self.look(None)
        if asked is None:
            self._full_looks_left -= 1
            if self._recreation.bring_back(rows, start, stream):
                rows = self.look(None)
        self.refuse_another_driver(start.known_batches, shards, rows)
        unclaimed = shards.unclaimed(start, rows)
        if unclaimed and is_last:
            raise Unavailable(
                f"no execution of batch {start.batch} has fixed its end in shard {unclaimed[0]}"
            )
        # See first, then fix: the driver's own tasks must know which claim they find, as an executor's do.
        shards.on_fresh_rows(unclaimed, rows)
        if unclaimed:
            self._fix_ends(start, given, shards, unclaimed)
            rows |= self.look(unclaimed)
        settlement = shards.settle(start, rows, self._clock.wall_ms(), self._clock.monotonic_s(), asked)
        if unclaimed:  # who made those claims says nothing of the cluster
            settlement = replace(settlement, processes=frozenset())
        self._refuse_sharing(
            settlement, shards, self.look(None) if self._looks_for_sharing(settlement, asked) else rows
        )
        for shard_id, unexpected in settlement.unexpected_starts:
            _explain(shard_id, unexpected, start.batch)
        return settlement

    def _looks_for_sharing(self, settlement: Settlement, asked: Collection[str] | None) -> bool:
        """Whether the whole table is to be read once more, since the batch tells the query and its rows are only a part."""
        # A load gives out batches whose leases it loses, or whose rows nobody reads: no claim names its query. Another one does the
        # same, later. If each looked at its first batches only, neither would ever see the other, so the looks go on, ever rarer.
        if not settlement.queries:
            return False
        self._claimed_count += 1
        return asked is not None and self._claimed_count & (self._claimed_count - 1) == 0

    def _refuse_sharing(self, settlement: Settlement, shards: QueryShards, rows: Mapping[str, Lease]) -> None:
        self._queries |= settlement.queries
        refuse_sharing_in_one_query(self._options, shards.worker, rows.values(), self._queries)

    def look(self, keys: Collection[str] | None) -> dict[str, Lease]:
        """Return leases as they are now: of these shards, or all."""
        if keys is None:
            return scan_leases(self._table)
        try:
            return {lease.key: lease for lease in self._table.fetch_many(keys).leases} if keys else {}
        except NotFound:  # the whole table is gone
            return {}

    def make_lost_leases_again(self, shards: QueryShards, stream: StreamIdentity) -> None:
        """Make the leases again that somebody has deleted under the query, where it stands; not those that others have ended."""
        lost = shards.lost()
        rows = self.look(lost)
        deleted = {key: mark for key, mark in lost.items() if key not in rows}
        if deleted:
            places = {key: mark.position for key, mark in deleted.items()}
            nothing = Limit(None, None, ())  # no batch is under way, so none is repeated
            stands = StreamOffset(worker=shards.worker, shards=places, limit=nothing)
            marks = {key: mark for key, mark in deleted.items() if mark.position.is_record}
            self._recreation.bring_back(self.look(None), stands, stream, marks)

    def let_pass(self, rows: Iterable[Lease], worker: str, known: KnownBatches) -> None:
        """Remember the claims that stand when a query begins and that its checkpoint location does not know.

        Where another worker holds the lease they stay, and a look at the table that lags may still show those that go. None
        of them counts as the query's own.
        """
        unknown = find_unknown_claims(rows, worker, known)
        self._passing |= {(row.key, claim.identity) for row, claim in unknown}

    def refuse_another_driver(
        self, known: KnownBatches, shards: QueryShards, rows: Mapping[str, Lease]
    ) -> None:
        """Make sure that nobody claims a batch in the query's name that its checkpoint location does not know.

        Raises:
            AnotherDriver: Somebody has.
        """
        for row, claim in find_unknown_claims(rows.values(), shards.worker, known):
            if claim.batch > self.rewound_from and (row.key, claim.identity) not in self._passing:
                which = "batch" if claim.batch > known.last else "another batch"
                raise AnotherDriver(
                    f"shard {row.key}: {which} {claim.batch} of {shards.worker} was claimed, and this query is at batch "
                    f"{known.last}: another query works from the same checkpoint location, or from a copy of it. Make sure that "
                    "one query at a time uses it"
                )

    def _fix_ends(
        self,
        start: StreamOffset,
        given: GivenBatch | None,
        shards: QueryShards,
        unclaimed: Collection[str],
    ) -> None:
        """Fix where a done batch ended in shards that no action of the query read to their end.

        A batch that this driver gave out and Spark went on from is done, so it is read to the end that it has, and its
        rows are dropped. Of a batch that ended under an earlier driver nobody knows whether anything saw it: it is fixed to
        hold nothing, and offered again.
        """
        if given is None or given.end.batch != start.batch:
            _log.warning(
                "batch %d ended under an earlier driver, and nothing shows that its rows of %s were read: they are offered again",
                start.batch,
                ", ".join(sorted(unclaimed)[:5]),
            )
            batch = GivenBatch(start, self._clock.wall_ms())
            tasks = [replace(task, share=_NOTHING) for task in self._tasks_of(batch, shards)]
        else:
            self._warn_of_unread(start, unclaimed)
            # What came later was in no batch: it is for the next one.
            tasks = [_up_to(task, given.planned_ms) for task in self._tasks_of(given, shards)]
        tasks = [task for task in tasks if task.shard_id in unclaimed]
        for _ in map_on(self._pool, self._condition(), self._fix_end, tasks):
            pass

    def _warn_of_unread(self, start: StreamOffset, unclaimed: Collection[str]) -> None:
        if self._has_warned_of_unread:
            return
        self._has_warned_of_unread = True
        _log.warning(
            "batch %d: no action of the query read the rows of %s to their end; the query goes on behind what the batch "
            "had, as it does with other sources (said once)",
            start.batch,
            ", ".join(sorted(unclaimed)[:5]),
        )

    def _fix_end(self, task: ShardTask) -> None:
        for attempt in range(_FIX_ATTEMPTS_MAX):
            try:
                for _ in self._read(task, min(self._queries, default=None)):
                    pass
            except ClaimConflict:
                if attempt == _FIX_ATTEMPTS_MAX - 1:
                    raise
            else:
                return

    def promote(self, shards: QueryShards) -> None:
        """Let the claims of the batch that is done become checkpoints; only while nothing else is to do."""
        shards.on_promoted(map_on(self._pool, self._condition(), self._promote_one, shards.promotions()))

    def _promote_one(self, write: Promote) -> str:
        """Write one promotion; returns its key when there is nothing more to do, and an empty text when it must be tried again."""
        try:
            outcome = self._table.write(write)
        except ServiceError as error:
            _log.warning("the checkpoint of shard %s could not be written yet: %s", write.key, error)
            return ""
        if isinstance(outcome, Refused):
            if isinstance(apply_write(outcome.row, write), Applied):
                return ""  # the row that stands does not explain the refusal
            _log.info("shard %s: its checkpoint stays, %s", write.key, outcome.reason.value)
        return write.key

    def close(self) -> None:
        """End the threads, each after its call."""
        self._pool.close()


def _up_to(task: ShardTask, moment_ms: int) -> ShardTask:
    until_ms = moment_ms if task.until_ms is None else min(task.until_ms, moment_ms)
    return replace(task, until_ms=until_ms)


def _explain(shard_id: str, unexpected: UnexpectedStart, batch: int) -> None:
    match unexpected:
        case UnexpectedStart.NOT_READ:
            _log.warning(
                "shard %s: batch %d did not read it to its end, so its records are offered again",
                shard_id,
                batch,
            )
        case UnexpectedStart.LEASE_GONE:
            _log.warning(
                "shard %s: its lease is gone; reading goes on where batch %d began, and gives its records once more",
                shard_id,
                batch,
            )
