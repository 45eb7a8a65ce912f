"""The leases that this worker holds: renewing, checkpointing, handing over, ending, losing.

One `Holding` per lease, from the write that acquired it to the write that gives it up, or to its loss. Writes on a
lease follow each other, each with the counter that the one before left. Delivery is allowed until a deadline that
counts from the moment the last successful write was *sent*: another worker can see the lease expire at the
earliest a whole lease duration after that moment.

A lease that is lost, or could not be renewed before its deadline, is dropped at once; its reader is told to stop
and its last word, when it comes, is written forward only (`LateCheckpoint`). No new reader of a shard starts in
this process before the old one has stopped.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from penstock.core.leases.coordinator_events import (
    CheckpointRequested,
    CheckpointStands,
    CoordinatorOptions,
    ExtendDelivery,
    FetchLease,
    Level,
    NotDone,
    Problem,
    ReaderFailed,
    ReaderProgress,
    ReaderStopped,
    ShardDrained,
    StartReader,
    StopReader,
    StopWhy,
    Topic,
    Unknown,
)
from penstock.core.leases.held_lease import Holding, Phase
from penstock.core.leases.held_lease_reports import (
    report_end,
    report_failed_reader,
    report_loss,
    report_refused_call,
    report_release,
    report_stalls,
)
from penstock.core.leases.late_checkpoints import LastWords
from penstock.core.leases.lease import (
    Applied,
    Checkpoint,
    End,
    Lease,
    LeaseWrite,
    Refusal,
    Refused,
    Release,
    Renew,
    TipMark,
)
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.pending_writes import Errand, Outbox
from penstock.core.leases.required_leases import plan_child_leases, start_reading_at
from penstock.core.leases.shard_end import ShardEnds
from penstock.core.position import Position

_RETRY_MIN_S: Final = 0.2


class Holdings:
    """Every lease held by one worker.

    Args:
        me: The worker's id.
        options: As for the coordinator.
        view: Shared with the coordinator; kept up to date with every answer.
        outbox: Where effects go.
    """

    def __init__(self, me: str, options: CoordinatorOptions, view: LeaseView, outbox: Outbox) -> None:
        self.me = me
        self.options = options
        self.view = view
        self.outbox = outbox
        self.is_stopping = False
        self.table_missing = False
        self.lost_count = 0
        self.ends = ShardEnds(me, options, view, outbox)
        self.last_words = LastWords(view, outbox)
        self._held: dict[str, Holding] = {}
        self._due: list[tuple[float, str, int]] = []
        self._leaving: dict[str, int] = {}  # readers told to stop whose lease is gone: key -> epoch
        self._last_epoch = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[Holding]:
        return iter(self._held.values())

    def get(self, key: str) -> Holding | None:
        """Give a held lease, or None."""
        return self._held.get(key)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is held and no reader is on its way out."""
        return not self._held and not self._leaving

    def deadline_s(self, holding: Holding) -> float:
        """Say until when delivery is allowed."""
        return holding.renewed_s + self.options.lease_duration_s - self.options.margin_s

    @property
    def next_wake_s(self) -> float:
        """Say when something is due; infinity when nothing is held."""
        while self._due:
            due_s, key, epoch = self._due[0]
            holding = self._held.get(key)
            if holding is not None and holding.epoch == epoch and holding.due_s == due_s:
                return due_s
            heapq.heappop(self._due)
        return float("inf")

    # --- getting --------------------------------------------------------------------------------------

    def acquire(self, lease: Lease, sent_s: float, now_s: float) -> None:
        """Hold a lease: a write of this worker, sent at `sent_s`, made or left it the owner."""
        self._last_epoch += 1
        renew_due_s = sent_s + self.options.renew_interval_s * (0.3 + 0.7 * self.outbox.draw())
        holding = Holding(lease.key, self._last_epoch, lease, sent_s, renew_due_s, progress_s=now_s)
        self._held[lease.key] = holding
        holding.want(self.last_words.take(lease.key))
        if self.is_stopping:
            holding.phase = Phase.STOPPED
        self.drive(holding, now_s)

    def _may_start(self, holding: Holding) -> bool:
        return holding.key not in self._leaving and not self.view.waits_for_parents(holding.lease)

    def _start(self, holding: Holding, now_s: float) -> None:
        holding.phase = Phase.READING
        holding.progress_s = now_s
        position = start_reading_at(holding.lease, self.view.has_parent(holding.lease))
        if holding.wanted is not None and holding.wanted > position:
            position = holding.wanted  # the last word of an earlier reader in this process
        self.outbox.emit(
            StartReader(holding.key, holding.epoch, position, holding.lease, self.deadline_s(holding))
        )

    def wake_waiting(self, now_s: float) -> None:
        """Look again at leases that wait for their parents."""
        for holding in [held for held in self._held.values() if held.phase is Phase.WAITING]:
            self.drive(holding, now_s)

    # --- time -----------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= now_s:
            due_s, key, epoch = heapq.heappop(self._due)
            holding = self._held.get(key)
            if holding is not None and holding.epoch == epoch and holding.due_s == due_s:
                holding.due_s = float("inf")
                self.drive(holding, now_s)
        self.last_words.write(now_s)

    def drive(self, holding: Holding, now_s: float) -> None:
        """Do the next thing for one lease, if there is one, and note when to look again."""
        if now_s >= self.deadline_s(holding):
            self._drop(holding, now_s, StopWhy.EXPIRED)
            return
        if holding.phase is Phase.WAITING and self._may_start(holding):
            self._start(holding, now_s)
        if holding.phase is Phase.DRAINED:
            self.ends.create_children(holding, now_s)
        if holding.doubtful is not None:
            if not holding.fetching and now_s >= holding.retry_s:
                holding.fetching = True
                self.outbox.emit(FetchLease(holding.key))
        elif not self.outbox.is_busy(holding.key) and now_s >= holding.retry_s:
            write = self._next_write(holding, now_s)
            if write is not None:
                if holding.first_sent_s is None:
                    holding.first_sent_s = now_s
                self.outbox.send(write, ("held", holding.epoch), now_s, self.deadline_s(holding))
        self._schedule(holding, now_s)

    def _next_write(self, holding: Holding, now_s: float) -> LeaseWrite | None:
        lease, key = holding.lease, holding.key
        if holding.phase is Phase.STOPPED:
            next_owner = lease.owner if lease.checkpoint_owner == self.me else None
            last = holding.ahead
            return Release(key, lease.counter, self.me, last, next_owner, self._tip(holding, last))
        if holding.phase is Phase.DRAINED and self.ends.children_stand(holding):
            return End(key, lease.counter, self.me, frozenset(child.shard_id for child in holding.children))
        is_due = now_s >= holding.renew_due_s or lease.stopped_reason != holding.stopped_reason
        if not is_due and not (holding.urgent and holding.wanted is not None):
            return None
        ahead = None if self.options.keeps_claims else holding.ahead
        if ahead is not None:
            tip = self._tip(holding, ahead)
            return Checkpoint(key, lease.counter, self.me, ahead, None if tip is None else tip.tip_ms)
        holding.urgent = False
        if not is_due:
            return None
        return Renew(
            key,
            lease.counter,
            self.me,
            holding.throughput_kbps,
            during_handover=lease.checkpoint_owner == self.me,
            stopped_reason=holding.stopped_reason,
            tip=holding.tip if self.options.keeps_claims else self._tip(holding, None),
            stream=self.options.stream if lease.stream is None else None,
        )

    def _tip(self, holding: Holding, ahead: Position | None) -> TipMark | None:
        """Give what a write notes of the tip, with a checkpoint or without."""
        if ahead is None and self.options.keeps_claims:
            return None  # a claim may have moved the checkpoint: this worker's copy of it is not the row's
        return holding.tip_at(holding.lease.checkpoint if ahead is None else ahead)

    def _schedule(self, holding: Holding, now_s: float) -> None:
        due_s = self.deadline_s(holding)
        if holding.doubtful is not None:
            if not holding.fetching:
                due_s = min(due_s, holding.retry_s)
        elif not self.outbox.is_busy(holding.key):
            due_s = min(due_s, max(holding.renew_due_s, holding.retry_s))
            if holding.retry_s > now_s and (
                holding.urgent or holding.phase in (Phase.STOPPED, Phase.DRAINED)
            ):
                due_s = min(due_s, holding.retry_s)
        if holding.phase is Phase.DRAINED and holding.child_retry_s > now_s:
            due_s = min(due_s, holding.child_retry_s)
        due_s = max(due_s, now_s)
        if due_s != holding.due_s:  # entries that no longer say the holding's own moment are skipped
            holding.due_s = due_s
            heapq.heappush(self._due, (due_s, holding.key, holding.epoch))

    # --- answers --------------------------------------------------------------------------------------

    def on_write(self, errand: Errand, outcome: Applied | Refused | NotDone | Unknown, now_s: float) -> None:
        """Take in the answer to a write of a held lease."""
        holding = self._held.get(errand.write.key)
        if holding is None or holding.epoch != errand.purpose[1]:
            return
        if isinstance(outcome, Applied) and outcome.lease is not None:
            self._on_applied(holding, errand, outcome.lease, now_s)
        elif isinstance(outcome, NotDone):
            self._retry_later(holding, now_s)
            self._note_not_done(holding, outcome)
        elif isinstance(outcome, Refused) and (outcome.row is not None or outcome.reason is Refusal.MISSING):
            self._on_refused(holding, errand, outcome, now_s)
        else:  # no answer, or one that does not tell what stands there
            holding.doubtful = errand.write
        if self._held.get(errand.write.key) is holding:
            self.drive(holding, now_s)

    def on_fetched(self, key: str, lease: Lease | None, now_s: float) -> None:
        """Take in a row that was read back."""
        holding = self._held.get(key)
        if holding is None or holding.doubtful is None or not holding.fetching:
            return
        write, holding.doubtful, holding.fetching = holding.doubtful, None, False
        self._reconcile(holding, write, lease, now_s)
        if self._held.get(key) is holding:
            self.drive(holding, now_s)

    def on_fetch_failed(self, key: str, now_s: float) -> None:
        """Reading back failed: read again a little later; the deadline bounds it."""
        holding = self._held.get(key)
        if holding is not None and holding.fetching:
            holding.fetching = False
            self._retry_later(holding, now_s)
            self.drive(holding, now_s)

    def _retry_later(self, holding: Holding, now_s: float) -> None:
        holding.failures += 1
        bound_s = min(self.options.renew_interval_s, _RETRY_MIN_S * 2 ** min(holding.failures, 10))
        holding.retry_s = now_s + _RETRY_MIN_S / 4 + bound_s * self.outbox.draw()

    def _note_not_done(self, holding: Holding, outcome: NotDone) -> None:
        if outcome.problem is Problem.TABLE_MISSING:
            self.table_missing = True
        elif outcome.problem is Problem.REFUSED and holding.failures == 1:
            report_refused_call(self.outbox, holding, outcome)

    def _on_applied(self, holding: Holding, errand: Errand, lease: Lease, now_s: float) -> None:
        self.view.observe(lease, now_s)
        write = errand.write
        holding.failures = 0
        holding.retry_s = 0.0
        if isinstance(write, Release):
            self._gone_by_release(holding, lease)
        elif isinstance(write, End):
            self._gone_by_end(holding, now_s)
        else:
            if self.options.keeps_claims and isinstance(write, Renew) and write.tip == holding.tip:
                holding.tip = None  # said; a claim may note a later place meanwhile
            self._renewed(holding, lease, errand.sent_s)

    def _renewed(self, holding: Holding, lease: Lease, sent_s: float) -> None:
        holding.first_sent_s = None
        checkpoint_moved = lease.checkpoint != holding.lease.checkpoint
        holding.lease = lease
        if sent_s > holding.renewed_s:
            holding.renewed_s = sent_s
            holding.renew_due_s = sent_s + self.options.renew_interval_s * (0.8 + 0.2 * self.outbox.draw())
            if holding.has_reader:
                self.outbox.emit(ExtendDelivery(holding.key, holding.epoch, self.deadline_s(holding)))
        if checkpoint_moved and lease.checkpoint.is_record:
            self.outbox.emit(CheckpointStands(holding.key, holding.epoch, lease.checkpoint))
        if lease.checkpoint_owner == self.me:
            self.stop(holding, StopWhy.HANDOVER)

    def _on_refused(self, holding: Holding, errand: Errand, outcome: Refused, now_s: float) -> None:
        row = outcome.row
        if row is not None:
            self.view.observe(row, now_s)
        if row is not None and row.reader == self.me and outcome.reason is Refusal.HANDOVER:
            holding.lease = row
            self.stop(holding, StopWhy.HANDOVER)
        elif row is not None and row.reader == self.me and outcome.reason is Refusal.BACKWARDS:
            # A just robbed worker's last word came after this one took the lease: what it did is done.
            self.outbox.report(
                Topic.CHECKPOINT_BEHIND,
                Level.INFO,
                f"lease {holding.key}: the table's checkpoint {row.checkpoint} is ahead of {holding.wanted}; it stays",
                holding.key,
            )
            holding.lease = row
        else:
            self._reconcile(holding, errand.write, row, now_s)

    def _reconcile(self, holding: Holding, write: LeaseWrite, row: Lease | None, now_s: float) -> None:
        """Compare what was sent with what stands in the table: three outcomes become two."""
        if row is None:
            self.view.forget(holding.key)
            self._drop(holding, now_s, StopWhy.LOST, row_gone=True)
            return
        self.view.observe(row, now_s)
        counter = getattr(write, "counter", row.counter)
        if isinstance(write, End) and row.is_ended:
            self._gone_by_end(holding, now_s)
        elif isinstance(write, Release) and row.reader != self.me and holding.is_written(row):
            self._gone_by_release(holding, row)
        elif row.reader != self.me or row.counter not in (counter, counter + 1):
            self._drop(holding, now_s, StopWhy.LOST, row=row)
        elif row.counter == counter:
            holding.lease = row  # it was not applied: the next drive writes again
            if row.checkpoint_owner == self.me:
                self.stop(holding, StopWhy.HANDOVER)
        else:
            self.outbox.report(
                Topic.READ_BACK,
                Level.INFO,
                f"lease {holding.key}: the answer to a write was lost, the write was not",
                holding.key,
            )
            # An earlier write with this counter may be the one that arrived: only its moment is safe to count from.
            self._renewed(holding, row, holding.first_sent_s or holding.renewed_s)

    def see_row(self, row: Lease, now_s: float, began_s: float | None = None) -> None:
        """Compare a scanned row with what is held: a request for hand-over shows, or a robbery."""
        holding = self._held.get(row.key)
        if holding is None or self.outbox.is_busy(row.key) or holding.doubtful is not None:
            return
        if row.counter == holding.lease.counter and row.reader == self.me:
            if row.checkpoint_owner == self.me and holding.lease.checkpoint_owner is None:
                holding.lease = row
                self.stop(holding, StopWhy.HANDOVER)
                self.drive(holding, now_s)
        elif began_s is None or holding.renewed_s < began_s:
            self.renew_now(row.key, now_s)  # perhaps an old row, perhaps a robbery: the next renewal tells

    def renew_now(self, key: str, now_s: float) -> None:
        """Renew a held lease at once, to learn how it stands."""
        holding = self._held.get(key)
        if holding is not None and holding.renew_due_s > now_s:
            holding.renew_due_s = now_s
            self.drive(holding, now_s)

    # --- the reader's words -----------------------------------------------------------------------------

    def _reading(self, key: str, epoch: int) -> Holding | None:
        holding = self._held.get(key)
        return holding if holding is not None and holding.epoch == epoch else None

    def on_checkpoint(self, event: CheckpointRequested, now_s: float) -> None:
        """Take in that a reader is done with something."""
        holding = self._reading(event.key, event.epoch)
        if holding is None:
            return
        holding.want(event.position)
        holding.urgent = holding.urgent or event.urgent
        if event.urgent:
            self.drive(holding, now_s)

    def on_progress(self, event: ReaderProgress, now_s: float) -> None:
        """Take in how reading goes."""
        holding = self._reading(event.key, event.epoch)
        if holding is None:
            return
        if event.read_through != holding.progress or event.millis_behind_latest == 0:
            holding.progress = event.read_through
            holding.progress_s = now_s
        holding.behind_ms = event.millis_behind_latest
        holding.tip = event.tip or holding.tip
        if event.throughput_kbps is not None:
            before = holding.throughput_kbps
            if before is None:
                before = holding.lease.throughput_kbps
            smoothed = event.throughput_kbps if before is None else (before + event.throughput_kbps) / 2
            holding.throughput_kbps = round(smoothed, 6)

    def on_drained(self, event: ShardDrained, now_s: float) -> None:
        """Take in that a shard is read to its end."""
        self._leave(event.key, event.epoch)
        holding = self._reading(event.key, event.epoch)
        if holding is None or not holding.has_reader:
            self.wake_waiting(now_s)
            return
        holding.phase = Phase.DRAINED
        holding.children = event.children
        holding.to_create = {lease.key: lease for lease in plan_child_leases(event.children)}
        self.drive(holding, now_s)

    def on_stopped(self, event: ReaderStopped, now_s: float) -> None:
        """Take in that a reader has stopped as asked."""
        if self._leave(event.key, event.epoch):
            self._last_word(event.key, event.position, now_s)
            self.wake_waiting(now_s)
            return
        holding = self._reading(event.key, event.epoch)
        if holding is None or not holding.has_reader:
            return
        holding.want(event.position)
        holding.tip = event.tip or holding.tip
        holding.phase = Phase.STOPPED
        self.drive(holding, now_s)

    def on_failed(self, event: ReaderFailed, now_s: float) -> bool:
        """Take in that a reader has given up; True when its lease is to be freed."""
        if self._leave(event.key, event.epoch):
            self._last_word(event.key, event.position, now_s)
            return False
        holding = self._reading(event.key, event.epoch)
        if holding is None or not holding.has_reader:
            return False
        holding.want(event.position)
        frees = event.release or holding.phase is Phase.STOPPING
        report_failed_reader(self.outbox, event, is_freed=frees)
        holding.phase = Phase.STOPPED if frees else Phase.PARKED
        holding.stopped_reason = event.short_reason
        holding.urgent = True
        self.drive(holding, now_s)
        return event.release

    def _leave(self, key: str, epoch: int) -> bool:
        if self._leaving.get(key) != epoch:
            return False
        del self._leaving[key]
        return True

    def _last_word(self, key: str, position: Position | None, now_s: float) -> None:
        """Keep what a reader without a lease has done, until it is written or the lease comes back."""
        holding = self._held.get(key)
        if holding is None:
            self.last_words.keep(key, position)
        else:
            holding.want(position)
            self.drive(holding, now_s)

    # --- giving up --------------------------------------------------------------------------------------

    def stop(self, holding: Holding, why: StopWhy) -> None:
        """Ask a lease's reader to stop; what follows is the release. Does nothing when that is under way."""
        if holding.phase is Phase.READING:
            holding.phase = Phase.STOPPING
            self.outbox.emit(StopReader(holding.key, holding.epoch, why))
        elif holding.phase in (Phase.WAITING, Phase.PARKED):
            holding.phase = Phase.STOPPED

    def stop_all(self, now_s: float) -> None:
        """Begin a graceful stop."""
        self.is_stopping = True
        for holding in list(self._held.values()):
            self.stop(holding, StopWhy.SHUTDOWN)
            self.drive(holding, now_s)

    def release_stragglers(self, now_s: float) -> list[str]:
        """At the end of a stop: release leases whose readers are not done, with what they have done so far."""
        late = [holding for holding in self._held.values() if holding.phase is Phase.STOPPING]
        for holding in late:
            holding.phase = Phase.STOPPED
            self._leaving[holding.key] = holding.epoch
            self.drive(holding, now_s)
        return [holding.key for holding in late]

    def _drop(
        self,
        holding: Holding,
        now_s: float,
        why: StopWhy,
        *,
        row: Lease | None = None,
        row_gone: bool = False,
    ) -> None:
        del self._held[holding.key]
        self.lost_count += 1
        if holding.has_reader:
            self._leaving[holding.key] = holding.epoch
            if holding.phase is Phase.READING or why is not StopWhy.EXPIRED:
                self.outbox.emit(StopReader(holding.key, holding.epoch, why))
        elif holding.wanted is not None and not row_gone:
            self._last_word(holding.key, holding.wanted, now_s)
        report_loss(self.outbox, self.me, holding.key, why, row, row_gone=row_gone)

    def _gone_by_release(self, holding: Holding, row: Lease) -> None:
        del self._held[holding.key]
        if row.checkpoint.is_record and row.checkpoint != holding.lease.checkpoint:
            self.outbox.emit(CheckpointStands(holding.key, holding.epoch, row.checkpoint))
        report_release(self.outbox, row)

    # --- the end of a shard -----------------------------------------------------------------------------

    def on_child_created(
        self, errand: Errand, outcome: Applied | Refused | NotDone | Unknown, now_s: float
    ) -> None:
        """Take in the answer to the creation of a child's lease; it is the answer for its other parent too."""
        _, parent, epoch = errand.purpose
        key = errand.write.key
        holding = self._reading(parent, epoch)
        self.ends.on_answer(key, parent, holding, outcome, now_s)
        if holding is not None:
            self.drive(holding, now_s)
        if isinstance(outcome, Applied | Refused):
            self._note_child_stands(key, now_s)

    def _note_child_stands(self, key: str, now_s: float) -> None:
        for holding in self._held.values():
            if holding.to_create is not None and holding.to_create.pop(key, None) is not None:
                self.drive(holding, now_s)

    def lacking_parents(self) -> set[str]:
        """Give the shards whose missing leases keep finished shards from being ended."""
        lacking: set[str] = set()
        for holding in self._held.values():
            lacking |= self.ends.lacking_parents(holding)
        return lacking

    def _gone_by_end(self, holding: Holding, now_s: float) -> None:
        del self._held[holding.key]
        report_end(self.outbox, holding)
        self.wake_waiting(now_s)
        if not self.is_stopping:
            self.ends.take_children(holding, self._held)

    # --- the audit --------------------------------------------------------------------------------------

    def audit(self, alive: frozenset[tuple[str, int]], now_s: float) -> None:
        """Compare held leases with living readers: each held and readable lease has exactly one."""
        for key, epoch in sorted(alive):
            holding = self._held.get(key)
            is_known = holding is not None and holding.epoch == epoch and holding.has_reader
            if not is_known and self._leaving.get(key) != epoch:
                self._leaving[key] = epoch
                self._report_audit(key, "a reader lives without its lease; it is stopped")
                self.outbox.emit(StopReader(key, epoch, StopWhy.LOST))
        for holding in list(self._held.values()):
            if not holding.has_reader or (holding.key, holding.epoch) in alive:
                holding.unseen_audits = 0
                continue
            holding.unseen_audits += 1
            if holding.unseen_audits < 2:  # its last word may be on the way
                continue
            self._report_audit(holding.key, "the lease is held but its reader is gone; it is started again")
            del self._held[holding.key]
            self.acquire(holding.lease, holding.renewed_s, now_s)
        for key, epoch in list(self._leaving.items()):
            if (key, epoch) not in alive:
                del self._leaving[key]
        self.wake_waiting(now_s)

    def _report_audit(self, key: str, what: str) -> None:
        self.outbox.report(Topic.AUDIT, Level.ERROR, f"lease {key}: {what}", key)

    def watch_progress(self, now_s: float) -> None:
        """Report shards that are behind and stand still."""
        report_stalls(self.outbox, self._held.values(), self.options.stall_after_s, now_s)
