"""The simulated service of one queue: visibility, receive counts, dead letters, retention, and the faults of its calls.

A receive waits for records. Of every other call, the request, single entries and the answer can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from penstock.core.aggregation import AggregateBuilder
from penstock.core.leases.coordinator_events import UNKNOWN
from penstock.core.queueing.queue_events import EntryOutcome
from penstock.errors import AccessDenied, PenstockError, Throttled
from penstock.ports.queues import DeadLetterRule, EntryResult, QueueDescription, QueueStart, ReceivedRecord
from penstock_sim.blocking_ports import LongPoll
from penstock_sim.events import queues
from penstock_sim.plan import EPOCH_MS, QueuePlan
from penstock_sim.world import World

_LATE_MAX_S: Final = 6.0
_POLL_S: Final = 0.2
_MOVE_MAX_S: Final = 5.0
_MOVED_IN_FLIGHT: Final = 0.3
"""Share of the records in flight that a reshard makes visible before their time."""


class _Stored(Struct, eq=False):
    record: str
    data: bytes
    shard: str
    arrival_s: float
    visible_s: float
    first_s: float = 0.0
    count: int = 0
    handle: str = ""


class QueueService:
    """The service's side of a queue."""

    def __init__(self, world: World, plan: QueuePlan) -> None:
        self._world = world
        self._plan = plan
        self._records: dict[str, _Stored] = {}
        self._put_count = 0
        self._handle_count = 0
        self.description = QueueDescription(
            name="queue",
            arn="arn:aws:kinesis:us-east-1:123456789012:queue/1",
            status="ACTIVE",
            created_ms=EPOCH_MS,
            stream_arn="arn:aws:kinesis:us-east-1:123456789012:stream/stream",
            start=QueueStart("TRIM_HORIZON"),
            visibility_s=plan.visibility_s,
            dead_letters=DeadLetterRule(plan.receive_count_max),
        )

    # --- records ------------------------------------------------------------------------------------------

    def put(self) -> None:
        world = self._world
        self._put_count += 1
        record, builder = f"r{self._put_count}", AggregateBuilder()
        part_count = world.chance.randint(2, 4) if world.luck("aggregate") else 1
        for place in range(part_count):
            builder.add(f"{record}/{place}".encode(), record)
        shard = world.chance.choice(world.stream.open_shards())
        world.record(queues.QueueRecordPut(record, part_count))
        self._records[record] = _Stored(record, builder.build().data, shard.shard_id, world.now, world.now)

    @property
    def is_empty(self) -> bool:
        """Whether every record is acknowledged, a dead letter or expired."""
        self._settle()
        return not self._records

    def _settle(self) -> None:
        """Remove expired records, and dead letters: those that are visible again and were received too often."""
        now_s, plan = self._world.now, self._plan
        for stored in list(self._records.values()):
            if plan.retention_s is not None and stored.arrival_s + plan.retention_s <= now_s:
                self._world.record(queues.QueueRecordExpired(stored.record))
            elif (
                plan.receive_count_max is not None
                and stored.count >= plan.receive_count_max
                and stored.visible_s <= now_s
            ):
                self._world.record(queues.QueueRecordDied(stored.record))
            else:
                continue
            del self._records[stored.record]

    def surface(self) -> None:
        in_flight = [stored for stored in self._records.values() if stored.visible_s > self._world.now]
        if in_flight:
            self._world.met["fault: early_redeliveries_per_min"] += 1
            self._make_visible(self._world.chance.choice(in_flight))

    def _make_visible(self, stored: _Stored) -> None:
        self._disturb([stored.handle], "visible before its time", is_lost=True)
        stored.visible_s = self._world.now

    def move_records_of(self, shard: str) -> None:
        """Hold back the visible records of a shard that is closed, and deliver a part of the others again."""
        world = self._world
        for stored in self._records.values():
            if stored.shard != shard:
                continue
            if stored.visible_s <= world.now:
                stored.visible_s = world.now + world.chance.uniform(0.0, _MOVE_MAX_S)
            elif world.chance.random() < _MOVED_IN_FLIGHT:
                self._make_visible(stored)

    # --- receives -----------------------------------------------------------------------------------------

    def serve_receive(self, who: str, limit: int, wait_s: int, visibility_s: int) -> PenstockError | LongPoll:
        """Answer a receive: at once with an error, or when a record is visible, or after the wait."""
        until_s = self._world.now + wait_s
        return self._problem() or LongPoll(partial(self._poll, who, limit, visibility_s, until_s))

    def _poll(
        self, who: str, limit: int, visibility_s: int, until_s: float, reply: Callable[[Any], None]
    ) -> None:
        world = self._world
        taken = self._take(who, limit, visibility_s)
        if not taken and world.now < until_s:
            world.schedule(world.now + _POLL_S, self._poll, who, limit, visibility_s, until_s, reply)
        elif world.luck("broken_connection"):
            self._disturb([each.handle for each in taken], "the answer to the receive is lost", is_lost=True)
            reply(UNKNOWN)
        else:
            reply(taken)

    def _take(self, who: str, limit: int, visibility_s: int) -> list[ReceivedRecord]:
        self._settle()
        world = self._world
        visible = [stored for stored in self._records.values() if stored.visible_s <= world.now]
        world.chance.shuffle(visible)
        return [self._deliver(stored, who, visibility_s) for stored in visible[:limit]]

    def _deliver(self, stored: _Stored, who: str, visibility_s: int) -> ReceivedRecord:
        world = self._world
        self._handle_count += 1
        stored.handle = f"h{self._handle_count}"
        stored.first_s = stored.first_s or world.now
        stored.count += 1
        stored.visible_s = world.now + visibility_s
        world.record(queues.QueueRecordReceived(who, stored.record, stored.handle, stored.count))
        epoch_s = EPOCH_MS / 1000
        return ReceivedRecord(
            handle=stored.handle,
            record_id=stored.record,
            partition_key="key",
            data=stored.data,
            arrival_s=epoch_s + stored.arrival_s,
            first_receive_s=epoch_s + stored.first_s,
            receive_count=stored.count,
        )

    # --- calls with handles -------------------------------------------------------------------------------

    def serve_acknowledge(self, who: str, handles: Sequence[str]) -> Any:
        def acknowledge(stored: _Stored, place: int) -> None:
            del place
            world = self._world
            world.record(queues.QueueRecordAcknowledged(who, stored.record, stored.handle))
            if world.luck("forgotten_acknowledgement"):
                world.record(queues.AcknowledgementForgotten(stored.record))
                stored.handle, stored.visible_s = "", world.now + world.chance.uniform(0.0, 10.0)
            else:
                del self._records[stored.record]

        return self._serve(handles, acknowledge)

    def serve_visibility(self, handles: Sequence[str], seconds: Sequence[int]) -> Any:
        def change(stored: _Stored, place: int) -> None:
            stored.visible_s = self._world.now + seconds[place]
            self._world.record(queues.VisibilitySet(stored.handle, seconds[place]))

        return self._serve(handles, change)

    def _serve(self, handles: Sequence[str], change: Callable[[_Stored, int], None]) -> Any:
        world = self._world
        problem = self._problem()
        if problem is not None:
            self._disturb(handles, "its call is refused")
            return problem
        if world.luck("unknown_late"):
            self._disturb(handles, "its call arrives late")
            late_s = world.chance.uniform(0.1, _LATE_MAX_S)
            world.schedule(world.now + late_s, self._apply, handles, change)
            return UNKNOWN
        if world.luck("unknown_lost"):
            self._disturb(handles, "its call is lost")
            return UNKNOWN
        results = self._apply(handles, change)
        if world.luck("unknown_applied"):
            self._disturb(handles, "the answer to its call is lost")
            return UNKNOWN
        return results

    def _apply(self, handles: Sequence[str], change: Callable[[_Stored, int], None]) -> list[EntryResult]:
        self._settle()
        return [self._apply_one(place, handle, change) for place, handle in enumerate(handles)]

    def _apply_one(self, place: int, handle: str, change: Callable[[_Stored, int], None]) -> EntryResult:
        world = self._world
        for fault, code in (
            ("entry_throttled", "ThrottlingException"),
            ("entry_failed", "InternalFailureException"),
        ):
            if world.luck(fault):
                self._disturb([handle], "its entry is refused")
                return EntryResult(EntryOutcome.REFUSED, code, "try again")
        stored = next((stored for stored in self._records.values() if stored.handle == handle), None)
        if stored is None or (self._plan.ends_handles and stored.visible_s <= world.now):
            return EntryResult(EntryOutcome.VOID, "ResourceNotFoundException", "the handle has ended")
        change(stored, place)
        return EntryResult(EntryOutcome.APPLIED)

    def _problem(self) -> PenstockError | None:
        world = self._world
        if world.is_denied("stream"):
            return AccessDenied("access is denied", code=world.denial)
        if world.luck("stream_throttle"):
            return Throttled("throttled", code="ThrottlingException")
        return None

    def _disturb(self, handles: Sequence[str], why: str, *, is_lost: bool = False) -> None:
        for handle in filter(None, handles):  # a record whose acknowledgement is forgotten has none
            self._world.record(queues.HandleDisturbed(handle, why, is_lost))
