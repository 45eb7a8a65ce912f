"""Planted bugs: each is a defect that some library of this kind really had.

A simulator that cannot find known bugs proves nothing. Each mutant replaces one function by a wrong one while its
context is open; the sources stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from msgspec.structs import replace

from penstock.consumer import shard_run
from penstock.consumer.shard_run import ShardRun
from penstock.core.leases import held_lease, move_planner, shard_syncer
from penstock.core.leases.coordinator_effects import Report, StopWhy, Turn
from penstock.core.leases.coordinator_events import UNKNOWN, NotDone
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.fleet_view import Acquisition, Reason
from penstock.core.leases.handovers import Handovers
from penstock.core.leases.held_lease import HeldLease
from penstock.core.leases.held_lease_phases import LeaseAction, LeasePhase
from penstock.core.leases.held_leases import HeldLeases
from penstock.core.leases.lease import Lease, TipMark, new_lease
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.leases.lease_writes import (
    Applied,
    Checkpoint,
    Create,
    LateCheckpoint,
    Outcome,
    Refusal,
    Refused,
    Release,
    Renew,
    Take,
)
from penstock.core.leases.move_planner import MovePlanner
from penstock.core.leases.pending_writes import ForChildOf, PendingWrite
from penstock.core.leases.table_scans import TableScans
from penstock.core.position import Position, Sentinel
from penstock.core.reading import shard_reader
from penstock.core.reading.delivery import ShardDelivery
from penstock.core.reading.delivery_calls import CallKind, SendToDeadLetter
from penstock.core.reading.resume import MissingRecord
from penstock_sim.checker import Violation
from penstock_sim.plan import Scenario
from penstock_sim.reader import SimReader
from penstock_sim.table import SimTable
from penstock_sim.worker import SimWorker

_Wrong = TypeVar("_Wrong")


class Mutant(NamedTuple):
    """A planted bug.

    Args:
        name: Short.
        had_by: Who had it.
        seed: A seed that shows it; `tools/mutant_seeds.py` finds one.
        swaps: The classes or modules with the function of each that is replaced, and its replacement.
        needs: How often what shows it happens in a scenario, where that is rare; the search begins where it happens most
            often, and passes over those where it never does.
    """

    name: str
    had_by: str
    seed: int
    swaps: tuple[tuple[Any, str, Any], ...]
    needs: Callable[[Scenario], float] | None

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Run with the bug in place."""
        with ExitStack() as stack:
            for target, function, wrong in self.swaps:
                stack.enter_context(patch.object(target, function, wrong))
            yield


class Mutants(list[Mutant]):
    """The planted bugs of one kind of seeds."""

    def planted(
        self,
        name: str,
        had_by: str,
        seed: int,
        target: Any,
        function: str,
        *,
        also: tuple[tuple[Any, ...], ...] = (),
        needs: Callable[[Scenario], float] | None = None,
    ) -> Callable[[_Wrong], _Wrong]:
        """Return a decorator that plants a bug: what it decorates replaces the function of the target.

        Args:
            also: Further targets and functions, if one defence is behind another; with a third value, that one is the replacement.
        """

        def plant(wrong: _Wrong) -> _Wrong:
            swaps = tuple((*place, wrong)[:3] for place in ((target, function), *also))
            self.append(Mutant(name, had_by, seed, swaps, needs))
            return wrong

        return plant


def is_a_finding(violation: Violation | None) -> bool:
    """Return whether a violation shows a planted bug: a replacement that cannot be called shows nothing."""
    return violation is not None and not any(error in violation.what for error in _MISTAKES)


MUTANTS = Mutants()
planted = MUTANTS.planted

_begin_call = SimReader._begin_call
_on_child_answer = HeldLeases.on_child_answer
_next_write = HeldLease._next_write
_start_reader = HeldLease._start_reader
_plan_balance = move_planner.plan_balance
_plan_missing = shard_syncer.plan_missing_leases
_next_wake_s = ShardDelivery.next_wake_s
_on_scan_failed = TableScans.on_scan_failed
_on_raised = ShardDelivery.on_raised
_plan = MovePlanner.plan_round
_MISTAKES = ("TypeError(", "AttributeError(", "NameError(")


def _table(rule: Callable[[Lease | None, Any], Outcome | None]) -> Callable[..., Outcome]:
    def decide(self: SimTable, before: Lease | None, write: Any) -> Outcome:
        wrong = rule(before, write)
        return apply_write(before, write) if wrong is None else wrong

    return decide


@planted("create over a row", "a Rust KCL (D1): PutItem without a condition", 21, SimTable, "decide")
@_table
def _create_over(before: Lease | None, write: Any) -> Outcome | None:
    return Applied(write.lease) if isinstance(write, Create) and before is not None else None


