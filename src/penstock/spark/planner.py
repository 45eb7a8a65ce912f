"""Plan the batches of a streaming query: what the driver's reader process does between them.

`latest` is called when the batch before is done. It settles that batch (its claims are where the next one starts),
ends shards that are read out (children's leases first, then SHARD_END), looks for news, and gives either the next
batch's offset or, when there is nothing to read, the start offset itself, so that no empty batch runs. While idle
it lets claims become checkpoints, which is what KCL workers and `penstock leases` see.

Every call to the service has its own bounded retries and deadline: an exception here ends the query.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from penstock.core.claims import StartReason, may_promote, resolve_start
from penstock.core.lease import Applied, Checkpoint, Create, End, Lease, starting_lease
from penstock.core.offsets import Limit, StreamOffset
from penstock.core.position import SHARD_END, TRIM_HORIZON, Position
from penstock.core.starting import pin_latest
from penstock.errors import NotFound, OptionError, ServiceError, StreamChanged
from penstock.ports.kinesis import Kinesis
from penstock.ports.lease_table import LeaseTable
from penstock.spark.first_leases import plan_first_leases, snapshot_filter
from penstock.spark.lease_keeper import LeaseKeeper
from penstock.spark.options import SourceOptions
from penstock.spark.probes import Prober, ShardState, state_after

_log: Final = logging.getLogger("penstock.spark")


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
    """

    def __init__(self, options: SourceOptions, kinesis: Kinesis, table: LeaseTable) -> None:
        self._options = options
        self._kinesis = kinesis
        self._table = table
        self._prober = Prober(kinesis, options.stream, options.probe_interval_s, time.monotonic, _wall_ms)
        self._keeper: LeaseKeeper | None = None
        self._summary_arn = ""
        self._summary_created_ms = 0
        self._retention_ms = 24 * 3_600_000
        self._settled: tuple[int, str] | None = None
        self._states: dict[str, ShardState] = {}
        self._rows: dict[str, Lease] = {}
        self._last_batch = 0
        self._until_ms: int | None = None
        self._scan_due_s = float("-inf")
        self._is_promoted = False
        self._is_alone = False
        self._last_counts = {"records": 0, "bytes": 0}

    # --- Spark's questions --------------------------------------------------------------------------------

    def prepare_available_now(self) -> None:
        """Fix the moment up to which the query reads before it ends."""
        listing = self._kinesis.fetch_shards(self._options.stream)
        now_ms = _wall_ms()
        # The service's clock has whole seconds. Ours is finer and counts as long as the two agree.
        agree = listing.server_ms is None or abs(now_ms - listing.server_ms) < 2000
        self._until_ms = now_ms if agree or listing.server_ms is None else listing.server_ms + 1000

    def latest(self, start: StreamOffset, *, with_limits: bool = True) -> StreamOffset:
        """Give the next batch's offset, or `start` itself when there is nothing to read.

        Waits up to one probe interval for news.

        Args:
            start: The offset of the batch before, which is done.
            with_limits: Whether the options' limits count for this batch.
        """
        keeper = self._begin(start)
        deadline_s = time.monotonic() + self._options.probe_interval_s
        while True:
            self._settle(start, keeper)
            self._prober.probe_due(self._states.items())
            self._end_finished(keeper)
            wanted = [shard for shard in sorted(self._states) if self._is_wanted(self._states[shard])]
            if wanted:
                return self._next_offset(start, wanted, with_limits=with_limits)
            self._promote(keeper, start)
            if self._until_ms is not None and self._all_probed():
                return start
            wait_s = min(deadline_s, self._prober.next_due_s(self._states.values())) - time.monotonic()
            if time.monotonic() >= deadline_s:
                return start
            time.sleep(max(0.005, wait_s))

    def tasks(self, end: StreamOffset) -> list[ShardTask]:
        """Give the tasks of a batch; only from what its offset says, so that a replay gets the same ones."""
        keeper = self._begin(end)
        if self._settled is None:
            self._adopt(end, keeper)
        tasks = []
        for shard_id, position in sorted(end.shards.items()):
            records, size = (None, None) if end.limit is None else end.limit.share_of(shard_id)
            if records == 0:
                continue
            own_max = self._options.shard_record_count_max
            state = self._states.get(shard_id)
            tasks.append(
                ShardTask(
                    shard_id=shard_id,
                    start=position,
                    worker=end.worker,
                    batch=end.batch,
                    record_count_max=min((n for n in (records, own_max) if n is not None), default=None),
                    bytes_max=size,
                    until_ms=end.until_ms,
                    planned_ms=_wall_ms(),
                    tip_seen_ms=None if state is None else state.tip_seen_ms,
                    retention_ms=self._retention_ms,
                )
            )
        self._settled = None
        return tasks

    def report(self) -> dict[str, Any] | None:
        """Say how far behind the query is; shown as `latestOffset` in the query's progress."""
        if not self._states:
            return None
        lag = {shard: self._states[shard].millis_behind_latest for shard in sorted(self._states)}
        return {
            "bytes": self._last_counts["bytes"],
            "maxMillisBehindLatest": max(lag.values()),
            "millisBehindLatest": lag,
            "records": self._last_counts["records"],
        }

    def stop(self) -> None:
        """End threads. Leases go back at once when the query was idle and everything is checkpointed."""
        self._prober.close()
        if self._keeper is None:
            return
        # The batch before is done once it is settled, and no batch is under way: a lease without a claim that is still
        # to become its checkpoint can be somebody else's at once.
        is_idle = self._settled is not None
        idle = [key for key, lease in self._keeper.held.items() if is_idle and lease.pending is None]
        try:
            self._keeper.stop(idle)
        except ServiceError as error:
            _log.warning("leases could not be released and expire by themselves: %s", error)

    # --- beginning ----------------------------------------------------------------------------------------

    def _begin(self, known: StreamOffset) -> LeaseKeeper:
        if self._keeper is not None:
            return self._keeper
        summary = self._kinesis.fetch_summary(self._options.stream)
        if known.stream_arn and (known.stream_arn, known.stream_created_ms) != (
            summary.arn,
            summary.created_ms,
        ):
            raise StreamChanged(
                f"stream {self._options.stream} is not the one that the checkpoint was written for "
                f"({known.stream_arn}, created {known.stream_created_ms}; now {summary.arn}, created "
                f"{summary.created_ms}): it was deleted and created again, or the option names another stream. Start "
                "with a new checkpoint location and a new applicationName"
            )
        self._summary_arn, self._summary_created_ms = summary.arn, summary.created_ms
        self._retention_ms = summary.retention_hours * 3_600_000
        self._table.ensure_exists()
        worker = known.worker or self._options.worker_id or f"spark-{uuid.uuid4().hex[:12]}"
        if known.worker and self._options.worker_id not in (None, known.worker):
            _log.warning(
                "option workerId=%s has no effect: the checkpoint was begun as %s",
                self._options.worker_id,
                known.worker,
            )
        self._keeper = LeaseKeeper(self._table, worker, self._options.lease_duration_s)
        return self._keeper

    def _adopt(self, end: StreamOffset, keeper: LeaseKeeper) -> None:
        """Take up the leases of a batch that is replayed by a new process, without touching their claims."""
        rows = self._scan(keeper)
        keeper.acquire(row for row in rows if row.key in end.shards and row.reader == keeper.worker)
        free = [row for row in rows if row.key in end.shards and row.reader is None and not row.is_ended]
        keeper.acquire(free)

    def _scan(self, keeper: LeaseKeeper) -> tuple[Lease, ...]:
        try:
            scan = self._table.scan()
        except NotFound:
            _log.warning(
                "lease table %s was deleted; it is made again from the query's offset", self._table.name
            )
            self._table.ensure_exists()
            scan = self._table.scan()
        for row in scan.skipped:
            _log.warning("lease table %s: row %r is skipped: %s", self._table.name, row.key, row.reason)
        keeper.observe(scan.leases, time.monotonic())
        self._rows = {lease.key: lease for lease in scan.leases}
        self._scan_due_s = time.monotonic() + self._options.lease_duration_s / 2
        return scan.leases

    # --- settling the batch before ------------------------------------------------------------------------

    def _settle(self, start: StreamOffset, keeper: LeaseKeeper) -> None:
        if self._settled == (start.batch, start.worker):
            if time.monotonic() >= self._scan_due_s:
                self._look_again(keeper)
            return
        rows = self._scan(keeper)
        if not rows and not start.shards:
            rows = self._create_first(keeper)
        self._refuse_hidden_sharing(keeper)
        self._recreate_missing(start, keeper)
        self._acquire(keeper)
        now_ms = _wall_ms()
        self._states = {}
        self._last_counts = {"records": 0, "bytes": 0}
        for key, lease in keeper.held.items():
            begin = resolve_start(lease, keeper.worker, start.batch, start.shards.get(key))
            if begin is None or lease.is_ended:
                continue
            self._explain(key, begin.reason, start)
            if begin.note is not None:
                self._last_counts["records"] += begin.note.record_count
                self._last_counts["bytes"] += begin.note.bytes_count
            self._states[key] = state_after(pin_latest(begin.position, now_ms), begin.note, now_ms)
        self._last_batch = max(
            [
                start.batch,
                self._last_batch,
                *(row.claim_batch for row in self._rows.values() if row.claim_batch is not None),
            ]
        )
        self._settled = (start.batch, start.worker)
        self._is_promoted = False

    def _look_again(self, keeper: LeaseKeeper) -> None:
        """Between batches of an idle query: has a lease come free, or been lost?"""
        self._scan(keeper)
        for key in keeper.refresh(self._rows.values()):
            _log.warning("lease %s is another worker's now; this query reads the shard no more", key)
            self._states.pop(key, None)
        self._acquire(keeper)
        self._add_new_states(keeper)

    def _add_new_states(self, keeper: LeaseKeeper) -> None:
        for key, lease in keeper.held.items():
            if key not in self._states and not lease.is_ended:
                self._states[key] = ShardState(
                    pin_latest(lease.checkpoint, _wall_ms()), is_whole=not lease.checkpoint.is_record
                )

    def _acquire(self, keeper: LeaseKeeper) -> None:
        now_s = time.monotonic()
        held = keeper.held
        free = [
            row
            for row in self._rows.values()
            if row.key not in held
            and not row.is_ended
            and self._is_readable(row)
            and not keeper.is_live_elsewhere(row, now_s)
        ]
        keeper.acquire(free)
        keeper.refresh(self._merge(self._rows.values(), keeper))

    @staticmethod
    def _merge(rows: Iterable[Lease], keeper: LeaseKeeper) -> list[Lease]:
        held = keeper.held
        return [
            held[row.key] if row.key in held and held[row.key].counter > row.counter else row for row in rows
        ]

    def _is_readable(self, row: Lease) -> bool:
        parents = (self._rows.get(parent) for parent in row.parents)
        return all(parent is None or parent.is_ended for parent in parents)

    def _create_first(self, keeper: LeaseKeeper) -> tuple[Lease, ...]:
        listing = self._kinesis.fetch_shards(self._options.stream)
        now_ms = _wall_ms() if listing.server_ms is None else listing.server_ms
        snapshot = self._kinesis.fetch_shards(self._options.stream, snapshot_filter(self._options.starting))
        for lease in plan_first_leases(listing.shards, snapshot.shards, self._options.starting, now_ms):
            self._table.write(Create(lease))
        _log.info("application %s begins on stream %s", self._options.application, self._options.stream)
        return self._scan(keeper)

    def _refuse_hidden_sharing(self, keeper: LeaseKeeper) -> None:
        if not self._options.application_is_default or self._is_alone:
            return
        deadline_s = time.monotonic() + 1.5 * self._options.lease_duration_s
        while True:
            others = {
                row.reader for row in self._rows.values() if keeper.is_live_elsewhere(row, time.monotonic())
            }
            if not others:
                self._is_alone = True
                return
            if time.monotonic() > deadline_s:
                raise OptionError(
                    f"stream {self._options.stream}: {', '.join(sorted(map(str, others)))} reads it under the default "
                    f"application name {self._options.application}. Give this query an applicationName of its own to "
                    "read the whole stream, or set the same applicationName in both to share the shards"
                )
            time.sleep(min(1.0, self._options.lease_duration_s / 4))
            self._scan(keeper)

    def _recreate_missing(self, start: StreamOffset, keeper: LeaseKeeper) -> None:
        known_parents = {parent for row in self._rows.values() for parent in row.parents}
        missing = {
            key: position
            for key, position in start.shards.items()
            if key not in self._rows and key not in known_parents
        }
        if not missing:
            return
        shards = {shard.shard_id: shard for shard in self._kinesis.fetch_shards(self._options.stream).shards}
        for key, position in missing.items():
            shard = shards.get(key)
            if shard is None:
                _log.warning("shard %s left the stream (retention) and its lease was cleaned up", key)
                continue
            _log.warning("the lease of shard %s was deleted from table %s: it is made again at %s, and the records of the last batch are given out once more", key, self._table.name, position)  # fmt: skip
            self._table.write(Create(starting_lease(key, position, shard.parents, shard.hash_range)))
        self._scan(keeper)

    @staticmethod
    def _explain(key: str, reason: StartReason, start: StreamOffset) -> None:
        if reason is StartReason.REWOUND:
            _log.warning(
                "shard %s: the checkpoint location is older than the lease (an earlier copy was restored): reading goes "
                "back to the start of batch %d and gives its records once more",
                key,
                start.batch,
            )
        elif reason is StartReason.NOT_READ and (start.limit is None or key in start.limit.shards):
            _log.warning(
                "shard %s: batch %d did not read it to its end (no action of the query used all rows), so its records "
                "are offered again",
                key,
                start.batch,
            )

    # --- between batches ----------------------------------------------------------------------------------

    def _end_finished(self, keeper: LeaseKeeper) -> None:
        finished = [key for key, state in self._states.items() if state.is_finished]
        for key in finished:
            state = self._states[key]
            for child in state.children:
                self._table.write(
                    Create(starting_lease(child.shard_id, TRIM_HORIZON, child.parents, child.hash_range))
                )
            children = frozenset(child.shard_id for child in state.children)
            outcome = keeper.write(key, partial(_end, key, children))
            if not isinstance(outcome, Applied):
                _log.warning(
                    "shard %s is read to its end, and that could not be written yet: %s", key, outcome
                )
                state.due_s = time.monotonic() + self._options.probe_interval_s
                continue
            del self._states[key]
        if finished:
            self._scan(keeper)
            self._acquire(keeper)
            self._add_new_states(keeper)

    def _is_wanted(self, state: ShardState) -> bool:
        if state.is_finished or not state.has_news:
            return False
        return self._until_ms is None or state.arrival_ms is None or state.arrival_ms < self._until_ms

    def _all_probed(self) -> bool:
        return all(state.has_news or state.tip_seen_ms is not None for state in self._states.values())

    def _next_offset(self, start: StreamOffset, wanted: list[str], *, with_limits: bool) -> StreamOffset:
        records = self._options.record_count_max if with_limits else None
        size = self._options.bytes_max if with_limits else None
        batch = self._last_batch + 1
        self._last_batch = batch
        limit = None
        if records is not None or size is not None or self._until_ms is not None:
            turn = batch % len(wanted)
            limit = Limit(records, size, tuple(wanted[turn:] + wanted[:turn]))
        return StreamOffset(
            batch=batch,
            worker=start.worker or (self._keeper.worker if self._keeper else ""),
            stream_arn=self._summary_arn,
            stream_created_ms=self._summary_created_ms,
            shards={key: state.position for key, state in self._states.items()},
            until_ms=self._until_ms,
            limit=limit,
        )

    def _promote(self, keeper: LeaseKeeper, start: StreamOffset) -> None:
        """Let the claims of the batch that is done become checkpoints; only while nothing else is to do."""
        if self._is_promoted:
            return
        complete = True
        for key, lease in keeper.held.items():
            if (
                not may_promote(lease, keeper.worker, start.batch)
                or lease.pending is None
                or lease.pending == SHARD_END
            ):
                continue
            end = lease.pending
            outcome = keeper.write(key, partial(_checkpoint, key, end))
            if not isinstance(outcome, Applied):
                complete = False
                _log.warning("the checkpoint of shard %s could not be written yet: %s", key, outcome)
        self._is_promoted = complete


def _end(key: str, children: frozenset[str], counter: int) -> End:
    return End(key, counter, children)


def _checkpoint(key: str, position: Position, counter: int) -> Checkpoint:
    return Checkpoint(key, counter, position)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
