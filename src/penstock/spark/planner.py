"""Plan the batches of a streaming query: what the driver's reader process does between them.

`latest` is called when the batch before is done. It settles that batch (its claims are where the next one starts),
lets the coordinator have the shards that are read out or wanted elsewhere, looks for news, and gives either the next
batch's offset or, when there is nothing to read, the start offset itself, so that no empty batch runs. While idle it
lets claims become checkpoints, which is what KCL workers and `penstock leases` see.

What is decided is decided in `penstock.core.query_shards`; who owns which lease, by the coordinator behind `fleet`.
Every call to the service has its own bounded retries and deadline: an exception here ends the query.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from penstock.core.coordination import BalancePolicy, CoordinatorOptions, StartReader
from penstock.core.lease import Promote, Refused
from penstock.core.offsets import StreamOffset
from penstock.core.position import Position
from penstock.core.query_shards import QueryShards, Settlement, ShardState, Surprise
from penstock.core.task_split import plan_tasks
from penstock.errors import PenstockError, ServiceError, Unavailable
from penstock.ports.clock import Clock
from penstock.ports.kinesis import Kinesis
from penstock.ports.lease_table import LeaseTable
from penstock.spark.fleet import Fleet
from penstock.spark.joining import (
    check_named_shards,
    check_stream,
    recreate_missing,
    refuse_hidden_sharing,
    scan_leases,
)
from penstock.spark.options import SourceOptions
from penstock.spark.probes import Prober
from penstock.spark.process import ClosableMetrics

_log: Final = logging.getLogger("penstock.spark")
_STOP_S: Final = 10.0
_AVAILABLE_NOW_WAIT_S: Final = 60.0
_THREADS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class ShardTask:
    """What one task reads: plain values, sent to an executor.

    Args:
        shard_id: The shard.
        start: Everything up to and including it is done.
        worker: The query's worker id.
        batch: Number of the batch.
        record_count_max: This shard's part of the limit, or None.
        bytes_max: This shard's part of the limit, or None.
        until_ms: Records that arrived at or after it stay for later, or None.
        planned_ms: When the batch was planned.
        tip_seen_ms: Moment when nothing was left behind `start`, or None.
        retention_ms: The stream's retention.
    """

    shard_id: str
    start: Position
    worker: str
    batch: int
    record_count_max: int | None
    bytes_max: int | None
    until_ms: int | None
    planned_ms: int
    tip_seen_ms: int | None
    retention_ms: int


class Planner:
    """One streaming query's driver side. Called by one thread.

    Args:
        options: The source's options.
        kinesis: The service.
        table: The application's lease table.
        clock: Time.
        open_metrics: Opens what figures go to, when the query's worker id is known.
    """

    def __init__(
        self,
        options: SourceOptions,
        kinesis: Kinesis,
        table: LeaseTable,
        clock: Clock,
        open_metrics: Callable[[SourceOptions, str], ClosableMetrics],
    ) -> None:
        self._options = options
        self._kinesis = kinesis
        self._table = table
        self._clock = clock
        self._open_metrics = open_metrics
        self._metrics: ClosableMetrics | None = None
        self._prober = Prober(
            kinesis,
            options.stream,
            options.probe_interval_s,
            clock.monotonic_s,
            clock.wall_ms,
            backoff=options.connection.backoff,
            deadline_s=options.connection.retry_deadline_s,
            check_stream=self._check_stream,
        )
        self._pool = ThreadPoolExecutor(max_workers=_THREADS_MAX, thread_name_prefix="penstock-promote")
        self._joined: tuple[Fleet, QueryShards] | None = None
        self._stream_id = ("", 0)
        self._retention_ms = 24 * 3_600_000
        self._until_ms: int | None = None
        self._weights: dict[str, int] = {}
        self._settlement: Settlement | None = None
        self._done: StreamOffset | None = None  # what Spark has said is done, until a batch begins

    # --- Spark's questions --------------------------------------------------------------------------------

    def prepare_available_now(self) -> None:
        """Fix the moment up to which the query reads before it ends."""
        listing = self._kinesis.fetch_shards(self._options.stream)
        now_ms = self._clock.wall_ms()
        # The service's clock has whole seconds. Ours is finer and counts as long as the two agree.
        agree = listing.server_ms is None or abs(now_ms - listing.server_ms) < 2000
        self._until_ms = now_ms if agree or listing.server_ms is None else listing.server_ms + 1000

    def latest(self, start: StreamOffset, *, with_limits: bool = True) -> StreamOffset:
        """Give the next batch's offset, or `start` itself when there is nothing to read.

        Waits up to one probe interval for news. With AvailableNow nothing to read ends the query, so there it waits
        until all shards are known to be read.

        Args:
            start: The offset of the batch before, which is done.
            with_limits: Whether the options' limits count for this batch.

        Raises:
            Unavailable: With AvailableNow: it could not be made sure in time that everything is read.
        """
        self._done = start
        fleet, shards = self._join(start)
        wait_s = self._options.probe_interval_s if self._until_ms is None else self._available_now_wait_s
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            self._listen(fleet, shards)
            if not shards.is_settled_for(start.batch):
                self._settle(start, fleet, shards)
            self._prober.probe_due(shards.states.items())
            fleet.tell([*shards.drained(), *shards.hand_back()])
            wanted = [shard for shard, state in shards.states.items() if self._is_wanted(state)]
            if wanted:
                return self._next_offset(start, shards, wanted, with_limits=with_limits)
            self._promote(shards)
            if self._until_ms is not None and self._is_all_read(fleet, shards):
                return start
            now_s = self._clock.monotonic_s()
            if now_s >= deadline_s:
                if self._until_ms is not None:
                    raise Unavailable(self._say_unread(fleet, shards, wait_s))
                return start
            wake_s = min(deadline_s, self._prober.next_due_s(shards.states.values()))
            fleet.wait(max(0.005, wake_s - now_s))

    def tasks(self, end: StreamOffset) -> list[list[ShardTask]]:
        """Give what each task of a batch reads; only from what its offset says, so that a replay reads the same."""
        self._done = None
        _, shards = self._join(end)
        by_shard = {}
        for shard_id, position in end.shards.items():
            records, size = (None, None) if end.limit is None else end.limit.share_of(shard_id)
            if records == 0:
                continue
            own_max = self._options.shard_record_count_max
            state = shards.states.get(shard_id)
            by_shard[shard_id] = ShardTask(
                shard_id=shard_id,
                start=position,
                worker=end.worker,
                batch=end.batch,
                record_count_max=min((n for n in (records, own_max) if n is not None), default=None),
                bytes_max=size,
                until_ms=end.until_ms,
                planned_ms=self._clock.wall_ms(),
                tip_seen_ms=None if state is None else state.tip_seen_ms,
                retention_ms=self._retention_ms,
            )
        shards.batch_begins()
        weights = {shard_id: self._weights.get(shard_id, 0) for shard_id in by_shard}
        split = plan_tasks(weights, self._options.shards_per_task, self._options.partitions_max)
        return [[by_shard[shard_id] for shard_id in task] for task in split]

    def report(self) -> dict[str, Any] | None:
        """Say what the last batch read, how far behind the query is, and what its leases did.

        Shown as `latestOffset` in the query's progress; `penstock.spark.lag` reads it.
        """
        if self._joined is None or self._settlement is None:
            return None
        fleet, shards = self._joined
        stats, done = fleet.stats, self._settlement
        lag = {key: shards.states[key].millis_behind_latest for key in sorted(shards.states)}
        return {
            "bytes": done.bytes_count,
            "claims": done.claim_count,
            "keptIterators": done.kept_iterator_count,
            "leases": {
                "held": stats.held_leases,
                "lost": stats.lost_leases,
                "taken": sum(count for _, count in stats.takes),
                "total": stats.total_leases,
            },
            "maxMillisBehindLatest": max(lag.values(), default=0),
            "millisBehindLatest": lag,
            "records": done.record_count,
            "stream": self._options.stream,
        }

    def stop(self) -> None:
        """End threads. Leases go back at once when the query was idle, with what is done in their shards.

        While a batch is under way they stay in the query's name: it may be repeated, and must find its claims. The query
        may be ended at any point of the calls above; a batch that is done is settled here then.
        """
        self._prober.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._joined is None:
            return
        (fleet, shards), self._joined = self._joined, None
        if not self._is_settled_at_last(fleet, shards):
            fleet.abandon()
            return
        fleet.tell([*shards.drained(), *shards.hand_back_all()])
        if self._metrics is not None:
            self._metrics.close()
        if not fleet.stop(_STOP_S):
            _log.warning("not all leases could be released within %g s; they expire by themselves", _STOP_S)

    def _is_settled_at_last(self, fleet: Fleet, shards: QueryShards) -> bool:
        """Settle a batch that is done and was not settled yet; False when a batch is under way or the service fails."""
        try:
            self._listen(fleet, shards)
            if self._done is not None and not shards.is_settled_for(self._done.batch):
                self._settle(self._done, fleet, shards)
        except PenstockError as error:
            _log.warning(
                "leases are kept until they expire, since the last batch could not be settled: %s", error
            )
            return False
        return shards.is_settled

    # --- joining the application ----------------------------------------------------------------------------

    def _join(self, known: StreamOffset) -> tuple[Fleet, QueryShards]:
        if self._joined is not None:
            return self._joined
        options = self._options
        summary = self._kinesis.fetch_summary(options.stream)
        check_stream(options.stream, summary, known)
        self._stream_id = (summary.arn, summary.created_ms)
        self._retention_ms = summary.retention_hours * 3_600_000
        self._table.ensure_exists()
        worker = self._worker_id(known)
        refuse_hidden_sharing(self._table, worker, options)
        rows = scan_leases(self._table)
        if not rows and not known.shards and options.starting.by_shard:
            check_named_shards(self._kinesis, options)
        recreate_missing(self._kinesis, self._table, options.stream, rows, known)
        self._metrics = self._open_metrics(options, worker)
        fleet = Fleet(
            worker,
            coordinator_options(options),
            stream=options.stream,
            table=self._table,
            kinesis=self._kinesis,
            clock=self._clock,
            metrics=self._metrics,
        )
        self._joined = (fleet, QueryShards(worker))
        wait_s = max(10.0, 2 * options.lease_duration_s)
        if not fleet.wait_until_at_rest(wait_s):
            _log.warning("worker %s has not got its leases within %g s; it goes on without", worker, wait_s)
        self._listen(*self._joined)
        return self._joined

    def _check_stream(self) -> None:
        """Make sure that the stream is there and is still the one that the query began with."""
        arn, created_ms = self._stream_id
        known = StreamOffset(stream_arn=arn, stream_created_ms=created_ms)
        check_stream(self._options.stream, self._kinesis.fetch_summary(self._options.stream), known)

    def _worker_id(self, known: StreamOffset) -> str:
        options = self._options
        if known.worker:
            if options.worker_id not in (None, known.worker):
                _log.warning(
                    "option workerId=%s has no effect: the checkpoint was begun as %s",
                    options.worker_id,
                    known.worker,
                )
            return known.worker
        name = options.worker_id or f"spark-{uuid.uuid4().hex[:12]}"
        if options.zone is not None and "/" not in name:
            name = f"{options.zone}/{name}"
        return name if options.capacity == 1 or "@" in name else f"{name}@{options.capacity}"

    def _listen(self, fleet: Fleet, shards: QueryShards) -> None:
        for word in fleet.take_words():
            if isinstance(word, StartReader):
                shards.start(word, self._clock.wall_ms())
            else:
                shards.stop(word)

    # --- settling the batch before --------------------------------------------------------------------------

    def _settle(self, start: StreamOffset, fleet: Fleet, shards: QueryShards) -> None:
        rows = scan_leases(self._table)
        if recreate_missing(self._kinesis, self._table, self._options.stream, rows, start):
            rows = scan_leases(self._table)
        settlement = shards.settle(start, rows, self._clock.wall_ms(), self._clock.monotonic_s())
        for shard_id, surprise in settlement.surprises:
            _explain(shard_id, surprise, start.batch)
        self._settlement = settlement
        self._weights = {shard_id: state.bytes_count for shard_id, state in shards.states.items()}
        self._measure(settlement, shards)
        fleet.tell(settlement.progress)

    def _measure(self, done: Settlement, shards: QueryShards) -> None:
        metrics = self._metrics
        if metrics is None:
            return
        metrics.count("records", done.record_count)
        metrics.count("bytes", done.bytes_count)
        metrics.count("claims", done.claim_count)
        metrics.count("iterators_kept", done.kept_iterator_count)
        metrics.count("iterators_asked_for", done.claim_count - done.kept_iterator_count)
        for shard_id, state in shards.states.items():
            metrics.gauge("millis_behind_latest", state.millis_behind_latest, {"shard": shard_id})

    # --- between batches --------------------------------------------------------------------------------------

    def _is_wanted(self, state: ShardState) -> bool:
        if not state.has_news:
            return False
        return self._until_ms is None or state.arrival_ms is None or state.arrival_ms < self._until_ms

    def _is_all_read(self, fleet: Fleet, shards: QueryShards) -> bool:
        """Whether nothing of what had arrived by the fixed moment is left, in children that come just now neither."""
        if _unknown(shards):
            return False
        before = set(shards.states)
        fleet.wait_until_at_rest(self._options.probe_interval_s)
        self._listen(fleet, shards)
        return before == set(shards.states) and fleet.is_at_rest

    @property
    def _available_now_wait_s(self) -> float:
        return max(_AVAILABLE_NOW_WAIT_S, 4 * self._options.lease_duration_s)

    def _say_unread(self, fleet: Fleet, shards: QueryShards, wait_s: float) -> str:
        unknown = _unknown(shards)
        why = f"no answer from {', '.join(unknown[:5])}" if unknown else "its leases did not come to rest"
        return (
            f"stream {self._options.stream}: for {wait_s:g} s it could not be made sure that everything is read "
            f"({why}; {fleet.stats.held_leases} leases held): what was read is done, start the query again for the rest"
        )

    def _next_offset(
        self, start: StreamOffset, shards: QueryShards, wanted: Iterable[str], *, with_limits: bool
    ) -> StreamOffset:
        return shards.next_offset(
            start,
            wanted,
            stream=self._stream_id,
            record_count_max=self._options.record_count_max if with_limits else None,
            bytes_max=self._options.bytes_max if with_limits else None,
            until_ms=self._until_ms,
        )

    def _promote(self, shards: QueryShards) -> None:
        """Let the claims of the batch that is done become checkpoints; only while nothing else is to do."""
        shards.note_promoted(self._pool.map(self._promote_one, shards.promotions()))

    def _promote_one(self, write: Promote) -> str:
        """Give the key when there is nothing more to do, an empty text when it is to be tried again."""
        try:
            outcome = self._table.write(write)
        except ServiceError as error:
            _log.warning("the checkpoint of shard %s could not be written yet: %s", write.key, error)
            return ""
        if isinstance(outcome, Refused):
            _log.info("shard %s: its checkpoint stays, %s", write.key, outcome.reason.value)
        return write.key


def _unknown(shards: QueryShards) -> list[str]:
    """Give the shards of which nobody knows yet whether they have more to read."""
    return sorted(
        key for key, state in shards.states.items() if not state.has_news and state.tip_seen_ms is None
    )


def coordinator_options(options: SourceOptions) -> CoordinatorOptions:
    """Say how a query coordinates: as a plain consumer does, with what only Spark knows."""
    return CoordinatorOptions(
        lease_duration_s=options.lease_duration_s,
        policy=BalancePolicy(options.balance),
        max_leases=options.leases_max,
        leases_to_acquire=options.leases_to_acquire,
        keeps_claims=True,
        start=options.starting,
        # A query waits for its first leases, and an application has few drivers: a short wait scatters them enough.
        cold_start_jitter_s=min(1.0, options.lease_duration_s / 10),
        shutdown_timeout_s=_STOP_S / 2,
        # A batch may last for hours, and a query that stands still shows in Spark itself.
        stall_after_s=86_400.0,
    )


def _explain(shard_id: str, surprise: Surprise, batch: int) -> None:
    match surprise:
        case Surprise.REWOUND:
            _log.warning(
                "shard %s: the checkpoint location is older than the lease (an earlier copy was restored): reading goes "
                "back to the start of batch %d and gives its records once more",
                shard_id,
                batch,
            )
        case Surprise.NOT_READ:
            _log.warning(
                "shard %s: batch %d did not read it to its end (no action of the query used all rows), so its records "
                "are offered again",
                shard_id,
                batch,
            )
        case Surprise.LEASE_GONE:
            _log.warning(
                "shard %s: its lease is gone; reading goes on where batch %d began, and gives its records once more",
                shard_id,
                batch,
            )