@planted("take without the counter", "a Rust KCL (D7)", 13, SimTable, "decide")
@_table
def _take_anyway(before: Lease | None, write: Any) -> Outcome | None:
    if isinstance(write, Take) and before is not None:
        return apply_write(before, replace(write, counter=before.counter))
    return None


@planted("update brings rows back", "a Rust KCL (D4): upserts make partial rows", 17, SimTable, "decide")
@_table
def _upsert(before: Lease | None, write: Any) -> Outcome | None:
    if before is None and isinstance(write, Take | Renew | Checkpoint):
        return apply_write(Lease(write.key, counter=write.counter, owner=write.worker), write)
    return None


@planted("checkpoint moves back", "several: an unconditional last checkpoint", 26, SimTable, "decide")
@_table
def _late_anyway(before: Lease | None, write: Any) -> Outcome | None:
    if isinstance(write, LateCheckpoint) and before is not None:
        return Applied(replace(before, checkpoint=write.position))
    return None


@planted("numbers compared as text", "several: '9' after '10'", 2, Position, "_key")
def _compare_as_text(self: Position) -> tuple[Any, ...]:
    if self.sequence_number is not None:
        return (3, self.sequence_number, self.sub_sequence_number)
    ranks = {
        Sentinel.AT_TIMESTAMP: 0,
        Sentinel.TRIM_HORIZON: 1,
        Sentinel.LATEST: 2,
        None: 2,
        Sentinel.SHARD_END: 4,
    }
    return (ranks[self.sentinel], str(self.timestamp_ms), 0)


@planted("owner writes are not fenced", "Redis-like locks: no fencing token", 3, SimTable, "decide")
@_table
def _fence_by_nothing(before: Lease | None, write: Any) -> Outcome | None:
    if isinstance(write, Checkpoint | Renew) and before is not None and before.counter != write.counter:
        return apply_write(
            replace(before, owner=write.worker, checkpoint_owner=None), replace(write, counter=before.counter)
        )
    return None


@planted("take keeps the hand-over", "zio-kinesis (Z6)", 4, SimTable, "decide")
@_table
def _take_keeps_handover(before: Lease | None, write: Any) -> Outcome | None:
    if isinstance(write, Take) and before is not None and before.counter == write.counter:
        return Applied(replace(before, owner=write.worker, counter=before.counter + 1))
    return None


def _start_where_the_row_says(lease: Lease, has_parent_lease: bool) -> Position:
    return lease.checkpoint


@planted(
    "children at LATEST",
    "Doris, baker, a Rust KCL (D2)",
    0,
    held_lease,
    "plan_child_leases",
    also=((held_lease, "start_reading_at", _start_where_the_row_says),),
)
def _latest_children(children: Any) -> list[Lease]:
    latest = Position(sentinel=Sentinel.LATEST)
    return [new_lease(child, latest) for child in children]


@planted("end before the children", "several: SHARD_END first", 0, HeldLease, "_create_children")
def _end_before_children(self: HeldLease, view: LeaseView, now_s: float) -> list[LeaseAction]:
    self.missing_children = {}
    return []


@planted("end never written", "vmware-go-kcl 72, SPARK-18020", 0, HeldLease, "_all_children_exist")
def _never_end(self: HeldLease) -> bool:
    return False


@planted("parents are not waited for", "Hazelcast (A.5)", 4, LeaseView, "waits_for_parents")
def _wait_for_nobody(self: LeaseView, lease: Lease) -> bool:
    return False


@planted("delivery without a deadline", "etcd-style locks: paused owners go on", 6, HeldLease, "deadline_s")
@property
def _no_deadline(self: HeldLease) -> float:
    return self.renewed_s + 100 * self.options.lease_duration_s


@planted("a refused renewal is a loss", "KCL 2: spurious lease loss", 1, HeldLease, "_reconcile")
def _refused_is_lost(self: HeldLease, write: Any, row: Lease | None, turn: Turn) -> list[LeaseAction]:
    return self._lose(row)


@planted(
    "unknown creation taken as done",
    "several: two outcomes instead of three",
    28,
    HeldLeases,
    "on_child_answer",
)
def _unknown_child_is_created(
    self: HeldLeases, pending: PendingWrite, purpose: ForChildOf, outcome: Any, now_s: float
) -> None:
    if outcome is UNKNOWN or isinstance(outcome, NotDone):
        outcome = Refused(Refusal.EXISTS, None)
    _on_child_answer(self, pending, purpose, outcome, now_s)


@planted(
    "release without the checkpoint", "KCL 845: leases given up without progress", 2, HeldLease, "_next_write"
)
def _release_without_checkpoint(self: HeldLease, now_s: float) -> Any:
    write = _next_write(self, now_s)
    return replace(write, position=None) if isinstance(write, Release) else write


