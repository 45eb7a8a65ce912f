"""The state machine of one held lease: each event returns the actions that follow from it.

The machine lives from the write that acquired the lease to its release, its end or its loss. It sends one write at a
time, and each write is conditional on the counter that the previous one left. Delivery is allowed until a deadline,
counted from the moment at which the last successful write was *sent*: another worker can see the lease expire at the
earliest a whole lease duration after that moment.

A write with an unknown outcome blocks every other write of the lease until the row has been read back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from penstock.core.backoff import Backoff
from penstock.core.leases.coordinator_effects import (
    CheckpointWritten,
    ExtendDelivery,
    FetchLease,
    StartReader,
    StopReader,
    StopWhy,
    Turn,
)
from penstock.core.leases.coordinator_events import (
    CheckpointRequested,
    NotDone,
    ReaderFailed,
    ReaderProgress,
    ReaderStopped,
    Unknown,
    WriteOutcome,
)
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.held_lease_phases import (
    TRANSITIONS,
    CreateChild,
    Expiry,
    HeldLeaseStatus,
    HeldLeaseWrite,
    LeaseAction,
    LeaseEnded,
    LeaseLoss,
    LeasePhase,
    LeaseReleased,
    SendWrite,
    Trigger,
    report_checkpoint_behind,
    report_end,
    report_failed_reader,
    report_loss,
    report_read_back,
    report_release,
)
from penstock.core.leases.lease import Lease, SeenClaim, TipMark
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.lease_writes import Applied, Checkpoint, End, Refusal, Refused, Release, Renew
from penstock.core.leases.pending_writes import PendingWrite
from penstock.core.leases.required_leases import plan_child_leases, start_reading_at
from penstock.core.position import Position
from penstock.core.shard import ChildShard

_RETRY_MIN_S: Final = 0.2


# --- the machine ------------------------------------------------------------------------------------------


class RenewalPace(Struct):
    """The interval between renewals, shared by all leases of a worker.

    A Spark query (`keeps_claims`) with many leases renews each of them less often: see `CoordinatorOptions.renew_interval_of`.
    """

    options: CoordinatorOptions
    held_count: int = 0

    @property
    def interval_s(self) -> float:
        """Longest time between two renewals of one lease if none fails, in seconds."""
        return self.options.renew_interval_of(self.held_count)

    @property
    def term_ms(self) -> int | None:
        """Duration of a lease that is renewed now, in milliseconds; None if it is the application's lease duration."""
        interval_s = self.interval_s
        return None if interval_s == self.options.renew_interval_s else round(3000 * interval_s)


