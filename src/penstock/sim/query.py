"""A simulated Spark query: a driver that plans and commits as Spark does, and tasks that outlive it.

The driver runs the production's `Coordinator` and `QueryShards`, a task the production's `plan_read` and `settle_claim`.
What Spark keeps (the log of offsets, the log of commits) survives the driver; everything else dies with it, at any moment,
since every step is an event of its own. A task is a process of another machine: it goes on when its driver is dead, as a
zombie, and may claim. Attempts of one task race, fail and are repeated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.core.batches.claims import (
    PAST_CLAIMS_MAX,
    AnotherDriver,
    ClaimNote,
    Execution,
    Forfeit,
    ReadFreely,
    ReadTo,
    Settled,
    plan_read,
    settle_claim,
)
from penstock.core.batches.offsets import StreamOffset
from penstock.core.batches.query_shards import QueryShards, plan_recreation
from penstock.core.leases.coordinator_events import (
    AuditReaders,
    CoordinatorOptions,
    Event,
    ExtendDelivery,
    NotDone,
    Problem,
    ReadersFound,
    ReaderStopped,
    ShardDrained,
    StartReader,
    StopReader,
    StopRequested,
    Tick,
    Unknown,
)
from penstock.core.leases.lease import Applied, BatchClaim, Claim, Create, Lease, Promote, starting_lease
from penstock.core.position import SHARD_END, Position, Sentinel, at_record
from penstock.core.stream_identity import StreamIdentity
from penstock.sim.environment import Surroundings
from penstock.sim.stream import SimShard
from penstock.sim.worker import SimWorker

_PAGE_RECORDS: Final = 4
_CLAIMS_MAX: Final = 8
_FAILURES_MAX: Final = 8
_IDLE_S: Final = 1.0
_JOIN_S: Final = 20.0
_STREAM: Final = StreamIdentity("arn", 1)


@dataclass(slots=True)
class QueryLog:
    """What a query's checkpoint location holds: it survives the driver."""

    offsets: list[StreamOffset] = field(default_factory=list)
    committed_count: int = 0

    @property
    def done(self) -> StreamOffset:
        """The offset of the last committed batch."""
        return self.offsets[self.committed_count - 1] if self.committed_count else StreamOffset()

    @property
    def pending(self) -> StreamOffset | None:
        """The offset that was logged and whose batch was not committed."""
        return self.offsets[-1] if len(self.offsets) > self.committed_count else None


def index_after(shard: SimShard, position: Position) -> int:
    """Give the index of the first record that a position leaves to be read."""
    if position.sequence_number is not None:
        return bisect_right(shard.sequences, int(position.sequence_number))
    if position.is_shard_end:
        return len(shard.sequences)
    if position.timestamp_ms is not None:
        return bisect_left(shard.arrivals_ms, position.timestamp_ms)
    return len(shard.sequences) if position.sentinel is Sentinel.LATEST else 0


