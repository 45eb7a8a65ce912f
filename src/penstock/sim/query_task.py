"""A simulated task of a Spark query: it reads one shard of one batch with the production's reader, and claims the end.

A task is a process of another machine: it goes on when its driver is dead, as a zombie, and may claim. What it decides is the
production's `plan_read`, `judge_refused_claim` and `ShardReader`; every call takes virtual time and can go wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from penstock.core.batches.claims import (
    PAST_CLAIMS_MAX,
    ClaimedElsewhere,
    ClaimNote,
    Execution,
    ReadFreely,
    ReadNothing,
    ReadTo,
    RefusedClaim,
    judge_refused_claim,
    plan_read,
)
from penstock.core.batches.offsets import StreamOffset
from penstock.core.leases.coordinator_events import NotDone, Problem
from penstock.core.leases.lease import BatchClaim, Lease
from penstock.core.leases.lease_writes import Applied, Claim
from penstock.core.position import SHARD_END, Position, at_record
from penstock.core.reading.reader_options import ReaderOptions
from penstock.core.reading.reader_steps import (
    Failed,
    FetchIterator,
    FetchListing,
    FetchPage,
    Finished,
    ListPage,
    Wait,
)
from penstock.core.reading.shard_reader import ShardReader
from penstock.core.shard import ChildShard
from penstock.errors import PenstockError
from penstock.sim.environment import Environment
from penstock.sim.stream import SimRecord

_PAGE_RECORDS: Final = 4
_CLAIMS_MAX: Final = 8
_OPTIONS: Final = ReaderOptions(
    record_count_max=_PAGE_RECORDS,
    spacing_s=0.0,
    backoff_min_s=0.1,
    backoff_max_s=2.0,
    deadline_s=30.0,
    stubborn_failures_max=5,
)


class TaskOwner(Protocol):
    """The driver of a task, as far as the task knows it."""

    name: str
    who: str

    def on_task(self, offset: StreamOffset, key: str, rows: tuple[int, ...] | None) -> None:
        """Observe how an attempt ended: with rows, or None when it failed."""


class SimTask:
    """One attempt of one task, in a process that its driver's death does not touch.

    Args:
        world: What it sees.
        driver: Who is told how it ended.
        offset: The batch.
        execution: The batch in this shard.
        key: The shard.
    """

    def __init__(
        self, world: Environment, driver: TaskOwner, offset: StreamOffset, execution: Execution, key: str
    ) -> None:
        self.world = world
        self.driver = driver
        self.offset = offset
        self.execution = execution
        self.key = key
        share = offset.shares()[key].record_count_max
        self.count_max = 10**9 if share is None else share
        self.reader = None if execution.start.is_shard_end else self._open()
        self.rows: list[int] = []  # what was given out
        self.rest: Sequence[SimRecord] = ()  # what was cut off the last page
        self.children: tuple[ChildShard, ...] | None = None  # known once the shard's end was read
        self.end = execution.start
        self.at_tip = False
        self.claims = 0

    def _open(self) -> ShardReader:
        return ShardReader("stream", self.key, self.execution.start, _OPTIONS)

    def begin(self) -> None:
        """Look at the lease."""
        self.world.note("attempt", self.driver.name, self.offset.batch, self.key)
        self._fetch(self._on_lease)

    def _later(self, action: Any, *args: Any) -> None:
        self.world.schedule(self.world.now + self.world.latency_s(), action, *args)

    def _fetch(self, then: Any) -> None:
        def serve() -> None:
            problem = self.world.table_problem()
            if problem is Problem.TABLE_MISSING:
                self._later(then, None)
            elif problem is not None:
                self._fail()
            else:
                self._later(then, self.world.table.rows.get(self.key))

        self._later(serve)

    def _fail(self) -> None:
        self._later(self.driver.on_task, self.offset, self.key, None)

    def _succeed(self) -> None:
        rows = tuple(self.rows)
        self.world.note("executed", self.driver.name, self.offset.batch, self.key, rows)
        self._later(self.driver.on_task, self.offset, self.key, rows)

    def _on_lease(self, lease: Lease | None) -> None:
        match plan_read(lease, self.execution):
            case ReadTo(end):
                self._read_to(end)
            case ReadNothing():
                self._claim_nothing(lease)
            case ClaimedElsewhere():
                self._fail()
            case ReadFreely():
                self._read_freely(lease)
            case _:
                self._read_freely(None)

    # --- reading, as `penstock.spark.claimed_read` cuts --------------------------------------------------------

    def _read_freely(self, lease: Lease | None) -> None:
        """Read to the limit, the tip or the shard's end, then claim."""

        def done() -> None:
            if lease is None:
                self._succeed()  # the lease is gone: at-least-once, said aloud
            else:
                self._claim(lease)

        def take(behind_ms: int | None) -> None:
            count = self.count_max - len(self.rows)
            taken, self.rest = self.rest[:count], self.rest[count:]
            self._give(taken)
            if self.rest:
                done()
            elif self.children is not None:
                self.end = SHARD_END
                self.at_tip = True
                done()
            elif behind_ms == 0:
                self.at_tip = True
                done()
            elif len(self.rows) >= self.count_max:
                done()
            else:
                self._next_page(take)

        if self.reader is None or self.count_max == 0:
            done()
        else:
            self._next_page(take)

    def _read_to(self, end: Position) -> None:
        """Read what lies between what was given out and a fixed end."""

        def take(behind_ms: int | None) -> None:
            count = sum(1 for record in self.rest if at_record(record.sequence_number) <= end)
            is_cut = count < len(self.rest)
            self._give(self.rest[:count])
            self.rest = self.rest[count:]
            if self.end == end or (end.is_shard_end and self.children is not None):
                self.end = end
                self._succeed()
            elif is_cut or self.children is not None or (behind_ms == 0 and not self._look_again()):
                self._fail()  # production: the end has left the stream
            else:
                self._next_page(take)

        if end <= self.end:
            self._succeed()
        elif self.rest or self.children is not None:
            take(None)
        else:
            self._next_page(take)

    def _give(self, records: Sequence[SimRecord]) -> None:
        if records:
            self.rows += [int(record.sequence_number) for record in records]
            self.end = at_record(records[-1].sequence_number)

    def _look_again(self) -> bool:
        return self.reader is not None and self.reader.look_again(self.world.now)

    # --- the reader's steps, in virtual time -------------------------------------------------------------------

    def _next_page(self, take: Callable[[int | None], None]) -> None:
        """Do the reader's next step; `take` is called when `rest` holds the new rows of a page, or the shard has ended."""
        reader, world = self.reader, self.world
        assert reader is not None, "a shard that has ended is not read"

        def again() -> None:
            self._next_page(take)

        match reader.plan_step(world.now):
            case Wait(until_s):
                assert until_s is not None, "nothing that was read waits for delivery here"
                world.schedule(until_s, again)
            case Failed():
                self._fail()
            case Finished(children):
                self.children = children
                take(0)
            case FetchIterator(position):
                self._call(
                    lambda: world.serve_iterator(self.key, position),
                    lambda iterator: reader.on_iterator(iterator, world.now, world.wall_ms()),
                    again,
                )
            case FetchPage(iterator, count):
                began_s = world.now
                self._call(
                    lambda: world.serve_page(iterator, count),
                    lambda page: self._on_page(reader, page, began_s, take),
                    again,
                )
            case FetchListing():
                self._call(
                    lambda: world.serve_listing_of(self.key),
                    lambda listed: reader.on_listing(listed, world.now, world.chance.random()),
                    again,
                )

    def _call(
        self, serve: Callable[[], Any], answer: Callable[[Any], Any], again: Callable[[], None]
    ) -> None:
        """Do a call; `answer` returns True where the step is over, and else the next one follows."""
        began_s = self.world.now

        def settle(result: Any) -> None:
            assert self.reader is not None
            if isinstance(result, PenstockError):
                self.reader.on_failure(result, self.world.now, self.world.chance.random(), began_s)
                again()
            elif answer(result) is not True:
                again()

        self._later(lambda: self._later(settle, serve()))

    def _on_page(
        self,
        reader: ShardReader,
        page: ListPage[SimRecord],
        began_s: float,
        take: Callable[[int | None], None],
    ) -> bool:
        kept = reader.on_page(page, began_s, self.world.now, self.world.chance.random())
        if kept.rows is None:
            return False
        self.rest = kept.rows
        if isinstance(reader.final, Finished):
            self.children = reader.final.children
        take(page.millis_behind_latest if page.next_iterator is not None else None)
        return True

    # --- claiming -------------------------------------------------------------------------------------------

    def _claim_nothing(self, lease: Lease | None) -> None:
        self.end, self.rows = self.execution.start, []
        if lease is None:
            self._fail()
            return
        self._write(self._claim_of(lease, b""), lambda: self._fetch(self._on_lease))

    def _claim(self, lease: Lease) -> None:
        self.claims += 1
        if self.claims > _CLAIMS_MAX:
            self._fail()
            return
        note = ClaimNote(
            has_more=not self.at_tip,
            tip_ms=self.world.wall_ms() if self.at_tip else None,
            record_count=len(self.rows),
            children=self.children or () if self.end.is_shard_end else (),
        )
        # Refused, or unknown: what stands there says.
        self._write(self._claim_of(lease, note.to_bytes()), lambda: self._fetch(self._on_refused))

    def _claim_of(self, lease: Lease, note: bytes) -> Claim:
        execution, own = self.execution, lease.claim_of(self.execution.worker)
        claim = BatchClaim(
            execution.worker,
            execution.batch,
            execution.run,
            execution.start,
            self.end,
            note,
            self.world.wall_ms(),
            () if own is None else own.past(PAST_CLAIMS_MAX),
        )
        return Claim(self.key, claim, lease.checkpoint, None if own is None else own.identity)

    def _write(self, write: Claim, on_refused: Callable[[], None]) -> None:
        def serve() -> None:
            outcome = self.world.serve_write(self.driver.who, write)
            if isinstance(outcome, Applied):
                self._later(self._succeed)
            elif isinstance(outcome, NotDone):
                self._fail()
            else:
                on_refused()

        self._later(serve)

    def _on_refused(self, lease: Lease | None) -> None:
        meaning, end = judge_refused_claim(lease, self.execution, self.end)
        match meaning:
            case RefusedClaim.AGREES | RefusedClaim.GONE:
                self._succeed()
            case RefusedClaim.READ_ON:
                self._read_to(end)
            case RefusedClaim.REPEAT | RefusedClaim.LOST | RefusedClaim.ANOTHER_DRIVER:
                self._fail()
            case RefusedClaim.CLAIM_AGAIN:
                if lease is not None:
                    self._claim(lease)
