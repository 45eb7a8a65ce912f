"""The invariants that hold at every line of the history, and the suite of all checkers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import (
    Checkpoint,
    Claim,
    Create,
    Delete,
    End,
    LateCheckpoint,
    Promote,
    Release,
    Renew,
    RequestHandover,
    Reset,
    Take,
)
from penstock.core.position import TRIM_HORIZON, Position, Sentinel
from penstock_sim.checker import CLOCK_TOLERANCE, Broken, Checker, Violation
from penstock_sim.events import leases, processes, reading, streams
from penstock_sim.events.base import Event, HistoryEntry, SituationFinder, life_of, methods_of, name_of
from penstock_sim.history import History
from penstock_sim.liveness_checkers import AllConsumed, Balanced, Covered

_ANSWER_S: Final = 0.6  # the answer to a write takes no longer on its way back
_RESHARDS_IN_BUDGET: Final = 5
"""A budget of listings suffices for so many reshards; for each further one a worker may list once more."""
_SCANS_TO_BEGIN: Final = 4
"""Scans of the lease table that a worker may make for each stream when it begins to read several at once."""


def _rank(position: Position) -> tuple[int, int, int]:
    # Apart from the product's own order on purpose: integers, and nothing but integers.
    if position.sequence_number is not None:
        return (1, int(position.sequence_number), position.sub_sequence_number)
    return (2, 0, 0) if position.sentinel is Sentinel.SHARD_END else (0, 0, 0)


class NothingLost(Checker):
    """S1: a checkpoint passes a record only after the record was handled."""

    invariant = "S1"

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        write, after = event.write, event.after
        if after is None or (event.before is not None and event.before.checkpoint == after.checkpoint):
            return
        if after.checkpoint.sequence_number is None and not after.checkpoint.is_shard_end:
            return
        undone = self.history.first_undone(write.key, self.history.index_after(write.key, after.checkpoint))
        if undone is not None:
            raise Broken(
                f"{event.who} moved {write.key} to {after.checkpoint} ({event.kind}), record {undone} is not handled"
            )

    def at_end(self) -> None:
        """Check that every record since the application's start is handled."""
        for key, shard in self.history.shards.items():
            undone = self.history.first_undone(key, len(shard.sequences))
            if undone is not None and shard.stream.is_owed:
                raise Broken(f"record {undone} of {key} was never handled")