@planted("release while still reading", "KCL 265: stealing makes duplicates", 13, HeldLease, "begin_release")
def _release_while_reading(self: HeldLease, why: StopWhy) -> list[LeaseAction]:
    if self.phase is not LeasePhase.DRAINED:
        self.phase = LeasePhase.STOPPED
    return []


@planted("held but not read", "vmware-go-kcl 77", 0, HeldLease, "_start_reader")
def _own_but_not_read(self: HeldLease, view: LeaseView, now_s: float) -> list[LeaseAction]:
    if not self.lease.owner_switches:
        return _start_reader(self, view, now_s)
    self.phase = LeasePhase.PARKED  # the cache has the lease as ours, and no reader runs
    return []


@planted(
    "first sight counts as dead", "cold observers that steal from live owners", 0, LeaseView, "_owner_state"
)
def _first_sight_is_dead(self: LeaseView, sighting: Any, now_s: float) -> OwnerState:
    lease = sighting.lease
    if lease.is_ended:
        return OwnerState.ENDED
    if lease.reader is None:
        return OwnerState.UNOWNED
    is_new = not sighting.unchanged_scans and now_s - sighting.changed_s < 1e-9
    return OwnerState.EXPIRED if is_new else OwnerState.ALIVE


@planted("always one lease more", "rebalancing churn: 500px, KCL 1467", 0, move_planner, "plan_balance")
def _greedy(fleet: Any, me: str, *args: Any, **kwargs: Any) -> Any:
    moves = _plan_balance(fleet, me, *args, **kwargs)
    if moves:
        return moves
    mine = sum(1 for entry in fleet if entry.lease.owner == me)
    target = -(-len(fleet) // max(1, len({entry.lease.owner for entry in fleet} | {me})))
    rest = [entry for entry in fleet if entry.owner_state is OwnerState.ALIVE and entry.lease.owner != me]
    return [
        Acquisition(Take(entry.lease.key, entry.lease.counter, me), Reason.SHARE)
        for entry in rest[: target - mine]
    ]


@planted("missing shards at LATEST", "KCL 751", 17, shard_syncer, "plan_missing_leases")
def _missing_at_latest(*args: Any, **kwargs: Any) -> Any:
    latest = Position(sentinel=Sentinel.LATEST)
    return [
        replace(missing, lease=replace(missing.lease, checkpoint=latest))
        for missing in _plan_missing(*args, **kwargs)
    ]


@planted(
    "holes are not looked for",
    "KCL 339: shards missed after a reshard",
    17,
    shard_syncer,
    "plan_missing_leases",
)
def _nothing_is_missing(*_args: Any, **_kwargs: Any) -> list[Any]:
    return []


@planted("retries without a pause", "retry storms on a throttled table", 20, HeldLease, "_retry_later")
def _retry_at_once(self: HeldLease, now_s: float, turn: Turn) -> None:
    self.retry_due_s = now_s + 0.01


@planted("checkpoint before the work", "KCL 10: the batch is skipped", 1, SimReader, "_begin_call")
def _checkpoint_before_done(self: SimReader, call: Any) -> None:
    self.run.acknowledge(call.records, call.ordinals)
    _begin_call(self, call)


@planted("the first record again", "a Rust KCL (D13): the resume filter", 2, shard_run, "records_after")
def _repeat_the_first(records: Any, _done: Position | None) -> Any:
    return records


@planted("renewal as rare as expiry", "a Rust KCL (D9)", 0, CoordinatorOptions, "renew_interval_s")
@property
def _renew_at_expiry(self: CoordinatorOptions) -> float:
    return self.lease_duration_s


@planted("wall clock for ages", "several: NTP jumps expire leases", 0, SimWorker, "local_s")
def _wall_clock(self: SimWorker) -> float:
    return self.world.wall_ms() / 1000


@planted("silence", "KCL 461: a deleted lease dies in silence", 17, Turn, "emit")
def _never_reports(self: Turn, effect: Any) -> None:
    if not isinstance(effect, Report):
        self.effects.append(effect)


@planted("the tip is not noted", "a quiet stream that looks like a loss", 9, ShardRun, "_tip")
def _no_tip(self: ShardRun) -> None:
    del self


@planted(
    "the tip is noted while records wait", "a mark that is trusted for another position", 36, ShardRun, "_tip"
)
def _tip_with_records_waiting(self: ShardRun) -> TipMark | None:
    done, tip_ms = self._delivery.low_watermark, self._reader.tip_ms
    return TipMark(done, tip_ms) if done.is_record and tip_ms is not None else None


@planted(
    "a missing record is never a loss",
    "several: trimmed records are passed over",
    10,
    shard_reader,
    "judge_missing_record",
)
def _missing_is_harmless(*_args: Any, **_kwargs: Any) -> MissingRecord:
    return MissingRecord.HARMLESS


@planted(
    "a missing record is always a loss",
    "KCL-like readers on quiet streams",
    9,
    shard_reader,
    "judge_missing_record",
)
def _missing_is_a_loss(*_args: Any, **_kwargs: Any) -> MissingRecord:
    return MissingRecord.LOSS


@planted(
    "a poison record is skipped",
    "Java KCL: an exception of the processor is logged, and the batch is done",
    7,
    ShardDelivery,
    "on_raised",
)
def _skip_the_poison(
    self: ShardDelivery[Any], call_id: int, error: BaseException, now_s: float, chance: float
) -> Any:
    pending = self._calls_under_way[call_id]
    if pending.attempt <= self.options.retries_max:
        return _on_raised(self, call_id, error, now_s, chance)
    return self.on_returned(call_id, now_s)


@planted(
    "neighbours go to the dead letters", "batch-wise dead-letter queues", 18, ShardDelivery, "_halve_or_send"
)
def _whole_calls_to_dead_letters(self: ShardDelivery[Any], pending: Any, error: BaseException) -> Any:
    self._ready_keys.append(pending.key)
    self._queues[pending.key].repeated_calls.insert(
        0, replace(pending, kind=CallKind.DEAD_LETTER, attempt=1, error=error)
    )
    return SendToDeadLetter()


@planted(
    "the place inside an aggregate is forgotten",
    "several: sub-sequence numbers are not stored",
    1,
    ShardRun,
    "_done_count",
)
def _forget_the_place_inside(self: ShardRun, records: Any) -> int:
    return 0


@planted(
    "the rest of an aggregate is skipped",
    "AFTER_SEQUENCE_NUMBER behind a checkpoint inside an aggregate",
    1,
    ShardRun,
    "_done_count",
)
def _skip_the_rest_of_the_aggregate(self: ShardRun, records: Any) -> int:
    start = self._start.sequence_number
    if start is None or self._taken_through != self._start:
        return 0
    return sum(1 for record in records if int(record.sequence_number) == int(start))


@planted("anybody's term is honoured", "a term that a Java worker leaves standing", 2, Lease, "term_s")
@property
def _term_of_anybody(self: Lease) -> float:
    return 0.0 if self.term is None else self.term.duration_ms / 1000


@planted(
    "free leases are left to full watchers", "workers of different limits", 78, MovePlanner, "plan_round"
)
def _free_leases_are_the_watchers(self: MovePlanner, fleet: Any, *rest: Any, **named: Any) -> Any:
    young = [entry._replace(free_s=0.0) for entry in fleet]
    return _plan(self, young, *rest, **named)


def scans_for_free_leases(scenario: Scenario) -> float:
    """Return whether the workers of a scenario scan the table for free leases between two rounds."""
    return float(scenario.options.scans_for_free_leases)


@planted(
    "the table is watched without a pause",
    "several: polls that are not spaced",
    5,
    TableScans,
    "schedule_free_lease_scan",
    needs=scans_for_free_leases,
)
def _watch_never_rests(self: TableScans, now_s: float) -> None:
    self._free_lease_due_s = now_s if self.plan.free_lease_scan_s < math.inf else math.inf


@planted(
    "a watch that failed is repeated at once",
    "several: retries without a backoff",
    23,
    TableScans,
    "on_scan_failed",
    needs=scans_for_free_leases,
)
def _watch_again_at_once(self: TableScans, problem: Any, now_s: float) -> bool:
    is_gone = _on_scan_failed(self, problem, now_s)
    if self.is_free_lease_scan:
        self._free_lease_due_s = self._not_before_s = now_s + 0.02
    return is_gone


@planted(
    "who has gone counts as long as a lease names it",
    "this fleet: ghosts, beside workers that answer no ask",
    805,
    Handovers,
    "is_overdue",
)
def _never_overdue(self: Handovers, lease: Lease, now_s: float) -> bool:
    return False


@planted(
    "a lost lease wakes its reader for ever",
    "this consumer: a loop without rest until the handler came back",
    245,
    ShardDelivery,
    "next_wake_s",
)
def _wakes_for_a_lost_checkpoint(self: ShardDelivery[Any], *, may_call: bool = True) -> float | None:
    if self._checkpoint_due_since_s is None:
        return _next_wake_s(self, may_call=may_call)
    return max(self._checkpoint_due_since_s, self._checkpoint_sent_s + self.options.checkpoint_interval_s)
