"""One simulated worker: the real coordinator, real shard readers, and calls that can go wrong.

A worker is a process: it can crash, be paused, be asked to stop, and come back under the same name. Its clock runs
at a rate of its own. Every call reaches its server a moment after it was begun and is answered a moment later;
what happens on the way is the fault plan's choice.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from penstock.core.leases.coordinator import Coordinator
from penstock.core.leases.coordinator_events import (
    AuditReaders,
    CheckpointRequested,
    Effect,
    EnsureTable,
    Event,
    ExtendDelivery,
    FetchFailed,
    FetchLease,
    LeaseFetched,
    ListingDone,
    ListingFailed,
    ListShards,
    Problem,
    ReaderFailed,
    ReaderProgress,
    ReadersFound,
    ReaderStopped,
    Report,
    ScanDone,
    ScanFailed,
    ScanTable,
    ShardDrained,
    StartReader,
    Stopped,
    StopReader,
    StopRequested,
    TableReady,
    Tick,
    WriteDone,
    WriteLease,
)
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.position import Position, at_record
from penstock.core.reading.reader_options import ReaderOptions
from penstock.core.reading.reader_steps import (
    Failed,
    FetchIterator,
    FetchListing,
    FetchPage,
    Finished,
    ListedShard,
    ListPage,
    Step,
    Wait,
)
from penstock.core.reading.shard_reader import ShardReader
from penstock.sim.environment import Environment
from penstock.sim.process import SimProcess
from penstock.sim.stream import SimRecord

_PAGE_RECORDS: Final = 50
_BATCH_RECORDS: Final = 5
READER_OPTIONS: Final = ReaderOptions(
    idle_time_between_reads_s=4.0, backoff_min_s=0.5, backoff_max_s=4.0, on_data_loss="warn"
)


class SimWorker(SimProcess):
    """One process.

    Args:
        world: What it sees.
        name: Its worker id.
        incarnation: Names it apart from its earlier lives.
        on_gone: Called when it has ended, with how.
    """

    def __init__(
        self, world: Environment, name: str, incarnation: int, on_gone: Callable[[SimProcess, str], None]
    ) -> None:
        super().__init__(world, name, incarnation)
        self.on_gone = on_gone
        self.coordinator = Coordinator(name, self.coordinator_options())
        self.readers: dict[str, SimReader] = {}
        self._wake = math.inf
        self._handlers: dict[type, Callable[[Any], None]] = {
            WriteLease: self._write,
            ScanTable: self._scan,
            FetchLease: self._fetch,
            ListShards: self._list,
            EnsureTable: self._ensure,
            StartReader: self._start_reader,
            StopReader: self._stop_reader,
            ExtendDelivery: self._extend,
            AuditReaders: self._audit,
            Report: self._report,
            Stopped: self._stopped,
        }

    def coordinator_options(self) -> CoordinatorOptions:
        """Return how this worker coordinates."""
        return self.world.scenario.options

    # --- the coordinator ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self.feed(Tick())

    def feed(self, event: Event) -> None:
        """Feed the coordinator an event and begin the effects that it returns."""
        effects = self.coordinator.handle(event, self.local_s(), self.world.chance.random())
        for effect in effects:
            self._do(effect)
        if not self.is_alive:
            return
        wake = self.at_local(self.coordinator.next_wake_s)
        if wake < self._wake - 1e-9 and wake != math.inf:
            self._wake = wake
            # A hair later: turning the moment into the world's time and back may come out a hair before it.
            self.world.schedule(max(wake, self.world.now) + 1e-6, self._do_unless_ended, self._tick, (wake,))

    def _tick(self, wake: float) -> None:
        if wake == self._wake:
            self._wake = math.inf
            self.feed(Tick())

    def _do(self, effect: Effect) -> None:
        handler = self._handlers.get(type(effect))
        if handler is not None:
            handler(effect)

    # --- calls ----------------------------------------------------------------------------------------

    def call(
        self, name: str, server: Callable[[], Any], answer: Callable[[Any], None], key: str = ""
    ) -> None:
        """Begin a call: the server acts after a moment, the answer comes after another."""
        self.world.note("call", self.who, name, key)
        self.world.schedule(self.world.now + self.world.latency_s(), self._serve, server, answer)

    def _serve(self, server: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        # The server acts even when the caller has ended meanwhile: the request is on the way.
        result = server()
        self.later(self.world.latency_s(), answer, result)

    def _write(self, effect: WriteLease) -> None:
        self.call(
            f"write {type(effect.write).__name__}",
            lambda: self.world.serve_write(self.who, effect.write),
            lambda outcome: self.feed(WriteDone(effect.write_id, effect.write, outcome)),
            effect.write.key,
        )

    def _scan(self, effect: ScanTable) -> None:
        began_s, part = self.local_s(), effect.part

        def answer(result: Any) -> None:
            if isinstance(result, Problem):
                self.feed(ScanFailed(result))
            else:
                self.feed(ScanDone(result[0], result[1], began_s, part))

        name = "scan" if part is None or part.is_whole else "scan part"
        self.call(name, lambda: self.world.serve_scan(part), answer)

    def _fetch(self, effect: FetchLease) -> None:
        def answer(result: Any) -> None:
            if isinstance(result, Problem):
                self.feed(FetchFailed(effect.key, result))
            else:
                self.feed(LeaseFetched(effect.key, result[0]))

        self.call("fetch", lambda: self.world.serve_fetch(effect.key), answer, effect.key)

    def _list(self, effect: ListShards) -> None:
        def answer(result: Any) -> None:
            if isinstance(result, Problem):
                self.feed(ListingFailed(effect.purpose, result))
            else:
                self.feed(ListingDone(effect.purpose, result[0], result[1]))

        self.call(
            "list shards", lambda: self.world.serve_listing(effect.filter_type, effect.timestamp_ms), answer
        )

    def _ensure(self, _: EnsureTable) -> None:
        self.call("ensure", self.world.serve_ensure, lambda _result: self.feed(TableReady()))

    # --- readers --------------------------------------------------------------------------------------

    def _start_reader(self, effect: StartReader) -> None:
        self.world.note("start", self.who, effect.key, effect.epoch, effect.position)
        reader = SimReader(self, effect)
        self.readers[effect.key] = reader
        if self.world.scenario.with_readers:
            self.later(0.0, reader.step)

    def _stop_reader(self, effect: StopReader) -> None:
        reader = self.readers.get(effect.key)
        if reader is not None and reader.epoch == effect.epoch:
            reader.stopping = True
            reader.queue.clear()
            self.later(0.0, reader.step)

    def _extend(self, effect: ExtendDelivery) -> None:
        reader = self.readers.get(effect.key)
        if reader is not None and reader.epoch == effect.epoch:
            reader.until_s = effect.deliver_until_s
            if reader.is_held_up:
                self.later(0.0, reader.step)

    def _audit(self, _: AuditReaders) -> None:
        alive = frozenset((key, reader.epoch) for key, reader in self.readers.items())
        self.later(0.0, self.feed, ReadersFound(alive))

    def _report(self, effect: Report) -> None:
        self.world.note("report", self.who, effect.topic.name, effect.reason, effect.key)

    def _stopped(self, _: Stopped) -> None:
        self.on_gone(self, "stopped")

    def request_stop(self) -> None:
        """Ask the process to stop politely."""
        self.feed(StopRequested())


class SimReader:
    """Reads one shard with the real machine and delivers to a handler that takes its time."""

    def __init__(self, worker: SimWorker, effect: StartReader) -> None:
        self.worker = worker
        self.key = effect.key
        self.epoch = effect.epoch
        self.until_s = effect.deliver_until_s
        self.machine = ShardReader("stream", effect.key, effect.position, READER_OPTIONS)
        self.queue: deque[SimRecord] = deque()
        self.done: Position | None = None
        self.stopping = False
        self.is_held_up = False
        self._is_handling = False
        self._is_calling = False
        self._next_step_s = math.inf

    @property
    def is_current(self) -> bool:
        """Whether the process still knows this reader."""
        return self.worker.readers.get(self.key) is self

    def step(self, planned_s: float | None = None) -> None:
        """Do the next thing."""
        if planned_s is not None:
            if planned_s != self._next_step_s:
                return
            self._next_step_s = math.inf
        if not self.is_current or self._is_handling:
            return
        if self.stopping:
            self._gone()
            self.worker.feed(ReaderStopped(self.key, self.epoch, self.done))
        elif self.queue:
            self._deliver()
        elif not self._is_calling:
            self._do(self.machine.plan_step(self.worker.local_s()))

    def _gone(self) -> None:
        del self.worker.readers[self.key]
        self.worker.world.note("gone", self.worker.who, self.key, self.epoch)

    def _do(self, step: Step) -> None:
        match step:
            case FetchIterator(position):
                self._call(
                    "iterator", lambda: self._world.serve_iterator(self.key, position), self._on_iterator
                )
            case FetchPage(iterator, _):
                began_s = self.worker.local_s()
                self._call(
                    "read",
                    lambda: self._world.serve_page(iterator, _PAGE_RECORDS),
                    lambda page: self._on_page(page, began_s),
                )
            case FetchListing():
                self._call("list one", lambda: self._world.serve_listing_of(self.key), self._on_listing)
            case Wait(until_s, _) if until_s is not None:
                self._wake_at(until_s)
            case Finished(children):
                self._gone()
                self.worker.feed(ShardDrained(self.key, self.epoch, children))
            case Failed(error):
                self._gone()
                self.worker.feed(ReaderFailed(self.key, self.epoch, self.done, str(error), release=True))

    @property
    def _world(self) -> Environment:
        return self.worker.world

    def _wake_at(self, until_s: float) -> None:
        self._next_step_s = until_s
        delay_s = max(0.0, self.worker.at_local(until_s) - self._world.now)
        self.worker.later(delay_s + 1e-6, self.step, until_s)

    def _call(self, name: str, server: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        self._is_calling = True

        def settle(result: Any) -> None:
            self._is_calling = False
            if not self.is_current:
                return
            if isinstance(result, Exception):
                self.machine.on_failure(
                    result,  # type: ignore[arg-type]  # the world's servers give errors of this package only
                    self.worker.local_s(),
                    self._world.chance.random(),
                )
            else:
                answer(result)
            self.step()

        self.worker.call(name, server, settle, self.key)

    def _on_iterator(self, iterator: str) -> None:
        self.machine.on_iterator(iterator, self.worker.local_s(), self._world.wall_ms())

    def _on_page(self, page: ListPage[SimRecord], began_s: float) -> None:
        kept = self.machine.on_page(page, began_s, self.worker.local_s(), self._world.chance.random())
        if not self.stopping:
            self.queue.extend(kept.rows or ())
        self.worker.feed(
            ReaderProgress(self.key, self.epoch, str(self.machine.position), page.millis_behind_latest)
        )

    def _on_listing(self, listed: ListedShard) -> None:
        self.machine.on_listing(listed, self.worker.local_s(), self._world.chance.random())

    def _deliver(self) -> None:
        if self.worker.local_s() >= self.until_s:
            self.is_held_up = True  # the lease may be another's by now
            return
        self.is_held_up = False
        batch = tuple(self.queue.popleft() for _ in range(min(_BATCH_RECORDS, len(self.queue))))
        sequences = tuple(int(record.sequence_number) for record in batch)
        self._world.note("deliver", self.worker.who, self.key, self.epoch, sequences)
        self._is_handling = True
        self.begin_handling(batch, sequences)

    def begin_handling(self, batch: tuple[SimRecord, ...], sequences: tuple[int, ...]) -> None:
        """Run the handler, which takes a while."""
        self.worker.later(self._world.handling_s(), self._on_handled, batch, sequences)

    def _on_handled(self, batch: tuple[SimRecord, ...], sequences: tuple[int, ...]) -> None:
        self._is_handling = False
        self._world.note("done", self.worker.who, self.key, self.epoch, sequences)
        self.done = at_record(batch[-1].sequence_number)
        self.checkpoint(self.done)
        self.step()

    def checkpoint(self, position: Position) -> None:
        """Ask the coordinator to store what is done."""
        urgent = self._world.chance.random() < 0.2
        self.worker.feed(CheckpointRequested(self.key, self.epoch, position, urgent))