class OneOwner(Checker):
    """S2: an owner's write is accepted only from the last worker to take the lease; a live lease is not taken unrequested.

    If a worker has let a hand-over request time out, its leases may be taken without a request: it may not support hand-overs.
    """

    invariant = "S2"

    def _begin(self) -> None:
        self._holder: dict[str, str] = {}
        self._unanswering: set[str] = set()
        self._created_s: dict[str, float] = {}

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        who, write, before = event.who, event.write, event.before
        key = write.key
        if before is None and event.after is not None:
            self._created_s[key] = self.history.now
        if before is not None and before.checkpoint_owner is not None and self._is_asked_for_long(key):
            self._unanswering.add(before.checkpoint_owner)
        if isinstance(write, Take):
            if before is None:
                raise Broken(f"{who} took {key}, which has no row")
            self._judge_take(who, key, before)
            # A leader takes for other workers: the first process of that worker to find the lease holds it.
            self._holder[key] = who if write.worker == name_of(who) else write.worker
        elif isinstance(write, Renew | Checkpoint | End | Release):
            if before is None:
                raise Broken(f"{event.kind} of {who} wrote {key}, which has no row")
            holder = self._holder.get(key)
            if before.reader != name_of(who):
                raise Broken(f"{event.kind} of {who} was accepted on {key}, which {before.reader} reads")
            if holder != who:
                is_assigned = holder == name_of(who)
                if not (isinstance(write, Renew | Release) or is_assigned):
                    raise Broken(f"{event.kind} of {who} was accepted on {key} after {holder} took it")
                self._holder[key] = who  # handed over to it, or picked up after a restart

    def _may_mistake_row(self, who: str, key: str) -> bool:
        """Return whether a row was recreated while a worker was paused: its counter may equal the one that the worker read."""
        paused_s, until_s = self.history.pauses.get(who, [(0.0, 0.0)])[-1]
        made_s = self._created_s.get(key, 0.0)
        return paused_s < made_s < until_s and self.history.now < until_s + self.options.lease_duration_s

    def _is_asked_for_long(self, key: str) -> bool:
        asked_s = self.history.now_s_since(self.history.asked_s.get(key))
        return asked_s >= self.options.handover_timeout_s * (1 - CLOCK_TOLERANCE)

    def _has_not_answered(self, reader: str) -> bool:
        """Return whether a hand-over request to a worker has timed out on any lease, even if the lease was written since."""
        return reader in self._unanswering or any(
            row.checkpoint_owner == reader and self._is_asked_for_long(key)
            for key, row in self.history.rows.items()
        )

    def _judge_take(self, who: str, key: str, before: Lease) -> None:
        if before.reader is None or before.reader == name_of(who) or before.is_ended:
            return
        if not self.options.handover or self.options.policy is BalancePolicy.KCL2:
            return
        if self._has_not_answered(before.reader) or {before.reader, name_of(who)} & self.history.foreign:
            return
        if name_of(who) in self.history.leaders:  # it assigns by the owners that it saw, not by the counter
            return
        mode, _ = self.history.fleet_modes.get(who, ("", 0.0))
        knows_none = self.history.is_migrating or mode == "own"
        if knows_none and {before.reader, name_of(who)} & self.history.kcl_workers:
            return  # it takes as KCL 2.x does; or, without a throughput in its rows, others count it as KCL 2.x
        if self.history.has_two_drivers(name_of(who)):  # the other one has requested it longer ago
            return
        unchanged_s = self.history.now_s_since(self.history.changed_s.get(key))
        is_live = unchanged_s < self.options.lease_duration_s * (1 - CLOCK_TOLERANCE)
        if is_live and not self._may_mistake_row(who, key):
            raise Broken(f"{who} took {key} from {before.reader}, which renewed {unchanged_s:.2f} s ago")

    def _on_coordinator_reported(self, event: processes.CoordinatorReported) -> None:
        who, key = event.who, event.key
        if event.topic == "LOST" and event.reason in ("taken", "same_name") and key is not None:
            if self.history.is_exempt(key):
                return
            row = self.history.rows.get(key)
            if row is not None and row.reader == name_of(who) and self._holder.get(key) == who:
                raise Broken(f"{who} gave {key} up as lost, but no worker took it")


class ForwardOnly(Checker):
    """S3: no worker moves a checkpoint back."""

    invariant = "S3"

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        write, before, after = event.write, event.before, event.after
        if before is None or after is None or isinstance(write, Reset):
            return
        if _rank(after.checkpoint) < _rank(before.checkpoint):
            raise Broken(
                f"{event.kind} of {event.who} moved {write.key} back from {before.checkpoint} to {after.checkpoint}"
            )


class ParentsFirst(Checker):
    """S4: a child's first record is delivered after every parent is finished.

    A reset of a parent leaves its children as they are; they owe no order until it is finished again. Nor does a child owe one to a
    parent that has left the stream: its lease may be created late, by a worker that was behind.
    """

    invariant = "S4"

    def _begin(self) -> None:
        self._set_back: set[str] = set()

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        write = event.write
        if isinstance(write, Reset):
            self._set_back.add(write.key)
        elif event.after is None or event.after.is_ended:
            self._set_back.discard(write.key)

    def _on_records_delivered(self, event: reading.RecordsDelivered) -> None:
        key = event.key
        reader = self.history.readers.get(event.reader)
        if reader is None or reader.deliveries:
            return
        for parent in self.history.shards[key].parents:
            is_gone = self.history.shards[parent].is_expired
            if is_gone or self.history.is_exempt(parent) or parent in self._set_back:
                continue
            row = self.history.rows.get(parent)
            if row is not None and not row.is_ended:
                raise Broken(f"{event.who} delivers {event.numbers[0]} of {key} while {parent} is unfinished")
            undone = self.history.first_undone(parent, len(self.history.shards[parent].sequences))
            if undone is not None:
                raise Broken(f"{event.who} delivers {event.numbers[0]} of {key} before {undone} of {parent}")