class SimQuery(SimWorker):
    """One life of a query's driver; `log` is its checkpoint location."""

    def __init__(
        self,
        world: Surroundings,
        name: str,
        incarnation: int,
        on_gone: Callable[[SimWorker, str], None],
        log: QueryLog,
    ) -> None:
        super().__init__(world, name, incarnation, on_gone)
        self.log = log
        self.shards = QueryShards(name)
        self._words: list[StartReader | StopReader] = []
        self._epochs: dict[str, int] = {}
        self._began_s = world.now
        self._has_joined = False
        self._results: dict[str, tuple[int, ...]] = {}
        self._failures = 0
        self._running: StreamOffset | None = None
        self._is_stopping = False
        self._handlers[StartReader] = self._hear
        self._handlers[StopReader] = self._hear
        self._handlers[AuditReaders] = self._tell_alive
        self._handlers[ExtendDelivery] = lambda _: None

    def coordinator_options(self) -> CoordinatorOptions:
        """As production's queries coordinate."""
        return replace(self.world.scenario.options, keeps_claims=True)

    # --- the coordinator --------------------------------------------------------------------------------

    def start(self) -> None:
        """Make what the log knows and the table does not, then join."""
        known = self.log.pending or self.log.done

        def see(rows: dict[str, Lease]) -> None:
            for row in rows.values():
                self.shards.see(row)
            self._recreate(rows, known, self._join)

        self._look(see)

    def _join(self) -> None:
        self.feed(Tick())
        self.later(0.05, self._turn)

    def _hear(self, word: StartReader | StopReader) -> None:
        if isinstance(word, StartReader):
            self.world.note("start", self.who, word.key, word.epoch, word.position)
            self._epochs[word.key] = word.epoch
        self._words.append(word)

    def _tell_alive(self, _: AuditReaders) -> None:
        self.later(0.0, self.feed, ReadersFound(frozenset(self._epochs.items())))

    def _listen(self) -> None:
        words, self._words = self._words, []
        for word in words:
            if isinstance(word, StartReader):
                self.shards.start(word, self.world.wall_ms())
            else:
                self.shards.stop(word)

    def _tell(self, events: list[Any]) -> None:
        told: list[Event] = list(events)
        for event in told:
            if isinstance(event, ShardDrained | ReaderStopped):
                self._epochs.pop(event.key, None)
                self.world.note("gone", self.who, event.key, event.epoch)
        for event in told:
            self.feed(event)

    def request_stop(self) -> None:
        """Stop as Spark stops a source: politely when no batch is under way, else by ending the process."""
        if self._running is not None or not self.shards.is_settled:
            self.on_gone(self, "stopped in a batch")
            return
        self._is_stopping = True
        self._listen()
        self._tell([*self.shards.drained(), *self.shards.hand_back_all()])
        self.feed(StopRequested())

    # --- Spark's loop -------------------------------------------------------------------------------------

    def _turn(self) -> None:
        if self._running is not None or self._is_stopping:
            return
        if not self._has_joined:
            waited_s = self.world.now - self._began_s
            if not self.coordinator.is_at_rest and waited_s < _JOIN_S:
                self.later(0.2, self._turn)
                return
            self._has_joined = True
        self._listen()
        if self.log.pending is not None:
            self._run_batch(self.log.pending)
        elif self.shards.is_settled_for(self.log.done.batch):
            self._plan()
        else:
            self._look(lambda rows: self._recreate(rows, self.log.done, lambda: self._look(self._settle)))

    def _look(self, then: Any) -> None:
        known_before = bool(self.log.offsets)

        def serve() -> Problem | dict[str, Lease]:
            if not self.world.table.exists:
                self.world.table.exists = True  # production makes it anew, and says so
                if known_before:
                    self.world.note("report", self.who, "TABLE_GONE", "", None)
            problem = self.world.table_problem()
            return problem if problem is not None else dict(self.world.table.rows)

        def answer(result: Problem | dict[str, Lease]) -> None:
            if isinstance(result, Problem):
                self.later(self.world.chance.uniform(0.1, 1.0), self._look, then)
            else:
                then(result)

        self.call("query scan", serve, answer)

    def _recreate(self, rows: dict[str, Lease], known: StreamOffset, then: Any) -> None:
        lineage = {key: shard.parents for key, shard in self.world.stream.shards.items()}
        missing = list(plan_recreation(rows, known, lineage).items())

        def following(_: Any = None) -> None:
            if not missing:
                then()
                return
            key, position = missing.pop()
            shard = self.world.stream.shards[key]
            write = Create(starting_lease(key, position, shard.parents, shard.hash_range))
            self.call("query create", lambda: self.world.serve_write(self.who, write), following, key)

        following()

    def _settle(self, rows: dict[str, Lease]) -> None:
        if self._is_stopping:
            return
        settlement = self.shards.settle(self.log.done, rows, self.world.wall_ms(), self.local_s())
        self._tell(list(settlement.progress))
        self._plan()

    def _plan(self) -> None:
        if self._is_stopping:
            return
        self._listen()
        for key, state in self.shards.states.items():
            shard = self.world.stream.shards[key]
            if index_after(shard, state.position) < len(shard.sequences):
                state.has_news = True
            elif shard.closed_ms is not None:
                state.is_finished = True
                state.children = self.world.stream.children_of(shard)
        self._tell([*self.shards.drained(), *self.shards.hand_back()])
        wanted = [key for key, state in self.shards.states.items() if state.has_news]
        if not wanted:
            self._promote(self.shards.promotions())
            return
        offset = self.shards.next_offset(
            self.log.done,
            wanted,
            stream=_STREAM,
            record_count_max=self.world.chance.choice((3, 10, 1000)),
            bytes_max=None,
            until_ms=None,
        )
        self.later(self.world.latency_s(), self._log, offset)

    def _promote(self, writes: list[Promote]) -> None:
        if not writes:
            self.later(_IDLE_S, self._turn)
            return
        write = writes[0]

        def answer(outcome: Any) -> None:
            if not isinstance(outcome, NotDone | Unknown):
                self.shards.note_promoted([write.key])
            self._promote(writes[1:])

        self.call("query promote", lambda: self.world.serve_write(self.who, write), answer, write.key)

    def _log(self, offset: StreamOffset) -> None:
        if self._is_stopping:
            return
        self.log.offsets.append(offset)
        self.later(self.world.latency_s(), self._run_batch, offset)

    # --- a batch ------------------------------------------------------------------------------------------

    def _run_batch(self, offset: StreamOffset) -> None:
        if self._is_stopping:
            return
        self._running = offset
        self._results = {}
        self._failures = 0
        self.shards.batch_begins()
        keys = list(offset.shares())
        for key in keys:
            for _ in range(2 if self.world.chance.random() < 0.2 else 1):
                self._attempt(offset, key)
        if not keys:
            self._commit(offset)

    def _attempt(self, offset: StreamOffset, key: str) -> None:
        if offset is self._running:
            execution = Execution(
                offset.worker, offset.batch, self.who, offset.shards[key], self.shards.seen_claim(key)
            )
            SimTask(self, offset, key, execution).begin()

    def on_task(self, offset: StreamOffset, key: str, rows: tuple[int, ...] | None) -> None:
        """Take in how an attempt ended: with rows, or None when it failed."""
        if offset is not self._running or not self.is_alive:
            return
        if rows is None:
            self._failures += 1
            if key in self._results:
                return
            if self._failures > _FAILURES_MAX * len(offset.shards):
                self.on_gone(self, "failed")
                return
            self.later(self.world.chance.uniform(0.01, 0.5), self._attempt, offset, key)
            return
        self._results.setdefault(key, rows)
        if all(key in self._results for key in offset.shares()):
            self.later(self.world.chance.choice((0.01, 0.5)), self._commit, offset)

    def _commit(self, offset: StreamOffset) -> None:
        if offset is not self._running:
            return  # a second attempt came to its end meanwhile
        self._running = None
        self.world.note("committed", self.name, offset.batch, tuple(sorted(self._results.items())))
        for key, rows in self._results.items():
            if rows:
                self.world.note("done", self.who, key, -1, rows)
        self.log.committed_count += 1
        self.later(0.01, self._turn)


