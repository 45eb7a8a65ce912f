"""All leases that a worker holds: passes each event to its lease and carries out the lease's actions.

Each lease decides for itself (`penstock.core.leases.held_lease`). `HeldLeases` keeps them, wakes each at its next due
moment, and carries out their actions in order. A lease that is lost, or could not be renewed before its deadline, is
dropped at once and its reader is stopped. The reader's last position is written as a `LateCheckpoint` once the reader has
reported it. No new reader of a shard starts in this process before the old one has stopped.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_effects import Level, StopReader, StopWhy, Topic
from penstock.core.leases.coordinator_events import (
    CheckpointRequested,
    NotDone,
    ReaderFailed,
    ReaderProgress,
    ReaderStopped,
    ShardDrained,
    Unknown,
    WriteOutcome,
    row_of,
)
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.failing_calls import FailingCalls
from penstock.core.leases.fleet_view import Reason
from penstock.core.leases.held_lease import HeldLease, RenewalPace
from penstock.core.leases.held_lease_phases import (
    CreateChild,
    Expiry,
    LeaseAction,
    LeaseEnded,
    LeaseLoss,
    LeasePhase,
    LeaseReleased,
    SendWrite,
    report_expiries,
    report_late_renewals,
    report_stall,
    report_still_stopped,
)
from penstock.core.leases.lease import Lease, SeenClaim
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.lease_writes import Applied, Create, LateCheckpoint, Refusal, Refused, Take
from penstock.core.leases.pending_writes import (
    ForAcquisition,
    ForChildOf,
    ForHeldLease,
    ForLateCheckpoint,
    PendingWrite,
)
from penstock.core.position import Position
from penstock.core.shard import ChildShard


class LateCheckpoints:
    """The last positions of readers whose leases were lost: kept until they are written, or the lease is held again.

    The write is a `LateCheckpoint`: forward only, owner and counter untouched. Losing this write only causes redelivery,
    never loss, so retries are not urgent. Not thread-safe.
    """

    def __init__(self, context: CoordinatorContext) -> None:
        self.options: CoordinatorOptions = context.options
        self.view: LeaseView = context.view
        self._turn = context.turn
        self._writes = context.writes
        self._kept_writes: dict[str, LateCheckpoint] = {}
        self._due_s = 0.0  # no write begins before this moment

    def keep(self, key: str, position: Position | None, seen_claim: SeenClaim | None = None) -> None:
        """Keep the last position of a lease's reader if it is a record, unless a later one is kept already.

        Args:
            seen_claim: If the reader was a query: the claim that it saw.
        """
        if position is None or not position.is_record:
            return
        before = self._kept_writes.get(key)
        if before is None or before.position < position:
            self._kept_writes[key] = LateCheckpoint(key, position, seen_claim)

    def pop(self, key: str) -> LateCheckpoint | None:
        """Forget a lease's kept position. Return its write; None if the row's checkpoint has reached that position."""
        write, row = self._kept_writes.pop(key, None), self.view.get(key)
        if write is None or row is None or write.position <= row.checkpoint:
            return None
        seen = write.seen_claim
        return write if seen is None else replace(write, seen_claim=seen.expected_claim_on(row))

    def enqueue_writes(self, now_s: float) -> None:
        """Queue the writes of the kept positions. A lease with a write in flight waits for the next call."""
        if not self._kept_writes or now_s < self._due_s:
            return
        for key in [key for key in self._kept_writes if not self._writes.is_busy(key)]:
            write = self.pop(key)
            if write is not None:
                self._writes.enqueue(write, ForLateCheckpoint(write))

    def on_answer(self, write: LateCheckpoint, outcome: WriteOutcome, now_s: float) -> None:
        """Handle the answer to a late checkpoint, which is tried again if it failed or its outcome is unknown."""
        if isinstance(outcome, NotDone | Unknown):
            self._due_s = now_s + self.options.renew_interval_s * self._turn.draw()
            self.keep(write.key, write.position, write.seen_claim)


_EXPIRED_REPORT_INTERVAL_S: Final = 1.0


class HeldLeases:
    """Every lease held by one worker. Not thread-safe.

    Args:
        late_checkpoints: Keeps the last positions in shards whose leases are lost.
        failing_calls: Gets the leases that were lost because their writes failed.
    """

    def __init__(
        self, context: CoordinatorContext, late_checkpoints: LateCheckpoints, failing_calls: FailingCalls
    ) -> None:
        self.me: str = context.me
        self.options: CoordinatorOptions = context.options
        self.view: LeaseView = context.view
        self.lost_count: int = 0
        self._turn = context.turn
        self._writes = context.writes
        self._scans = context.scans
        self._late_checkpoints = late_checkpoints
        self._failing_calls = failing_calls
        self._is_stopping = False
        self._held: dict[str, HeldLease] = {}
        self._wake_ups: list[tuple[float, str, int]] = []  # a heap of wake-ups: moment, key and epoch
        # By key: the epoch of the reader of a lost lease, until that reader has stopped.
        self._earlier_readers: dict[str, int] = {}
        self._last_epoch = 0
        self._pace = RenewalPace(context.options)
        self._unreported_expiries: list[Expiry] = []
        self._expiry_report_due_s = -math.inf
        self._late_renewal_report_due_s = -math.inf

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(self._held.values())

    @property
    def is_quiet(self) -> bool:
        """Whether no lease is held and every reader has stopped."""
        return not self._held and not self._earlier_readers

    @property
    def next_wake_s(self) -> float:
        """When `tick` must be called next; infinity if nothing is due."""
        report_s = self._expiry_report_due_s if self._unreported_expiries else math.inf
        while self._wake_ups:
            due_s, key, epoch = self._wake_ups[0]
            held = self._find(key, epoch)
            if held is not None and held.wake_s == due_s:
                return min(due_s, report_s)
            heapq.heappop(self._wake_ups)  # the lease is not held any more, or has another wake-up
        return report_s

    def _find(self, key: str, epoch: int) -> HeldLease | None:
        held = self._held.get(key)
        return held if held is not None and held.epoch == epoch else None

    def _find_with_reader(self, key: str, epoch: int) -> HeldLease | None:
        held = self._find(key, epoch)
        return held if held is not None and held.has_reader else None

    # --- acquiring ------------------------------------------------------------------------------------

    def begin_holding(self, lease: Lease, sent_s: float, now_s: float) -> None:
        """Begin to hold a lease that this worker has acquired.

        Args:
            lease: The row, which names this worker as the reader.
            sent_s: When the write that acquired or last renewed the lease was sent: the lease duration counts from then.
        """
        assert lease.key not in self._held, f"lease {lease.key} is held already"
        self._last_epoch += 1
        # The first renewals are spread, so that leases acquired together are not all renewed at once.
        renew_due_s = sent_s + self.options.renew_interval_s * (0.3 + 0.7 * self._turn.draw())
        held = HeldLease(
            self.me, self.options, self._pace, self._last_epoch, lease, sent_s, renew_due_s, progress_s=now_s
        )
        self._held[lease.key] = held
        self._pace.held_count = len(self._held)
        late = self._late_checkpoints.pop(lease.key)
        if late is not None:
            held.on_earlier_reader_stopped(late.position, late.seen_claim)
        if self._is_stopping:
            self._carry_out(held, held.begin_release(StopWhy.SHUTDOWN), now_s)
        self._advance(held, now_s)

    def advance_waiting_leases(self, now_s: float) -> None:
        """Advance the leases that wait for their parents or for an earlier reader."""
        for held in self._waiting_leases():
            self._advance(held, now_s)

    def _waiting_leases(self) -> list[HeldLease]:
        return [held for held in self._held.values() if held.phase is LeasePhase.WAITING]

    # --- carrying out actions ----------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Advance the leases that are due, and send the reports that are due."""
        while self._wake_ups and self._wake_ups[0][0] <= now_s:
            due_s, key, epoch = heapq.heappop(self._wake_ups)
            held = self._find(key, epoch)
            if held is not None and held.wake_s == due_s:
                held.wake_s = math.inf
                self._advance(held, now_s)
        self._report_expiries(now_s)
        self._report_late_renewals(now_s)

    def _report_expiries(self, now_s: float) -> None:
        """Report expired leases, at most once a second: while the table is down all of them expire."""
        if self._unreported_expiries and (now_s >= self._expiry_report_due_s or self._is_stopping):
            self._turn.emit(report_expiries(self._unreported_expiries))
            self._unreported_expiries = []
            self._expiry_report_due_s = now_s + _EXPIRED_REPORT_INTERVAL_S

    def _report_late_renewals(self, now_s: float) -> None:
        """Report leases that were not renewed in time, at most once in a lease duration.

        Only a Spark query (`keeps_claims`) keeps such leases. Other workers have dropped them at their deadlines.
        """
        if not self.options.keeps_claims or now_s < self._late_renewal_report_due_s:
            return
        self._late_renewal_report_due_s = now_s + self.options.lease_duration_s
        late_leases = [held for held in self if now_s - held.renewed_s > self.view.duration_s_of(held.lease)]
        if late_leases:
            longest_s = max(now_s - held.renewed_s for held in late_leases)
            error = next((held.last_error for held in late_leases if held.last_error is not None), None)
            self._turn.emit(report_late_renewals(len(late_leases), len(self), longest_s, error))

    def _advance(self, held: HeldLease, now_s: float) -> None:
        """Carry out the lease's next actions if it is still held, and schedule its next wake-up."""
        if not self._is_held(held):
            return
        actions = held.advance(
            now_s,
            self.view,
            is_busy=self._writes.is_busy(held.key),
            has_earlier_reader=held.key in self._earlier_readers,
        )
        self._carry_out(held, actions, now_s)
        if not self._is_held(held):
            return
        wake_s = held.next_due_s(now_s, is_busy=self._writes.is_busy(held.key))
        if wake_s != held.wake_s:  # heap entries with another moment than the lease's are skipped
            held.wake_s = wake_s
            if wake_s == math.inf:
                return  # an answer wakes it
            heapq.heappush(self._wake_ups, (wake_s, held.key, held.epoch))

    def _is_held(self, held: HeldLease) -> bool:
        return self._held.get(held.key) is held

    def _carry_out(self, held: HeldLease, actions: list[LeaseAction], now_s: float) -> None:
        """Carry out actions of a lease, in order."""
        for action in actions:
            match action:
                case SendWrite(write):
                    self._writes.send(write, ForHeldLease(held.epoch), now_s, held.deadline_s)
                case CreateChild(lease):
                    create = Create(self.options.with_stream(lease))
                    self._writes.enqueue(create, ForChildOf(held.key, held.epoch))
                case LeaseReleased():
                    del self._held[held.key]
                case LeaseEnded(children):
                    del self._held[held.key]
                    self.advance_waiting_leases(now_s)  # leases of child shards wait for this end
                    self._take_children(children)
                case LeaseLoss():
                    del self._held[held.key]
                    self._on_lost(held, action, now_s)
                case _:
                    self._turn.emit(action)
        self._pace.held_count = len(self._held)
        assert self._is_held(held) == (held.phase is not LeasePhase.GONE)

    def _on_lost(self, held: HeldLease, loss: LeaseLoss, now_s: float) -> None:
        self.lost_count += 1
        self._scans.on_owner_unknown(held.key, now_s)
        if loss.expiry is not None:
            self._unreported_expiries.append(loss.expiry)
            if loss.expiry.error is not None:
                self._failing_calls.on_lost_lease(held.key, loss.expiry.error, now_s)
        if loss.has_reader:
            self._earlier_readers[held.key] = held.epoch
        else:
            self._late_checkpoints.keep(held.key, loss.done_through, held.seen_claim)

    def _take_children(self, children: tuple[ChildShard, ...]) -> None:
        """Take the children of a shard that this worker has just ended, within `max_leases`."""
        if self._is_stopping:
            return
        room = len(children)
        if self.options.max_leases is not None:
            room = min(room, self.options.max_leases - len(self))
        for child in children:
            row = self.view.get(child.shard_id)
            if room <= 0 or row is None or row.reader is not None or row.is_ended or row.key in self:
                continue
            if not self.view.waits_for_parents(row):
                take = Take(row.key, row.counter, self.me, stream=self.options.stream_of(row.key))
                room -= self._writes.enqueue(take, ForAcquisition(Reason.CHILD))

    # --- answers --------------------------------------------------------------------------------------

    def on_answer(
        self, pending: PendingWrite, purpose: ForHeldLease, outcome: WriteOutcome, now_s: float, detail: str
    ) -> None:
        """Handle the answer to a write of a held lease; `detail` is the last error if the outcome is unknown."""
        key = pending.write.key
        held = self._find(key, purpose.epoch)
        if held is None:
            return
        row = row_of(outcome)
        if row is not None:
            self.view.on_row(row, now_s)
        elif isinstance(outcome, Refused) and outcome.reason is Refusal.MISSING:
            self.view.forget(key)
        self._carry_out(held, held.on_answer(pending, outcome, now_s, self._turn, detail), now_s)
        self._advance(held, now_s)

    def on_other_answer(self, key: str, now_s: float) -> None:
        """Handle the answer to another part's write of a lease: if the lease is held, its next write has waited for this."""
        held = self._held.get(key)
        if held is not None:
            self._advance(held, now_s)

    def on_lease_fetched(self, key: str, row: Lease | None, now_s: float) -> None:
        """Handle a row that was read by key, or None if it does not exist. The view has it already."""
        held = self._held.get(key)
        if held is not None and held.is_reading_back:
            self._carry_out(held, held.on_read_back(row, now_s, self._turn), now_s)
            self._advance(held, now_s)

    def on_fetch_failed(self, key: str, now_s: float) -> None:
        """Handle a failed read of a row by key."""
        held = self._held.get(key)
        if held is not None and held.is_reading_back:
            held.on_read_back_failed(now_s, self._turn)
            self._advance(held, now_s)

    def on_row_scanned(self, row: Lease, now_s: float, began_s: float | None = None) -> None:
        """Compare a scanned row with the held lease: the row may show a hand-over request or another owner.

        Args:
            began_s: When the scan began; None if unknown. A row that may be older than the held lease's last write is ignored.
        """
        held = self._held.get(row.key)
        if held is None or self._writes.is_busy(row.key) or held.unknown_write is not None:
            return
        if held.shows_new_handover_request(row):
            self._carry_out(held, held.keep_row(row), now_s)
            self._advance(held, now_s)
        elif held.differs_from(row) and (began_s is None or held.renewed_s < began_s):
            self.renew_now(row.key, now_s)  # the row is old, or the lease was taken: a renewal decides

    def renew_now(self, key: str, now_s: float) -> None:
        """Renew a held lease at once, because the table may show another owner."""
        held = self._held.get(key)
        if held is not None and held.renew_due_s > now_s:
            held.renew_due_s = now_s
            self._advance(held, now_s)

    def on_child_answer(
        self, pending: PendingWrite, purpose: ForChildOf, outcome: WriteOutcome, now_s: float
    ) -> None:
        """Handle the answer to the creation of a child's lease.

        If the lease exists now, or was there already (a refusal), this parent no longer waits for it, and neither does the other
        parent of a merged child. After any other outcome the creation is tried again.
        """
        key = pending.write.key
        held = self._find(purpose.parent, purpose.epoch)
        if not isinstance(outcome, Applied | Refused):
            if held is not None:
                held.on_child_not_created(now_s, self._turn)
                self._advance(held, now_s)
            return
        if isinstance(outcome, Applied):
            message = f"lease {key} created, child of {purpose.parent}"
            self._turn.report(Topic.CREATED, Level.INFO, message, key, "child")
        if held is not None:
            held.on_child_exists(key)
            self._advance(held, now_s)
        for other in list(self._held.values()):
            if other.on_child_exists(key):
                self._advance(other, now_s)

    def parents_to_fetch(self) -> set[str]:
        """Return the parents for which held leases wait, and missing parents of their children: rows to fetch by key."""
        blocking = {
            parent for held in self._waiting_leases() for parent in self.view.blocking_parents(held.lease)
        }
        return blocking | self.missing_parents_of_children()

    def missing_parents(self) -> set[str]:
        """Return the missing parents for which held leases wait: their own, and the other parents of their children."""
        parents = {parent for held in self._waiting_leases() for parent in held.lease.parents}
        return self.missing_parents_of_children() | (parents & self.view.missing_parents())

    def missing_parents_of_children(self) -> set[str]:
        """Return the missing parents for which the ends of drained shards wait."""
        return set().union(*(held.missing_parents_of_children(self.view) for held in self._held.values()))

    # --- readers ----------------------------------------------------------------------------------------

    def on_checkpoint_requested(self, event: CheckpointRequested, now_s: float) -> None:
        """Handle a checkpoint that a reader asks for."""
        held = self._find(event.key, event.epoch)
        if held is not None:
            held.on_checkpoint_requested(event)
            if event.urgent:
                self._advance(held, now_s)

    def on_reader_progress(self, event: ReaderProgress, now_s: float) -> None:
        """Handle a reader's progress."""
        held = self._find(event.key, event.epoch)
        if held is not None:
            held.on_reader_progress(event, now_s)

    def on_shard_drained(self, event: ShardDrained, now_s: float) -> None:
        """Handle a reader that has read its shard to the end."""
        held = self._find_with_reader(event.key, event.epoch)
        if not self._on_earlier_reader_stopped(event, now_s) and held is not None:
            held.on_shard_drained(event.children, event.position)
            self._advance(held, now_s)

    def on_reader_stopped(self, event: ReaderStopped, now_s: float) -> None:
        """Handle a reader that has stopped as requested."""
        held = self._find_with_reader(event.key, event.epoch)
        if not self._on_earlier_reader_stopped(event, now_s) and held is not None:
            held.on_reader_stopped(event)
            self._advance(held, now_s)

    def on_reader_failed(self, event: ReaderFailed, now_s: float) -> bool:
        """Handle a reader that has failed for good; return True if its lease is freed for other workers."""
        held = self._find_with_reader(event.key, event.epoch)
        if self._on_earlier_reader_stopped(event, now_s) or held is None:
            return False
        self._carry_out(held, held.on_reader_failed(event), now_s)
        self._advance(held, now_s)
        return event.release

    def _on_earlier_reader_stopped(
        self, event: ShardDrained | ReaderStopped | ReaderFailed, now_s: float
    ) -> bool:
        """Handle the end of a reader whose lease was lost: keep its last position. Return False for any other reader's event."""
        if self._earlier_readers.get(event.key) != event.epoch:
            return False
        del self._earlier_readers[event.key]
        seen_claim = event.seen_claim if isinstance(event, ReaderStopped) else None
        held = self._held.get(event.key)
        if held is None:
            self._late_checkpoints.keep(event.key, event.position, seen_claim)
        else:
            # This process lost the lease and took it again before its first reader had stopped. The first reader's position
            # counts for the new ownership: the second reader has not begun, since it waits for the first one.
            held.on_earlier_reader_stopped(event.position, seen_claim)
            self._advance(held, now_s)
        return True

    # --- releasing --------------------------------------------------------------------------------------

    def release(self, key: str, why: StopWhy, now_s: float) -> None:
        """Stop a lease's reader, and release the lease when it has stopped. A second call has no effect."""
        held = self._held.get(key)
        if held is not None:
            self._carry_out(held, held.begin_release(why), now_s)
            self._advance(held, now_s)

    def release_all(self, now_s: float) -> None:
        """Release every lease, also those that are acquired from now on: the worker stops."""
        self._is_stopping = True
        for key in list(self._held):
            self.release(key, StopWhy.SHUTDOWN, now_s)

    def stop_waiting_for_readers(self, now_s: float) -> list[str]:
        """Release the leases whose readers have not stopped yet, at the positions done by now; return the leases' keys."""
        stopping = [held for held in self._held.values() if held.phase is LeasePhase.STOPPING]
        for held in stopping:
            held.stop_waiting_for_reader()
            self._earlier_readers[held.key] = held.epoch
            self._advance(held, now_s)
        return [held.key for held in stopping]

    # --- the audit --------------------------------------------------------------------------------------

    def on_readers_found(self, living_readers: frozenset[tuple[str, int]], now_s: float) -> None:
        """Compare held leases with the living readers: stop a reader without its lease, and start a missing reader again.

        Args:
            living_readers: Key and epoch of each reader whose last event has not arrived yet. No other reader sends events.
        """
        for key, epoch in sorted(living_readers):
            if self._find_with_reader(key, epoch) is None and self._earlier_readers.get(key) != epoch:
                self._earlier_readers[key] = epoch
                self._report_audit(key, "a reader lives without its lease; it is stopped")
                self._turn.emit(StopReader(key, epoch, StopWhy.LOST))
        for held in list(self._held.values()):
            if not held.has_reader or (held.key, held.epoch) in living_readers:
                held.audits_without_reader = 0
                continue
            held.audits_without_reader += 1
            if held.audits_without_reader < 2:  # wait for a second audit, as a precaution
                continue
            self._report_audit(held.key, "the lease is held but its reader is gone; it is started again")
            del self._held[held.key]
            self.begin_holding(held.lease, held.renewed_s, now_s)
        for key, epoch in list(self._earlier_readers.items()):
            if (key, epoch) not in living_readers:
                del self._earlier_readers[key]
        self.advance_waiting_leases(now_s)

    def _report_audit(self, key: str, difference: str) -> None:
        self._turn.report(Topic.AUDIT, Level.ERROR, f"lease {key}: {difference}", key)

    def report_stalls(self, now_s: float) -> None:
        """Report shards that are behind and make no progress, or have stopped after a failure: each again every `stall_after_s`."""
        for held in self._held.values():
            no_progress_s = now_s - held.progress_s
            if no_progress_s < self.options.stall_after_s:
                continue
            if held.phase is LeasePhase.READING and held.behind_ms != 0:
                held.progress_s = now_s
                self._turn.emit(report_stall(held.key, held.behind_ms, no_progress_s))
            elif held.phase is LeasePhase.PARKED:
                held.progress_s = now_s
                self._turn.emit(report_still_stopped(held.key))