class EndIsTheEnd(Checker):
    """S5: SHARD_END is written only after the last record was handled and the children's leases exist."""

    invariant = "S5"

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        who, write = event.who, event.write
        if (
            event.after is None
            or not event.after.is_ended
            or (event.before is not None and event.before.is_ended)
        ):
            return
        if isinstance(write, Create):
            return  # brought back after the table was deleted
        shard = self.history.shards[write.key]
        if not shard.is_closed:
            raise Broken(f"{who} ended {write.key}, which is open")
        undone = self.history.first_undone(write.key, len(shard.sequences))
        if undone is not None:
            raise Broken(f"{who} ended {write.key} before record {undone} was handled")
        for child in shard.children:
            is_owed = not (shard.is_expired or self.history.shards[child].is_expired)
            if is_owed and child not in self.history.rows and child not in self.history.created:
                raise Broken(f"{who} ended {write.key}, and its child {child} has no lease")


class InOrder(Checker):
    """S6: within one ownership records are delivered in order and without gaps, from a place that leaves nothing out."""

    invariant = "S6"

    def _on_reader_started(self, event: reading.ReaderStarted) -> None:
        who, key = event.who, event.key
        for reader in self.history.readers.values():
            if reader.who == who and reader.key == key:
                raise Broken(f"{who} starts reader {event.epoch} of {key} while another one lives")
        undone = self.history.first_undone(key, self.history.index_after(key, event.position))
        if undone is not None:
            raise Broken(f"{who} starts {key} at {event.position}, record {undone} before it is not handled")

    def _on_records_delivered(self, event: reading.RecordsDelivered) -> None:
        key, sequences = event.key, event.numbers
        reader = self.history.readers.get(event.reader)
        if reader is None:
            raise Broken(f"{event.who} delivers {key} without a reader")
        shard = self.history.shards[key]
        begin, end = reader.next_index, bisect_right(shard.sequences, sequences[-1])
        left_out = set(shard.sequences[begin : shard.trimmed]).difference(sequences)  # they have expired
        expected = tuple(number for number in shard.sequences[begin:end] if number not in left_out)
        if expected != sequences:
            raise Broken(f"{event.who} delivers {sequences} of {key}, expected {expected}")

    def _on_records_redelivered(self, event: reading.RecordsRedelivered) -> None:
        who, key, sequences = event.who, event.key, event.numbers
        reader = self.history.readers.get(event.reader)
        if reader is None:
            raise Broken(f"{who} delivers {key} again without a reader")
        places = self.history.shards[key].sequences
        again = bisect_left(places, sequences[0])
        if not (reader.done_index <= again and sequences[-1] <= places[reader.next_index - 1]):
            raise Broken(f"{who} delivers {sequences} of {key} again, which did not fail")
        if reader.done_index != again and self.history.first_undone(key, again) is not None:
            raise Broken(f"{who} delivers {sequences} of {key} again before {places[reader.done_index]}")


def _is_elder_twin(who: str, other: str) -> bool:
    """Whether `who` began earlier than `other`, under the same worker id.

    Two live processes with one worker id read each other's leases as their own. The elder learns of the younger at its next renewal.
    """
    return name_of(who) == name_of(other) and life_of(who) < life_of(other)