class SimTask:
    """One attempt of one task, in a process that its driver's death does not touch."""

    def __init__(self, driver: SimQuery, offset: StreamOffset, key: str, execution: Execution) -> None:
        self.execution = execution
        self.driver = driver
        self.world = driver.world
        self.offset = offset
        self.key = key
        self.start = offset.shards[key]
        self.shard = self.world.stream.shards[key]
        share = offset.shares()[key].record_count_max
        self.count_max = 10**9 if share is None else share
        self.first = self.index = index_after(self.shard, self.start)
        self.end = self.start
        self.at_tip = False
        self.claims = 0

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
        rows = tuple(self.shard.sequences[self.first : self.index])
        self.world.note("executed", self.driver.name, self.offset.batch, self.key, rows)
        self._later(self.driver.on_task, self.offset, self.key, rows)

    def _on_lease(self, lease: Lease | None) -> None:
        plan = plan_read(lease, self.execution)
        match plan:
            case ReadTo(end):
                self._read_to(end)
            case Forfeit():
                self._claim_nothing(lease)
            case AnotherDriver():
                self._fail()
            case ReadFreely():
                self._read(lease)
            case _:
                self._read(None)

    # --- reading --------------------------------------------------------------------------------------------

    def _read(self, lease: Lease | None) -> None:
        """Read a page; on to the limit or the tip."""
        if self.world.chance.random() < self.world.faults.broken_connection:
            self._fail()
            return
        left = self.count_max - (self.index - self.first)
        page_end = min(len(self.shard.sequences), self.index + min(left, _PAGE_RECORDS))
        self.index = page_end
        if self.index > self.first:
            self.end = at_record(str(self.shard.sequences[self.index - 1]))
        is_all = self.index >= len(self.shard.sequences)
        if is_all:
            self.at_tip = True
            if self.shard.closed_ms is not None:
                self.end = SHARD_END
        if is_all or self.index - self.first >= self.count_max:
            if lease is None:
                self._succeed()  # the lease is gone: at-least-once, said aloud
            else:
                self._later(self._claim, lease)
        else:
            self._later(self._read, lease)

    def _read_to(self, end: Position) -> None:
        self.index = (
            max(self.index, index_after(self.shard, end)) if not self.start.is_shard_end else self.index
        )
        self.end = end
        self._later(self._succeed)

    # --- claiming -------------------------------------------------------------------------------------------

    def _claim_nothing(self, lease: Lease | None) -> None:
        self.end, self.index = self.start, self.first
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
            record_count=self.index - self.first,
            children=self.world.stream.children_of(self.shard) if self.end.is_shard_end else (),
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
        meaning, end = settle_claim(lease, self.execution, self.end)
        match meaning:
            case Settled.AGREES | Settled.GONE:
                self._succeed()
            case Settled.READ_ON:
                self._read_to(end)
            case Settled.REPEAT | Settled.LOST | Settled.ANOTHER_DRIVER:
                self._fail()
            case Settled.CLAIM_AGAIN:
                if lease is not None:
                    self._claim(lease)
