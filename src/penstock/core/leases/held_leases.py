"""The leases that this worker holds: renewing, checkpointing, handing over, ending, losing.

One `HeldLease` per lease, from the write that acquired it to the write that gives it up, or to its loss. Writes on a
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
from penstock.core.leases.held_lease import HeldLease, LeasePhase
from penstock.core.leases.held_lease_reports import (
    report_end,
    report_failed_reader,
    report_loss,
    report_refused_call,
    report_release,
    report_stalls,
)
from penstock.core.leases.late_checkpoints import LateCheckpoints
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
from penstock.core.leases.pending_writes import PendingWrite, PendingWrites
from penstock.core.leases.required_leases import plan_child_leases, start_reading_at
from penstock.core.leases.shard_end import ShardEnds
from penstock.core.position import Position

_RETRY_MIN_S: Final = 0.2


class HeldLeases:
    """Every lease held by one worker.

    Args:
        me: The worker's id.
        options: As for the coordinator.
        view: Shared with the coordinator; kept up to date with every answer.
        writes: Where effects go.
    """

    def __init__(self, me: str, options: CoordinatorOptions, view: LeaseView, writes: PendingWrites) -> None:
        self.me = me
        self.options = options
        self.view = view
        self.writes = writes
        self.is_stopping = False
        self.table_missing = False
        self.lost_count = 0
        self.ends = ShardEnds(me, options, view, writes)
        self.late_checkpoints = LateCheckpoints(view, writes)
        self._held: dict[str, HeldLease] = {}
        self._due: list[tuple[float, str, int]] = []
        self._leaving: dict[str, int] = {}  # readers told to stop whose lease is gone: key -> epoch
        self._last_epoch = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(self._held.values())

    def get(self, key: str) -> HeldLease | None:
        """Give a held lease, or None."""
        return self._held.get(key)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is held and no reader is on its way out."""
        return not self._held and not self._leaving

    def deadline_s(self, held: HeldLease) -> float:
        """Say until when delivery is allowed."""
        return held.renewed_s + self.options.lease_duration_s - self.options.margin_s

    @property
    def next_wake_s(self) -> float:
        """Say when something is due; infinity when nothing is held."""
        while self._due:
            due_s, key, epoch = self._due[0]
            held = self._held.get(key)
            if held is not None and held.epoch == epoch and held.due_s == due_s:
                return due_s
            heapq.heappop(self._due)
        return float("inf")

    # --- getting --------------------------------------------------------------------------------------

    def acquire(self, lease: Lease, sent_s: float, now_s: float) -> None:
        """Hold a lease: a write of this worker, sent at `sent_s`, made or left it the owner."""
        self._last_epoch += 1
        renew_due_s = sent_s + self.options.renew_interval_s * (0.3 + 0.7 * self.writes.draw())
        held = HeldLease(lease.key, self._last_epoch, lease, sent_s, renew_due_s, progress_s=now_s)
        self._held[lease.key] = held
        held.want(self.late_checkpoints.take(lease.key))
        if self.is_stopping:
            held.phase = LeasePhase.STOPPED
        self.drive(held, now_s)

    def _may_start(self, held: HeldLease) -> bool:
        return held.key not in self._leaving and not self.view.waits_for_parents(held.lease)

    def _start(self, held: HeldLease, now_s: float) -> None:
        held.phase = LeasePhase.READING
        held.progress_s = now_s
        position = start_reading_at(held.lease, self.view.has_parent(held.lease))
        if held.wanted is not None and held.wanted > position:
            position = held.wanted  # the last word of an earlier reader in this process
        self.writes.emit(StartReader(held.key, held.epoch, position, held.lease, self.deadline_s(held)))

    def wake_waiting(self, now_s: float) -> None:
        """Look again at leases that wait for their parents."""
        for held in [each for each in self._held.values() if each.phase is LeasePhase.WAITING]:
            self.drive(held, now_s)

    # --- time -----------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= now_s:
            due_s, key, epoch = heapq.heappop(self._due)
            held = self._held.get(key)
            if held is not None and held.epoch == epoch and held.due_s == due_s:
                held.due_s = float("inf")
                self.drive(held, now_s)
        self.late_checkpoints.write(now_s)

    def drive(self, held: HeldLease, now_s: float) -> None:
        """Do the next thing for one lease, if there is one, and note when to look again."""
        if now_s >= self.deadline_s(held):
            self._drop(held, now_s, StopWhy.EXPIRED)
            return
        if held.phase is LeasePhase.WAITING and self._may_start(held):
            self._start(held, now_s)
        if held.phase is LeasePhase.DRAINED:
            self.ends.create_children(held, now_s)
        if held.doubtful is not None:
            if not held.fetching and now_s >= held.retry_s:
                held.fetching = True
                self.writes.emit(FetchLease(held.key))
        elif not self.writes.is_busy(held.key) and now_s >= held.retry_s:
            write = self._next_write(held, now_s)
            if write is not None:
                if held.first_sent_s is None:
                    held.first_sent_s = now_s
                self.writes.send(write, ("held", held.epoch), now_s, self.deadline_s(held))
        self._schedule(held, now_s)

    def _next_write(self, held: HeldLease, now_s: float) -> LeaseWrite | None:
        lease, key = held.lease, held.key
        if held.phase is LeasePhase.STOPPED:
            next_owner = lease.owner if lease.checkpoint_owner == self.me else None
            last = held.ahead
            return Release(key, lease.counter, self.me, last, next_owner, self._tip(held, last))
        if held.phase is LeasePhase.DRAINED and self.ends.children_stand(held):
            return End(key, lease.counter, self.me, frozenset(child.shard_id for child in held.children))
        is_due = now_s >= held.renew_due_s or lease.stopped_reason != held.stopped_reason
        if not is_due and not (held.urgent and held.wanted is not None):
            return None
        ahead = None if self.options.keeps_claims else held.ahead
        if ahead is not None:
            tip = self._tip(held, ahead)
            return Checkpoint(key, lease.counter, self.me, ahead, None if tip is None else tip.tip_ms)
        held.urgent = False
        if not is_due:
            return None
        return Renew(
            key,
            lease.counter,
            self.me,
            held.throughput_kbps,
            during_handover=lease.checkpoint_owner == self.me,
            stopped_reason=held.stopped_reason,
            tip=held.tip if self.options.keeps_claims else self._tip(held, None),
            stream=self.options.stream if lease.stream is None else None,
        )

    def _tip(self, held: HeldLease, ahead: Position | None) -> TipMark | None:
        """Give what a write notes of the tip, with a checkpoint or without."""
        if ahead is None and self.options.keeps_claims:
            return None  # a claim may have moved the checkpoint: this worker's copy of it is not the row's
        return held.tip_at(held.lease.checkpoint if ahead is None else ahead)

    def _schedule(self, held: HeldLease, now_s: float) -> None:
        due_s = self.deadline_s(held)
        if held.doubtful is not None:
            if not held.fetching:
                due_s = min(due_s, held.retry_s)
        elif not self.writes.is_busy(held.key):
            due_s = min(due_s, max(held.renew_due_s, held.retry_s))
            if held.retry_s > now_s and (
                held.urgent or held.phase in (LeasePhase.STOPPED, LeasePhase.DRAINED)
            ):
                due_s = min(due_s, held.retry_s)
        if held.phase is LeasePhase.DRAINED and held.child_retry_s > now_s:
            due_s = min(due_s, held.child_retry_s)
        due_s = max(due_s, now_s)
        if due_s != held.due_s:  # entries that no longer say the held's own moment are skipped
            held.due_s = due_s
            heapq.heappush(self._due, (due_s, held.key, held.epoch))

    # --- answers --------------------------------------------------------------------------------------

    def on_write(
        self, pending: PendingWrite, outcome: Applied | Refused | NotDone | Unknown, now_s: float
    ) -> None:
        """Take in the answer to a write of a held lease."""
        held = self._held.get(pending.write.key)
        if held is None or held.epoch != pending.purpose[1]:
            return
        if isinstance(outcome, Applied) and outcome.lease is not None:
            self._on_applied(held, pending, outcome.lease, now_s)
        elif isinstance(outcome, NotDone):
            self._retry_later(held, now_s)
            self._note_not_done(held, outcome)
        elif isinstance(outcome, Refused) and (outcome.row is not None or outcome.reason is Refusal.MISSING):
            self._on_refused(held, pending, outcome, now_s)
        else:  # no answer, or one that does not tell what stands there
            held.doubtful = pending.write
        if self._held.get(pending.write.key) is held:
            self.drive(held, now_s)

    def on_fetched(self, key: str, lease: Lease | None, now_s: float) -> None:
        """Take in a row that was read back."""
        held = self._held.get(key)
        if held is None or held.doubtful is None or not held.fetching:
            return
        write, held.doubtful, held.fetching = held.doubtful, None, False
        self._reconcile(held, write, lease, now_s)
        if self._held.get(key) is held:
            self.drive(held, now_s)

    def on_fetch_failed(self, key: str, now_s: float) -> None:
        """Reading back failed: read again a little later; the deadline bounds it."""
        held = self._held.get(key)
        if held is not None and held.fetching:
            held.fetching = False
            self._retry_later(held, now_s)
            self.drive(held, now_s)

    def _retry_later(self, held: HeldLease, now_s: float) -> None:
        held.failures += 1
        bound_s = min(self.options.renew_interval_s, _RETRY_MIN_S * 2 ** min(held.failures, 10))
        held.retry_s = now_s + _RETRY_MIN_S / 4 + bound_s * self.writes.draw()

    def _note_not_done(self, held: HeldLease, outcome: NotDone) -> None:
        if outcome.problem is Problem.TABLE_MISSING:
            self.table_missing = True
        elif outcome.problem is Problem.REFUSED and held.failures == 1:
            report_refused_call(self.writes, held, outcome)

    def _on_applied(self, held: HeldLease, pending: PendingWrite, lease: Lease, now_s: float) -> None:
        self.view.observe(lease, now_s)
        write = pending.write
        held.failures = 0
        held.retry_s = 0.0
        if isinstance(write, Release):
            self._gone_by_release(held, lease)
        elif isinstance(write, End):
            self._gone_by_end(held, now_s)
        else:
            if self.options.keeps_claims and isinstance(write, Renew) and write.tip == held.tip:
                held.tip = None  # said; a claim may note a later place meanwhile
            self._renewed(held, lease, pending.sent_s)

    def _renewed(self, held: HeldLease, lease: Lease, sent_s: float) -> None:
        held.first_sent_s = None
        checkpoint_moved = lease.checkpoint != held.lease.checkpoint
        held.lease = lease
        if sent_s > held.renewed_s:
            held.renewed_s = sent_s
            held.renew_due_s = sent_s + self.options.renew_interval_s * (0.8 + 0.2 * self.writes.draw())
            if held.has_reader:
                self.writes.emit(ExtendDelivery(held.key, held.epoch, self.deadline_s(held)))
        if checkpoint_moved and lease.checkpoint.is_record:
            self.writes.emit(CheckpointStands(held.key, held.epoch, lease.checkpoint))
        if lease.checkpoint_owner == self.me:
            self.stop(held, StopWhy.HANDOVER)

    def _on_refused(self, held: HeldLease, pending: PendingWrite, outcome: Refused, now_s: float) -> None:
        row = outcome.row
        if row is not None:
            self.view.observe(row, now_s)
        if row is not None and row.reader == self.me and outcome.reason is Refusal.HANDOVER:
            held.lease = row
            self.stop(held, StopWhy.HANDOVER)
        elif row is not None and row.reader == self.me and outcome.reason is Refusal.BACKWARDS:
            # A just robbed worker's last word came after this one took the lease: what it did is done.
            self.writes.report(
                Topic.CHECKPOINT_BEHIND,
                Level.INFO,
                f"lease {held.key}: the table's checkpoint {row.checkpoint} is ahead of {held.wanted}; it stays",
                held.key,
            )
            held.lease = row
        else:
            self._reconcile(held, pending.write, row, now_s)

    def _reconcile(self, held: HeldLease, write: LeaseWrite, row: Lease | None, now_s: float) -> None:
        """Compare what was sent with what stands in the table: three outcomes become two."""
        if row is None:
            self.view.forget(held.key)
            self._drop(held, now_s, StopWhy.LOST, row_gone=True)
            return
        self.view.observe(row, now_s)
        counter = getattr(write, "counter", row.counter)
        if isinstance(write, End) and row.is_ended:
            self._gone_by_end(held, now_s)
        elif isinstance(write, Release) and row.reader != self.me and held.is_written(row):
            self._gone_by_release(held, row)
        elif row.reader != self.me or row.counter not in (counter, counter + 1):
            self._drop(held, now_s, StopWhy.LOST, row=row)
        elif row.counter == counter:
            held.lease = row  # it was not applied: the next drive writes again
            if row.checkpoint_owner == self.me:
                self.stop(held, StopWhy.HANDOVER)
        else:
            self.writes.report(
                Topic.READ_BACK,
                Level.INFO,
                f"lease {held.key}: the answer to a write was lost, the write was not",
                held.key,
            )
            # An earlier write with this counter may be the one that arrived: only its moment is safe to count from.
            self._renewed(held, row, held.first_sent_s or held.renewed_s)

    def see_row(self, row: Lease, now_s: float, began_s: float | None = None) -> None:
        """Compare a scanned row with what is held: a request for hand-over shows, or a robbery."""
        held = self._held.get(row.key)
        if held is None or self.writes.is_busy(row.key) or held.doubtful is not None:
            return
        if row.counter == held.lease.counter and row.reader == self.me:
            if row.checkpoint_owner == self.me and held.lease.checkpoint_owner is None:
                held.lease = row
                self.stop(held, StopWhy.HANDOVER)
                self.drive(held, now_s)
        elif began_s is None or held.renewed_s < began_s:
            self.renew_now(row.key, now_s)  # perhaps an old row, perhaps a robbery: the next renewal tells

    def renew_now(self, key: str, now_s: float) -> None:
        """Renew a held lease at once, to learn how it stands."""
        held = self._held.get(key)
        if held is not None and held.renew_due_s > now_s:
            held.renew_due_s = now_s
            self.drive(held, now_s)

    # --- the reader's words -----------------------------------------------------------------------------

    def _reading(self, key: str, epoch: int) -> HeldLease | None:
        held = self._held.get(key)
        return held if held is not None and held.epoch == epoch else None

    def on_checkpoint(self, event: CheckpointRequested, now_s: float) -> None:
        """Take in that a reader is done with something."""
        held = self._reading(event.key, event.epoch)
        if held is None:
            return
        held.want(event.position)
        held.urgent = held.urgent or event.urgent
        if event.urgent:
            self.drive(held, now_s)

    def on_progress(self, event: ReaderProgress, now_s: float) -> None:
        """Take in how reading goes."""
        held = self._reading(event.key, event.epoch)
        if held is None:
            return
        if event.read_through != held.progress or event.millis_behind_latest == 0:
            held.progress = event.read_through
            held.progress_s = now_s
        held.behind_ms = event.millis_behind_latest
        held.tip = event.tip or held.tip
        if event.throughput_kbps is not None:
            before = held.throughput_kbps
            if before is None:
                before = held.lease.throughput_kbps
            smoothed = event.throughput_kbps if before is None else (before + event.throughput_kbps) / 2
            held.throughput_kbps = round(smoothed, 6)

    def on_drained(self, event: ShardDrained, now_s: float) -> None:
        """Take in that a shard is read to its end."""
        self._leave(event.key, event.epoch)
        held = self._reading(event.key, event.epoch)
        if held is None or not held.has_reader:
            self.wake_waiting(now_s)
            return
        held.phase = LeasePhase.DRAINED
        held.children = event.children
        held.to_create = {lease.key: lease for lease in plan_child_leases(event.children)}
        self.drive(held, now_s)

    def on_stopped(self, event: ReaderStopped, now_s: float) -> None:
        """Take in that a reader has stopped as asked."""
        if self._leave(event.key, event.epoch):
            self._last_word(event.key, event.position, now_s)
            self.wake_waiting(now_s)
            return
        held = self._reading(event.key, event.epoch)
        if held is None or not held.has_reader:
            return
        held.want(event.position)
        held.tip = event.tip or held.tip
        held.phase = LeasePhase.STOPPED
        self.drive(held, now_s)

    def on_failed(self, event: ReaderFailed, now_s: float) -> bool:
        """Take in that a reader has given up; True when its lease is to be freed."""
        if self._leave(event.key, event.epoch):
            self._last_word(event.key, event.position, now_s)
            return False
        held = self._reading(event.key, event.epoch)
        if held is None or not held.has_reader:
            return False
        held.want(event.position)
        frees = event.release or held.phase is LeasePhase.STOPPING
        report_failed_reader(self.writes, event, is_freed=frees)
        held.phase = LeasePhase.STOPPED if frees else LeasePhase.PARKED
        held.stopped_reason = event.short_reason
        held.urgent = True
        self.drive(held, now_s)
        return event.release

    def _leave(self, key: str, epoch: int) -> bool:
        if self._leaving.get(key) != epoch:
            return False
        del self._leaving[key]
        return True

    def _last_word(self, key: str, position: Position | None, now_s: float) -> None:
        """Keep what a reader without a lease has done, until it is written or the lease comes back."""
        held = self._held.get(key)
        if held is None:
            self.late_checkpoints.keep(key, position)
        else:
            held.want(position)
            self.drive(held, now_s)

    # --- giving up --------------------------------------------------------------------------------------

    def stop(self, held: HeldLease, why: StopWhy) -> None:
        """Ask a lease's reader to stop; what follows is the release. Does nothing when that is under way."""
        if held.phase is LeasePhase.READING:
            held.phase = LeasePhase.STOPPING
            self.writes.emit(StopReader(held.key, held.epoch, why))
        elif held.phase in (LeasePhase.WAITING, LeasePhase.PARKED):
            held.phase = LeasePhase.STOPPED

    def stop_all(self, now_s: float) -> None:
        """Begin a graceful stop."""
        self.is_stopping = True
        for held in list(self._held.values()):
            self.stop(held, StopWhy.SHUTDOWN)
            self.drive(held, now_s)

    def release_stragglers(self, now_s: float) -> list[str]:
        """At the end of a stop: release leases whose readers are not done, with what they have done so far."""
        late = [held for held in self._held.values() if held.phase is LeasePhase.STOPPING]
        for held in late:
            held.phase = LeasePhase.STOPPED
            self._leaving[held.key] = held.epoch
            self.drive(held, now_s)
        return [held.key for held in late]

    def _drop(
        self,
        held: HeldLease,
        now_s: float,
        why: StopWhy,
        *,
        row: Lease | None = None,
        row_gone: bool = False,
    ) -> None:
        del self._held[held.key]
        self.lost_count += 1
        if held.has_reader:
            self._leaving[held.key] = held.epoch
            if held.phase is LeasePhase.READING or why is not StopWhy.EXPIRED:
                self.writes.emit(StopReader(held.key, held.epoch, why))
        elif held.wanted is not None and not row_gone:
            self._last_word(held.key, held.wanted, now_s)
        report_loss(self.writes, self.me, held.key, why, row, row_gone=row_gone)

    def _gone_by_release(self, held: HeldLease, row: Lease) -> None:
        del self._held[held.key]
        if row.checkpoint.is_record and row.checkpoint != held.lease.checkpoint:
            self.writes.emit(CheckpointStands(held.key, held.epoch, row.checkpoint))
        report_release(self.writes, row)

    # --- the end of a shard -----------------------------------------------------------------------------

    def on_child_created(
        self, pending: PendingWrite, outcome: Applied | Refused | NotDone | Unknown, now_s: float
    ) -> None:
        """Take in the answer to the creation of a child's lease; it is the answer for its other parent too."""
        _, parent, epoch = pending.purpose
        key = pending.write.key
        held = self._reading(parent, epoch)
        self.ends.on_answer(key, parent, held, outcome, now_s)
        if held is not None:
            self.drive(held, now_s)
        if isinstance(outcome, Applied | Refused):
            self._note_child_stands(key, now_s)

    def _note_child_stands(self, key: str, now_s: float) -> None:
        for held in self._held.values():
            if held.to_create is not None and held.to_create.pop(key, None) is not None:
                self.drive(held, now_s)

    def lacking_parents(self) -> set[str]:
        """Give the shards whose missing leases keep finished shards from being ended."""
        lacking: set[str] = set()
        for held in self._held.values():
            lacking |= self.ends.lacking_parents(held)
        return lacking

    def _gone_by_end(self, held: HeldLease, now_s: float) -> None:
        del self._held[held.key]
        report_end(self.writes, held)
        self.wake_waiting(now_s)
        if not self.is_stopping:
            self.ends.take_children(held, self._held)

    # --- the audit --------------------------------------------------------------------------------------

    def audit(self, alive: frozenset[tuple[str, int]], now_s: float) -> None:
        """Compare held leases with living readers: each held and readable lease has exactly one."""
        for key, epoch in sorted(alive):
            held = self._held.get(key)
            is_known = held is not None and held.epoch == epoch and held.has_reader
            if not is_known and self._leaving.get(key) != epoch:
                self._leaving[key] = epoch
                self._report_audit(key, "a reader lives without its lease; it is stopped")
                self.writes.emit(StopReader(key, epoch, StopWhy.LOST))
        for held in list(self._held.values()):
            if not held.has_reader or (held.key, held.epoch) in alive:
                held.unseen_audits = 0
                continue
            held.unseen_audits += 1
            if held.unseen_audits < 2:  # its last word may be on the way
                continue
            self._report_audit(held.key, "the lease is held but its reader is gone; it is started again")
            del self._held[held.key]
            self.acquire(held.lease, held.renewed_s, now_s)
        for key, epoch in list(self._leaving.items()):
            if (key, epoch) not in alive:
                del self._leaving[key]
        self.wake_waiting(now_s)

    def _report_audit(self, key: str, what: str) -> None:
        self.writes.report(Topic.AUDIT, Level.ERROR, f"lease {key}: {what}", key)

    def watch_progress(self, now_s: float) -> None:
        """Report shards that are behind and stand still."""
        report_stalls(self.writes, self._held.values(), self.options.stall_after_s, now_s)