class FewDuplicates(Checker):
    """S7: records up to a checkpoint are not delivered again; a graceful hand-over repeats nothing."""

    invariant = "S7"

    def _begin(self) -> None:
        self._released: dict[str, tuple[int, str]] = {}
        self._last: dict[tuple[str, str], tuple[int, int]] = {}
        self._found: dict[str, deque[tuple[str, float, Position]]] = {}
        """The checkpoints after the last writes to a row, each with its writer and moment."""

    def _on_records_delivered(self, event: reading.RecordsDelivered | reading.RecordsRedelivered) -> None:
        reader = self.history.readers.get(event.reader)
        if reader is not None:
            self._last[event.who, event.key] = (
                event.epoch,
                bisect_right(self.history.shards[event.key].sequences, event.numbers[-1]),
            )

    def _on_handler_raised(self, event: reading.HandlerRaised) -> None:
        reader = self.history.readers.get(event.reader)
        if reader is not None:
            self._last[event.who, event.key] = (event.epoch, reader.done_index)

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        who, write = event.who, event.write
        # A query's claims move the checkpoint without its coordinator, and the query's own position is more precise.
        if event.after is None or isinstance(
            write, LateCheckpoint | RequestHandover | Create | Delete | Claim | Promote
        ):
            return
        found = self._found.setdefault(write.key, deque(maxlen=5))
        if isinstance(write, Reset):
            found.clear()
            self._released.pop(write.key, None)
        found.append((who, self.history.now, event.after.checkpoint))
        if not isinstance(write, Release):
            return
        epoch, reached = self._last.get((who, write.key), (0, 0))
        reader = self.history.readers.get((who, write.key, epoch))
        if reader is None and reached:  # it had stopped, so everything delivered was done
            self._released[write.key] = (reached, who)

    def _on_coordinator_reported(self, event: processes.CoordinatorReported) -> None:
        """Forget the leases that were lost, or that a stop did not wait for: they were not released gracefully."""
        if event.topic == "LOST" and event.key is not None:
            self._last.pop((event.who, event.key), None)
        elif event.topic in ("LOST", "SHUTDOWN"):  # all that it held
            self._last = {place: reached for place, reached in self._last.items() if place[0] != event.who}

    def _on_reader_started(self, event: reading.ReaderStarted) -> None:
        who, key, position = event.who, event.key, event.position
        index = self.history.index_after(key, position)
        self._last.pop((who, key), None)  # records of its earlier reader without a checkpoint are not done
        reached, before = self._released.pop(key, (0, ""))
        if self.history.is_exempt(key):
            return
        if index < reached and not _is_elder_twin(who, before):
            raise Broken(f"{who} starts {key} {reached - index} records before where {before} released it")
        checkpoint = self._known_checkpoint(who, key)
        if checkpoint.is_record and index < self.history.index_after(key, checkpoint):
            raise Broken(f"{who} starts {key} at {position}, before its checkpoint {checkpoint}")

    def _known_checkpoint(self, who: str, key: str) -> Position:
        """Return the checkpoint that an owner's last answered write found; the horizon if there is none."""
        for writer, written_s, checkpoint in reversed(self._found.get(key, ())):
            if writer != who:
                break
            if written_s <= self.history.now - _ANSWER_S:
                return checkpoint
        return TRIM_HORIZON


class StopsInTime(Checker):
    """S8: nothing is delivered a lease duration after the last renewal that succeeded."""

    invariant = "S8"

    def _on_records_delivered(self, event: reading.RecordsDelivered | reading.RecordsRedelivered) -> None:
        since_s = self.history.now_s_since(self.history.owner_write_s.get((event.who, event.key)))
        if since_s > self.options.lease_duration_s * (1 + CLOCK_TOLERANCE):
            raise Broken(
                f"{event.who} (reader {event.epoch}) delivers {event.numbers[0]} of {event.key} {since_s:.2f} s after its last renewal"
            )