class HeldLease(Struct):
    """One lease that this worker holds.

    Args:
        pace: The renewal interval of all leases of this worker.
        epoch: Identifies this ownership of the lease.
        lease: The row as this worker's last write left it.
        renewed_s: When the last write that kept the lease was sent.
        renew_due_s: When the next renewal is due.
    """

    worker: str
    options: CoordinatorOptions
    pace: RenewalPace
    epoch: int
    lease: Lease
    renewed_s: float
    renew_due_s: float
    progress_s: float = 0.0  # when the reader last made progress or was at the tip, or its stall was reported
    phase: LeasePhase = LeasePhase.WAITING
    done_through: Position | None = None  # everything up to this record is done
    seen_claim: SeenClaim | None = None  # the claim that the query saw when it reported `done_through`
    is_urgent: bool = False  # write a checkpoint before the renewal is due
    unknown_write: HeldLeaseWrite | None = None  # a write with an unknown outcome, until the row is read back
    is_fetching: bool = False  # whether that read of the row is under way
    first_sent_s: float | None = None  # when the first write with the row's current counter was sent
    retry_due_s: float = 0.0  # no write and no read of the row begins before this moment
    failure_count: int = 0  # failed writes and reads since the last applied write
    last_error: str | None = None  # of the writes since the last one that was applied
    children: tuple[ChildShard, ...] = ()  # of a drained shard
    missing_children: dict[str, Lease] | None = None  # of a drained shard: its children without a lease
    child_retry_due_s: float = 0.0  # no child's lease is created before this moment
    progress_text: str = ""  # of the last `ReaderProgress`
    behind_ms: int | None = None  # how far the reader is behind the tip, or None if it has not reported that
    throughput_kbps: float | None = None
    audits_without_reader: int = 0  # answers to `AuditReaders` in a row that lacked its reader
    stopped_reason: str | None = None  # why its reader has failed for good
    tip: TipMark | None = None  # the last position at which the reader was at the tip
    wake_s: float = math.inf  # when `HeldLeases` calls `advance` next

    @property
    def key(self) -> str:
        """The key of the lease."""
        return self.lease.key

    @property
    def deadline_s(self) -> float:
        """When delivery must end unless a renewal succeeds; infinity for a Spark query (`keeps_claims`)."""
        return math.inf if self.options.keeps_claims else self.unexpired_until_s

    @property
    def unexpired_until_s(self) -> float:
        """The moment until which no other worker can have found this lease expired."""
        duration_s = max(self.options.lease_duration_s, self.lease.term_s)
        return self.renewed_s + duration_s - self.options.margin_s

    @property
    def has_reader(self) -> bool:
        """Whether a reader was started and has not reported that it stopped."""
        return self.phase in (LeasePhase.READING, LeasePhase.STOPPING)

    @property
    def unwritten_position(self) -> Position | None:
        """The position that is done and is ahead of the row's checkpoint, or None."""
        return None if self._is_all_written(self.lease) else self.done_through

    def on_position_done(self, position: Position | None) -> None:
        """Handle a position up to which everything is done. One before `done_through`, or None, changes nothing."""
        before = self.done_through
        if position is not None and position.is_record and (before is None or before < position):
            self.done_through = position

    def on_earlier_reader_stopped(self, position: Position | None, seen_claim: SeenClaim | None) -> None:
        """Handle the last position of a reader that this process had before it lost and regained the lease.

        Args:
            seen_claim: If the reader was a query: its position counts only if the row still has this claim.
        """
        expected = None if seen_claim is None else seen_claim.expected_claim_on(self.lease)
        if expected is None or self.lease.has_claim(expected):
            self.on_position_done(position)
            self.seen_claim = expected

    def _change_phase(self, trigger: Trigger) -> None:
        after = TRANSITIONS[self.phase].get(trigger)
        assert after is not None, f"lease {self.key} in phase {self.phase.name}: {trigger.name}"
        self.phase = after

    # --- time ---

    def advance(
        self, now_s: float, view: LeaseView, *, is_busy: bool, has_earlier_reader: bool
    ) -> list[LeaseAction]:
        """Return the actions that are due now.

        Args:
            is_busy: Whether a write for this lease is in flight or queued.
            has_earlier_reader: Whether a reader of an earlier ownership in this process has not stopped yet.
        """
        assert self.phase is not LeasePhase.GONE
        if now_s >= self.deadline_s:
            since_write_s = None if self.first_sent_s is None else now_s - self.first_sent_s
            return self._lose(self.lease, Expiry(self.key, self.last_error, since_write_s))
        actions: list[LeaseAction] = []
        may_start = self.phase is LeasePhase.WAITING and not has_earlier_reader
        if may_start and not view.waits_for_parents(self.lease):
            actions += self._start_reader(view, now_s)
        if self.phase is LeasePhase.DRAINED:
            actions += self._create_children(view, now_s)
        if self.unknown_write is not None:
            if not self.is_fetching and now_s >= self.retry_due_s:
                self.is_fetching = True
                actions.append(FetchLease(self.key))
        elif not is_busy and now_s >= self.retry_due_s:
            write = self._next_write(now_s)
            if write is not None:
                if self.first_sent_s is None:
                    self.first_sent_s = now_s
                actions.append(SendWrite(write))
        return actions

    def next_due_s(self, now_s: float, *, is_busy: bool) -> float:
        """Return the moment at which `advance` must be called if no event arrives before it."""
        due = [self.deadline_s]
        if self.unknown_write is not None:
            if not self.is_fetching:
                due.append(self.retry_due_s)
        elif not is_busy:
            due.append(max(self.renew_due_s, self.retry_due_s))
            # An urgent checkpoint, a release and an end wait only for the pause after a failure, not for the next renewal.
            is_early = self.is_urgent or self.phase in (LeasePhase.STOPPED, LeasePhase.DRAINED)
            if is_early and self.retry_due_s > now_s:
                due.append(self.retry_due_s)
        if self.phase is LeasePhase.DRAINED and self.child_retry_due_s > now_s:
            due.append(self.child_retry_due_s)
        return max(min(due), now_s)

    def _start_reader(self, view: LeaseView, now_s: float) -> list[LeaseAction]:
        self._change_phase(Trigger.START)
        self.progress_s = now_s
        position = start_reading_at(self.lease, view.has_parent_lease(self.lease))
        # This process read the shard, lost the lease and got it back. Its first reader went on for a moment after the
        # loss, and that progress is not in the table yet: the second reader continues there.
        if self.done_through is not None and self.done_through > position:
            position = self.done_through
        return [StartReader(self.key, self.epoch, position, self.lease, self.deadline_s)]

    # --- writing ---

    def _next_write(self, now_s: float) -> HeldLeaseWrite | None:
        """Return the write to send now; None if none is due.

        - `Release` once the reader has stopped.
        - `End` once the shard is drained and its children's leases exist.
        - `Checkpoint` if the reader is past the row's checkpoint, and a renewal is due or a checkpoint is urgent. A worker that
          keeps claims never writes one, since it would end a claim.
        - `Renew` if there is nothing to checkpoint, and a renewal is due or the row's stop reason is not the current one.
        """
        lease, key = self.lease, self.key
        if self.phase is LeasePhase.STOPPED:
            last = self.unwritten_position
            tip = self._tip_mark_at(last)
            return Release(key, lease.counter, self.worker, last, next_owner=lease.next_owner, tip=tip)
        if self.phase is LeasePhase.DRAINED and self._all_children_exist():
            return End(key, lease.counter, self.worker, frozenset(child.shard_id for child in self.children))
        is_due = now_s >= self.renew_due_s or lease.stopped_reason != self.stopped_reason
        if not is_due and not (self.is_urgent and self.done_through is not None):
            return None
        position = None if self.options.keeps_claims else self.unwritten_position
        if position is not None:
            tip = self._tip_mark_at(position)
            return Checkpoint(key, lease.counter, self.worker, position, None if tip is None else tip.tip_ms)
        self.is_urgent = False
        if not is_due:
            return None
        return Renew(
            key,
            lease.counter,
            self.worker,
            self.throughput_kbps,
            during_handover=lease.checkpoint_owner == self.worker,
            stopped_reason=self.stopped_reason,
            tip=self.tip if self.options.keeps_claims else self._tip_mark_at(None),
            stream=self.options.stream_of(key) if lease.stream is None else None,
            term_ms=self.pace.term_ms,
        )

    def _tip_mark_at(self, new_checkpoint: Position | None) -> TipMark | None:
        """Return the tip mark of a write; None unless the reader has been at the tip at or before the write's checkpoint.

        No record was after the tip at its moment. So none was after a later checkpoint, and the mark has the same moment.

        Args:
            new_checkpoint: None for a write that leaves the checkpoint as it is.
        """
        if new_checkpoint is None and self.options.keeps_claims:
            return None  # a claim may have moved the row's checkpoint: this worker's copy may be old
        position, tip = self.lease.checkpoint if new_checkpoint is None else new_checkpoint, self.tip
        if tip is None or not position.is_record or position < tip.position:
            return None
        return TipMark(position, tip.tip_ms)

    # --- answers ---

    def on_answer(
        self, pending: PendingWrite, outcome: WriteOutcome, now_s: float, turn: Turn, detail: str = ""
    ) -> list[LeaseAction]:
        """Handle the outcome of a write of this lease; `detail` is the last error if the outcome is unknown."""
        write = pending.write
        assert isinstance(write, HeldLeaseWrite)
        if isinstance(outcome, Applied) and outcome.lease is not None:
            return self._on_applied(write, pending.sent_s, outcome.lease, turn)
        if isinstance(outcome, NotDone):
            self.last_error = outcome.detail or outcome.problem.value
            self._retry_later(now_s, turn)
            return []
        if isinstance(outcome, Refused) and (outcome.row is not None or outcome.reason is Refusal.MISSING):
            return self._on_refused(write, outcome, turn)
        if isinstance(outcome, Unknown):
            self.last_error = detail or outcome.value
        self.unknown_write = write  # no answer, or a refusal without the row
        return []

    @property
    def is_reading_back(self) -> bool:
        """Whether the row is being read because a write has an unknown outcome."""
        return self.unknown_write is not None and self.is_fetching

    def on_read_back(self, row: Lease | None, now_s: float, turn: Turn) -> list[LeaseAction]:
        """Handle the row that was read after a write with an unknown outcome.

        If the row shows that the write was not applied, the write is repeated: at once after the first failure, and with a
        back-off after further ones.
        """
        write, self.unknown_write, self.is_fetching = self.unknown_write, None, False
        assert write is not None, f"lease {self.key} was read back although no write has an unknown outcome"
        actions = self._reconcile(write, row, turn)
        was_applied = self.lease.counter != write.counter
        if was_applied or self.phase is LeasePhase.GONE:
            return actions
        if self.failure_count:
            self._retry_later(now_s, turn)
        else:
            self.failure_count = 1
        return actions

    def on_read_back_failed(self, now_s: float, turn: Turn) -> None:
        """Handle a failed read of the row: it is tried again a little later, until the deadline."""
        self.is_fetching = False
        self._retry_later(now_s, turn)

    def _retry_later(self, now_s: float, turn: Turn) -> None:
        self.failure_count += 1
        interval_s = self.options.renew_interval_s
        backoff = Backoff(min(2 * _RETRY_MIN_S, interval_s), interval_s)
        self.retry_due_s = now_s + _RETRY_MIN_S / 4 + backoff.delay_s(self.failure_count, turn.draw())

    def _on_applied(self, write: HeldLeaseWrite, sent_s: float, row: Lease, turn: Turn) -> list[LeaseAction]:
        """Handle the row of a write that was applied: the lease is released, ended or kept."""
        if isinstance(write, Release):
            return self._on_released(row)
        if isinstance(write, End):
            return self._on_ended()
        assert row.reader == self.worker, f"lease {self.key}: {write} left {row.reader} as the reader"
        if self.options.keeps_claims and isinstance(write, Renew) and write.tip == self.tip:
            self.tip = None  # the row has this mark: writing it twice could replace a claim's later mark
        return self._on_renewed(row, sent_s, turn)

    def _on_renewed(self, row: Lease, sent_s: float, turn: Turn) -> list[LeaseAction]:
        """Handle the row of a write that kept the lease: the row may have a new checkpoint or a hand-over request.

        Args:
            sent_s: When the write was sent; the deadline counts from then.
        """
        actions: list[LeaseAction] = []
        self.first_sent_s = None
        self.last_error = None
        self.failure_count = 0
        self.retry_due_s = 0.0
        if sent_s > self.renewed_s:
            self.renewed_s = sent_s
            self.renew_due_s = sent_s + self.pace.interval_s * (0.8 + 0.2 * turn.draw())
            if self.has_reader:
                actions.append(ExtendDelivery(self.key, self.epoch, self.deadline_s))
        return [*actions, *self._checkpoint_written(row), *self.keep_row(row)]

    def _checkpoint_written(self, row: Lease) -> list[LeaseAction]:
        if row.checkpoint.is_record and row.checkpoint != self.lease.checkpoint:
            return [CheckpointWritten(self.key, self.epoch, row.checkpoint)]
        return []

    def keep_row(self, row: Lease) -> list[LeaseAction]:
        """Keep the current row of this lease, of which this worker is the reader.

        If the row has a hand-over request, the reader stops now: in a later scan the request does not count as new.
        """
        self.lease = row
        return self.begin_release(StopWhy.HANDOVER) if row.checkpoint_owner == self.worker else []

    def _on_refused(self, write: HeldLeaseWrite, outcome: Refused, turn: Turn) -> list[LeaseAction]:
        """Handle a refused write: a hand-over was requested, the table's checkpoint is ahead, or the lease may be lost."""
        row = outcome.row
        if row is not None and row.reader == self.worker:
            if outcome.reason is Refusal.HANDOVER:
                # The request left the counter as it is. This worker remains the reader until it releases the lease.
                return self.keep_row(row)
            if outcome.reason is Refusal.BACKWARDS:
                # After this worker's Take, the previous owner wrote its reader's last position with a LateCheckpoint. The row's
                # checkpoint stays; this worker writes its own once that is ahead.
                return [report_checkpoint_behind(row, self.done_through), *self.keep_row(row)]
        return self._reconcile(write, row, turn)

    def _reconcile(self, write: HeldLeaseWrite, row: Lease | None, turn: Turn) -> list[LeaseAction]:
        """Find out from the current row how a write ended, after a refusal or an unknown outcome.

        The lease is no longer held if the row shows this worker's `End` or `Release`. It is lost if the row has another reader,
        another process's run, or a counter that this worker did not write. Otherwise the counter shows whether the write
        was applied.
        """
        if row is None:  # deleted
            return self._lose(None)
        counter = write.counter
        if isinstance(write, End) and row.is_ended:
            return self._on_ended()
        # If another worker took the lease instead, the checkpoint may be earlier.
        if isinstance(write, Release) and row.reader != self.worker and self._is_all_written(row):
            return self._on_released(row)
        is_of_other_process = row.counter != counter and row.run != self.lease.run
        if is_of_other_process or row.reader != self.worker or row.counter not in (counter, counter + 1):
            return self._lose(row)
        if row.counter == counter:
            # The write is lost or still in flight. If it is in flight, the next write is conditional on the same counter:
            # the table applies one of the two and refuses the other.
            return self.keep_row(row)
        # Two writes may have been sent with this counter: the first had no answer, and the row that was read back then did
        # not show it. The row does not show which of the two was applied, so the lease duration counts from the first.
        sent_s = self.renewed_s if self.first_sent_s is None else self.first_sent_s
        return [report_read_back(self.key), *self._on_renewed(row, sent_s, turn)]

    def _is_all_written(self, row: Lease) -> bool:
        """Return whether a row's checkpoint has everything that is done: it is at or past `done_through`."""
        return self.done_through is None or self.done_through <= row.checkpoint

    # --- scanned rows ---

    def shows_new_handover_request(self, row: Lease) -> bool:
        """Return whether a scanned row shows a hand-over request that this worker has not seen yet."""
        is_new = row.checkpoint_owner == self.worker and self.lease.checkpoint_owner is None
        return is_new and row.counter == self.lease.counter

    def differs_from(self, row: Lease) -> bool:
        """Return whether a scanned row is not the one that this worker's last write left."""
        return row.counter != self.lease.counter or row.reader != self.worker

    # --- the reader ---

    def on_checkpoint_requested(self, event: CheckpointRequested) -> None:
        """Handle a checkpoint that the reader asks for."""
        self.on_position_done(event.position)
        self.is_urgent = self.is_urgent or event.urgent

    def on_reader_progress(self, event: ReaderProgress, now_s: float) -> None:
        """Handle the reader's progress: lag, tip and throughput."""
        if event.progress_text != self.progress_text or event.millis_behind_latest == 0:
            self.progress_text = event.progress_text
            self.progress_s = now_s
        self.behind_ms = event.millis_behind_latest
        self.tip = event.tip or self.tip
        if event.throughput_kbps is not None:
            before = self.throughput_kbps
            if before is None:
                before = self.lease.throughput_kbps
            smoothed = event.throughput_kbps if before is None else (before + event.throughput_kbps) / 2
            self.throughput_kbps = round(smoothed, 6)

    def on_shard_drained(self, children: tuple[ChildShard, ...], position: Position | None = None) -> None:
        """Handle a shard that is read to its end: everything in it is done."""
        self.on_position_done(position)
        self._change_phase(Trigger.READER_DRAINED)
        self.children = children
        self.missing_children = {lease.key: lease for lease in plan_child_leases(children)}

    def on_reader_stopped(self, event: ReaderStopped) -> None:
        """Handle a reader that has stopped."""
        self.on_position_done(event.position)
        self.seen_claim = event.seen_claim
        self.tip = event.tip or self.tip
        self._change_phase(Trigger.READER_STOPPED)

    def on_reader_failed(self, event: ReaderFailed) -> list[LeaseAction]:
        """Handle a reader that has failed for good: keep the lease unread (PARKED), or release it if the event asks for that."""
        self.on_position_done(event.position)
        self._change_phase(Trigger.READER_FREED if event.release else Trigger.READER_FAILED)
        self.stopped_reason = event.short_reason or None
        self.is_urgent = True
        return [report_failed_reader(event, is_freed=self.phase is LeasePhase.STOPPED)]

    # --- the end of the shard ---

    def _create_children(self, view: LeaseView, now_s: float) -> list[LeaseAction]:
        """Return the actions that create the children's leases, as far as they are possible now.

        The order at a shard's end: first every child's lease exists, then SHARD_END and the release in one write, then the
        children are taken. A crash in between loses nothing: the parent's next reader reaches the same end.
        """
        if not self.missing_children or now_s < self.child_retry_due_s:
            return []
        if now_s >= self.unexpired_until_s:
            # While this process was paused, other workers may have read this shard and a child to their ends and deleted both
            # leases. A new lease of the child would repeat it. The next renewal shows whether this lease is lost.
            return []
        actions: list[LeaseAction] = []
        for lease in self.missing_children.values():
            if lease.key not in view and self._missing_other_parents(lease, view):
                # The child would be read before its other parent. That parent's lease is created at the end of its own
                # parent, or by the shard syncer when it finds the hole.
                self.child_retry_due_s = now_s + self.options.interval_s
            else:
                actions.append(CreateChild(lease))
        return actions

    def _all_children_exist(self) -> bool:
        return not self.missing_children

    def missing_parents_of_children(self, view: LeaseView) -> set[str]:
        """Return the missing leases of the children's other parents, by key: the end of a drained shard waits for them."""
        if self.phase is not LeasePhase.DRAINED or not self.missing_children:
            return set()
        return set().union(
            *(self._missing_other_parents(child, view) for child in self.missing_children.values())
        )

    def _missing_other_parents(self, child: Lease, view: LeaseView) -> set[str]:
        # This shard is one of the parents and is read, so the others must have leases too: see `lease_view.missing_parents`.
        others = (parent for parent in child.parents if parent != self.key)
        return {parent for parent in others if parent not in view and parent not in view.vanished_shards}

    def on_child_exists(self, key: str) -> bool:
        """Handle a child's lease that exists now; return True if the end of this shard has waited for it."""
        return self.missing_children is not None and self.missing_children.pop(key, None) is not None

    def on_child_not_created(self, now_s: float, turn: Turn) -> None:
        """Handle a creation that failed or has an unknown outcome: it is tried again a little later."""
        self.child_retry_due_s = now_s + _RETRY_MIN_S + turn.draw()

    # --- release, end, loss ---

    def begin_release(self, why: StopWhy) -> list[LeaseAction]:
        """Stop the reader, if there is one; then the lease is released. A second call has no effect."""
        was_reading = self.phase is LeasePhase.READING
        self._change_phase(Trigger.STOP)
        return [StopReader(self.key, self.epoch, why)] if was_reading else []

    def stop_waiting_for_reader(self) -> None:
        """Release the lease without waiting for the reader to stop, at the last position that it has reported as done."""
        self._change_phase(Trigger.TIME_IS_UP)

    def _on_released(self, row: Lease) -> list[LeaseAction]:
        self._change_phase(Trigger.RELEASED)
        return [*self._checkpoint_written(row), report_release(row), LeaseReleased()]

    def _on_ended(self) -> list[LeaseAction]:
        self._change_phase(Trigger.ENDED)
        return [report_end(self.key, self.children), LeaseEnded(self.children)]

    def _lose(self, row: Lease | None, expiry: Expiry | None = None) -> list[LeaseAction]:
        """Stop holding the lease, because of the row in the table or because it could not be renewed in time.

        Args:
            row: The last known row; None if it was deleted.
            expiry: Why the lease could not be renewed in time; None if the row shows the loss.
        """
        has_reader = self.has_reader
        actions: list[LeaseAction] = []
        # A reader in STOPPING has its StopReader already. It gets another one if the lease is LOST, since it must stop at once;
        # at an expiry its deadline has passed anyway.
        why = StopWhy.LOST if expiry is None else StopWhy.EXPIRED
        if has_reader and (self.phase is LeasePhase.READING or expiry is None):
            actions.append(StopReader(self.key, self.epoch, why))
        # A reader reports its last position when it has stopped. A deleted row gets no late checkpoint.
        done_through = None if has_reader or row is None else self.done_through
        self._change_phase(Trigger.LOST)
        if expiry is None:
            actions.append(report_loss(self.worker, self.key, row))
        return [*actions, LeaseLoss(has_reader, done_through, expiry)]


def statuses_of(held_leases: Iterable[HeldLease]) -> tuple[HeldLeaseStatus, ...]:
    """Return snapshots of held leases."""
    return tuple(
        HeldLeaseStatus(held.key, held.epoch, held.phase, held.renewed_s, held.lease.parents)
        for held in held_leases
    )
