"""A simulated Spark query: a driver that plans and commits as Spark does; its tasks (`query_task`) outlive it.

The driver runs the production's `Coordinator` and `QueryShards`.
What Spark keeps (the log of offsets, the log of commits) survives the driver; everything else dies with it, at any moment,
since every step is an event of its own. Attempts of one task race, fail and are repeated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.core.batches.claims import Execution
from penstock.core.batches.offsets import StreamOffset
from penstock.core.batches.query_shards import QueryShards, plan_recreation
from penstock.core.leases.coordinator_events import (
    AuditReaders,
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
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.lease import Lease, starting_lease
from penstock.core.leases.lease_writes import Create, Promote
from penstock.core.position import Position, Sentinel
from penstock.core.stream_identity import StreamIdentity
from penstock.sim.environment import Environment
from penstock.sim.query_task import SimTask
from penstock.sim.stream import SimShard
from penstock.sim.worker import SimWorker

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
    """Return the index of the first record that a position leaves to be read."""
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
        world: Environment,
        name: str,
        incarnation: int,
        on_gone: Callable[[SimWorker, str], None],
        log: QueryLog,
    ) -> None:
        super().__init__(world, name, incarnation, on_gone)
        self.log = log
        self.shards = QueryShards(name)
        self._commands: list[StartReader | StopReader] = []
        self._epochs: dict[str, int] = {}
        self._began_s = world.now
        self._has_joined = False
        self._results: dict[str, tuple[int, ...]] = {}
        self._failures = 0
        self._running: StreamOffset | None = None
        self._is_stopping = False
        self._handlers[StartReader] = self._keep
        self._handlers[StopReader] = self._keep
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

    def _keep(self, command: StartReader | StopReader) -> None:
        if isinstance(command, StartReader):
            self.world.note("start", self.who, command.key, command.epoch, command.position)
            self._epochs[command.key] = command.epoch
        self._commands.append(command)

    def _tell_alive(self, _: AuditReaders) -> None:
        self.later(0.0, self.feed, ReadersFound(frozenset(self._epochs.items())))

    def _obey(self) -> None:
        commands, self._commands = self._commands, []
        for command in commands:
            if isinstance(command, StartReader):
                self.shards.start(command, self.world.wall_ms())
            else:
                self.shards.stop(command)

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
        self._obey()
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
        self._obey()
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
        self._obey()
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
            SimTask(self.world, self, offset, execution, key).begin()

    def on_task(self, offset: StreamOffset, key: str, rows: tuple[int, ...] | None) -> None:
        """Observe how an attempt ended: with rows, or None when it failed."""
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