class NothingSilent(Checker):
    """S9: deleted rows, a deleted table and foreign rows are reported, the last only once."""

    invariant = "S9"

    def _begin(self) -> None:
        self._owed: dict[tuple[str, str], float] = {}
        self._table_owed_s: float | None = None
        self._skipped: set[str] = set()
        self._patience_s = 4 * self.options.lease_duration_s

    def _on_lease_deleted(self, event: leases.LeaseDeleted) -> None:
        key = event.key
        for found in self.history.readers.values():
            renewed_s = self.history.now_s_since(self.history.owner_write_s.get((found.who, key)))
            # With an older renewal it may have stopped the reader by itself.
            still_holds = renewed_s < 0.8 * self.options.lease_duration_s
            if found.key == key and name_of(found.who) == event.reader and still_holds:
                self._owed.setdefault((found.who, key), self.history.now)

    def _on_table_dropped(self, event: leases.TableDropped) -> None:
        if self._table_owed_s is None and self.history.readers:
            self._table_owed_s = self.history.now

    def _on_coordinator_reported(self, event: processes.CoordinatorReported) -> None:
        who, topic = event.who, event.topic
        if topic in ("ROW_GONE", "LOST", "ENDED", "RELEASED", "HANDED_OVER") and event.key is not None:
            self._owed.pop((who, event.key), None)
        elif topic == "LOST":  # all that it held
            self._owed = {owed: since for owed, since in self._owed.items() if owed[0] != who}
        if topic in ("TABLE_GONE", "ROW_GONE", "LOST"):
            self._table_owed_s = None
        if topic == "ROW_SKIPPED":
            if who in self._skipped:
                raise Broken(f"{who} reports the same skipped row again")
            self._skipped.add(who)

    def _on_message_logged(self, event: processes.MessageLogged) -> None:
        text = event.text
        if "deleted" in text or "is gone" in text or "created again" in text:
            self._table_owed_s = None
            self._owed = {owed: since for owed, since in self._owed.items() if owed[1] not in text}

    def _on_process_exited(self, event: processes.ProcessExited) -> None:
        self._owed = {owed: since for owed, since in self._owed.items() if owed[0] != event.who}
        if not self.history.alive - {event.who}:
            self._table_owed_s = None  # no worker is left that read it

    def _on_process_paused(self, event: processes.ProcessPaused) -> None:
        for owed in self._owed:
            if owed[0] == event.who:
                self._owed[owed] = event.until_s

    def at_end(self) -> None:
        for (who, key), since_s in self._owed.items():
            if self.history.now_s_since(since_s) > self._patience_s:
                raise Broken(f"{who} never reported that the row of {key} was gone")
        if self.history.now_s_since(self._table_owed_s) > self._patience_s and self._table_owed_s is not None:
            raise Broken("no worker reported that the lease table was gone")


class WithinBudget(Checker):
    """L5: calls stay within their budgets, during faults too: no retry storm, no thundering herd, no busy loop.

    A producer may list the shards again for each reshard: only a listing shows whether the shard that took an aggregate
    owns all of it, and the records of the aggregate wait for that. Other workers may do so for each reshard beyond the fifth,
    and for each end of a shard beyond the fifth: a fleet that was down reads reshards later than they happened.
    """

    invariant = "L5"
    budgets: ClassVar[dict[str, tuple[int, float]]] = {
        "write Renew": (16, 10.0),
        "write Checkpoint": (120, 10.0),
        "read": (9, 1.0),  # five, and a first read again at once after an iterator has expired
        "scan": (14, 10.0),
        "watch": (30, 10.0),  # every 0.48 to 0.72 s, and when a lease expires
        "fetch": (40, 10.0),
        "list shards": (14, 60.0),
        "ensure": (14, 10.0),
    }

    def _begin(self) -> None:
        self._calls: dict[tuple[str, str, str], deque[float]] = {}
        self._reshards_s: list[float] = []
        self._ends_s: list[float] = []

    def _on_coordinator_reported(self, event: processes.CoordinatorReported) -> None:
        if event.topic == "ENDED":
            self._ends_s.append(self.history.now)

    def _on_shard_created(self, event: streams.ShardCreated) -> None:
        """Remember when the stream was resharded; both children of a split are born in one moment."""
        if event.parents and self.history.now not in self._reshards_s[-1:]:
            self._reshards_s.append(self.history.now)

    def _on_call_made(self, event: processes.CallMade) -> None:
        who, name = event.who, event.call
        budget = self.budgets.get(name)
        if budget is None:
            return
        count_max, window_s = budget
        if name == "scan":
            count_max += _SCANS_TO_BEGIN * max(0, len(self.history.streams) - 2)
        elif name == "list shards":
            since_s = self.history.now - window_s
            reshards, ends = (
                len(each) - bisect_left(each, since_s) for each in (self._reshards_s, self._ends_s)
            )
            is_producer = name_of(who) in self.history.producers
            count_max += reshards if is_producer else max(0, max(reshards, ends) - _RESHARDS_IN_BUDGET)
        calls = self._calls.setdefault((who, name, event.key), deque())
        calls.append(self.history.now)
        while calls[0] <= self.history.now - window_s:
            calls.popleft()
        if len(calls) > count_max:
            raise Broken(f"{who} calls {name} {event.key} {len(calls)} times in {window_s:.0f} s")

    def _on_time_stood_still(self, event: processes.TimeStoodStill) -> None:
        raise Broken(f"time stands still: {event.count} events within a second")


SAFETY: Final = (
    NothingLost,
    OneOwner,
    ForwardOnly,
    ParentsFirst,
    EndIsTheEnd,
    InOrder,
    FewDuplicates,
    StopsInTime,
    NothingSilent,
    Balanced,
    WithinBudget,
)
LIVENESS: Final = (AllConsumed, Covered, Balanced, NothingLost, NothingSilent)


class Suite:
    """All checkers over one history.

    Args:
        options: The fleet's, for durations and the policy.
        more: Checkers beside those of every fleet.
        first: Checkers that judge each line before all others: the others can rely on them.
        **known: What the history is given of the scenario.
    """

    def __init__(
        self,
        options: CoordinatorOptions,
        more: Sequence[type[Checker]] = (),
        first: Sequence[type[Checker]] = (),
        **known: Any,
    ) -> None:
        self.history = History(options.start.default, **known)
        self.more = more
        classes: dict[type[Checker], None] = dict.fromkeys((*first, *SAFETY, *LIVENESS, *more))
        self.checkers: dict[type[Checker], Checker] = {each: each(self.history, options) for each in classes}
        self.finders: list[SituationFinder] = []
        """Get each event too, before it is judged."""
        self.violation: Violation | None = None
        self._listeners: dict[type[Event], list[tuple[Checker, Callable[[Any], None]]]] = {}
        for checker in self.checkers.values():
            for kind, method in methods_of(type(checker)).items():
                self._listeners.setdefault(kind, []).append((checker, getattr(checker, method)))

    def see(self, entry: HistoryEntry) -> None:
        """Judge an event; the first violation stays."""
        self.history.now = entry.at_s
        if self.violation is not None:
            return  # its consequences may name shards that do not exist
        for finder in self.finders:
            finder.handle(entry.event)
        for checker, listen in self._listeners.get(type(entry.event), ()):
            try:
                listen(entry.event)
            except Broken as broken:
                self.violation = Violation(checker.invariant, entry.at_s, str(broken))
                return
        self.history.take_in(entry)

    def is_settled(self, kinds: Sequence[type[Checker]] = LIVENESS) -> bool:
        """Whether these checkers are without a verdict; usually those of liveness."""
        return self._judge_end(kinds) is None

    def finish(self, kinds: Sequence[type[Checker]] = LIVENESS) -> None:
        self.violation = self.violation or self._judge_end(kinds)

    def _judge_end(self, kinds: Sequence[type[Checker]]) -> Violation | None:
        for kind in kinds:
            try:
                self.checkers[kind].at_end()
            except Broken as broken:
                return Violation(kind.invariant, self.history.now, str(broken))
        return None
