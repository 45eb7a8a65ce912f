"""A simulated worker's reading of one shard: the consumer's own `ShardRun`, with calls and handlers in virtual time.

Events take the place of the threads of the consumer's delivery loop: calls reach the service a moment later, and
the handler takes its time. The machines of reading and delivery, and all that lies between them, are production's.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, cast

from msgspec.structs import replace

from penstock.consumer.fetching import ShardFetcher
from penstock.consumer.processor import HandlerProcessor
from penstock.consumer.shard_run import Deaggregate, Fetch, ShardRun
from penstock.consumer.stream_argument import ConsumedStream
from penstock.core.leases.coordinator_effects import StartReader, StopWhy
from penstock.core.leases.coordinator_events import CheckpointRequested, Event, ReaderFailed, ReaderStopped
from penstock.core.reading.delivery_calls import Call, CallKind
from penstock.core.reading.reader_steps import FetchIterator, FetchPage
from penstock.errors import HandlerFailed, PenstockError
from penstock.ports.kinesis import RecordPage
from penstock.ports.metrics import NoMetrics
from penstock_sim.blocking_ports import SimClock
from penstock_sim.environment import Environment
from penstock_sim.events import processes, reading
from penstock_sim.process import SimProcess

PAGE_RECORDS: Final = 50
_NO_HANDLER: Final = HandlerProcessor(lambda _: None)  # the reader calls the handler itself, in virtual time


class ProcessWithReaders(SimProcess):
    """A simulated process whose readers take turns: those of one shard never call at once."""

    def __init__(self, world: Environment, name: str) -> None:
        super().__init__(world, name)
        self.readers: dict[tuple[str, int], SimReader] = {}
        self._current: dict[str, SimReader] = {}
        self._waiting: dict[str, list[SimReader]] = {}

    @abstractmethod
    def feed(self, event: Event) -> None:
        """Feed the coordinator an event and begin the effects that it returns."""

    @abstractmethod
    def on_reader_failed(self, reason: str) -> None:
        """Record that a shard has stopped, and check whether any can go on, as the delivery loop does."""

    def call(
        self, name: str, server: Callable[[], Any], answer: Callable[[Any], None], key: str = ""
    ) -> None:
        """Begin a call: the server acts after a moment, the answer arrives after another."""
        self.world.record(processes.CallMade(self.who, name, key))
        self.world.schedule(self.world.now + self.world.latency_s(), self._serve, server, answer)

    def _serve(self, server: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        # The server acts even if the caller has ended since: the request is on the way.
        result = server()
        self.later(self.world.latency_s(), answer, result)

    def read_keys(self) -> set[str]:
        return {key for key, _ in self.readers}

    def is_current(self, reader: SimReader) -> bool:
        """Return whether a reader may go on; otherwise it waits for an earlier one of its shard."""
        place = (reader.key, reader.epoch)
        if self.readers.get(place) is not reader:
            return False
        current = self._current.setdefault(reader.key, reader)
        if current is reader:
            return True
        queue = self._waiting.setdefault(reader.key, [])
        if reader.run.is_stopping:  # before its first step: no call is under way
            del self.readers[place]
            reader.report_stopped()
            if reader in queue:
                queue.remove(reader)
        elif reader not in queue:
            queue.append(reader)
        return False

    def forget(self, reader: SimReader) -> None:
        """Remove a reader, and begin the next one of its shard."""
        self.readers.pop((reader.key, reader.epoch), None)
        self._current.pop(reader.key, None)
        for follower in self._waiting.pop(reader.key, []):
            self.later(0.0, follower.step)


class SimReader:
    """Reads one shard and delivers to a handler that takes its time."""

    def __init__(
        self, worker: ProcessWithReaders, effect: StartReader, stream: ConsumedStream, fetcher: ShardFetcher
    ) -> None:
        self.worker = worker
        self.key = effect.key
        self.epoch = effect.epoch
        world = self._world = worker.world
        self._fetcher = fetcher
        self._options = world.reader_options(stream.retention_s)
        self.run = ShardRun(
            stream.name,
            effect,
            reader_options=self._options,
            delivery_options=world.scenario.delivery,
            is_checkpoint_urgent=world.chance.random() < 0.3,
            clock=SimClock(worker),
            chance=world.chance,
            metrics=_LossMetrics(self),
            processor=_NO_HANDLER,
        )
        self.is_reported = False
        self._delivered = -1  # the highest ordinal that the handler got
        self._wake_s = math.inf

    @property
    def place(self) -> tuple[str, str, int]:
        """The process, the shard, and a number that distinguishes the readers of both."""
        return self.worker.who, self.key, self.epoch

    # --- advancing ------------------------------------------------------------------------------------

    def step(self, planned_s: float | None = None) -> None:
        """Do the due steps; a planned step only while its plan is valid."""
        if planned_s is not None:
            if planned_s != self._wake_s:
                return
            self._wake_s = math.inf
        if not self.worker.is_current(self):
            return
        plan = self.run.advance(self.worker.local_s(), has_room=True)
        if plan.fetch is not None:
            self._fetch(plan.fetch)
        for call in plan.calls:
            self.worker.later(0.0, self._begin_call, call)
        for event in plan.events:
            self._report(event)
        if plan.is_over:
            self.worker.forget(self)
            return
        if plan.events:
            self.worker.later(0.0, self.step)  # an answer may call for a last call of user code
        wake_s = self.run.wake_s
        if wake_s is not None and wake_s != self._wake_s:
            self._wake_s = wake_s
            delay_s = max(0.0, self.worker.at_local(wake_s) - self._world.now)
            self.worker.later(delay_s + 1e-6, self.step, wake_s)

    def report_stopped(self) -> None:
        """Answer a stop from before the reading could begin."""
        self._report(ReaderStopped(self.key, self.epoch, None))

    def _report(self, event: Event) -> None:
        if not isinstance(event, CheckpointRequested):
            self.is_reported = True
            self._world.record(reading.ReaderEnded(*self.place))
        if isinstance(event, ReaderFailed):
            self._world.record(reading.ShardStopped(*self.place, event.short_reason or event.reason))
            if self.worker.name in self._world.scenario.foreign:
                event = replace(event, short_reason="")  # the KCL writes no reason to the row
            self.worker.on_reader_failed(event.reason)
        self.worker.feed(event)

    def stop(self, why: StopWhy) -> None:
        """Leave; the coordinator is answered when that is done."""
        self.run.stop(why)
        self.worker.later(0.0, self.step)

    def extend(self, deliver_until_s: float) -> None:
        """Move the moment at which delivery must end."""
        is_woken = not self.run.may_deliver
        self.run.extend(deliver_until_s)
        if is_woken:
            self.worker.later(0.0, self.step)

    # --- reading --------------------------------------------------------------------------------------

    def _fetch(self, fetch: Fetch) -> None:
        world = self._world
        if isinstance(fetch, Deaggregate):
            self._fetcher.fetch(self.run, fetch)
            self.worker.later(0.0, self.step)
        elif isinstance(fetch, FetchPage):
            began_s = self.worker.local_s()
            self._call(
                "read",
                lambda: world.serve_page(fetch.iterator, PAGE_RECORDS),
                lambda page: self._on_page(page, began_s),
            )
        else:
            name = "iterator" if isinstance(fetch, FetchIterator) else "list one"
            waiting = _WaitingRun(self.run)
            server = partial(self._fetcher.fetch, cast("ShardRun", waiting), fetch)
            self._call(name, server, lambda _: waiting.take_answer())

    def _call(self, name: str, server: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        def settle(result: Any) -> None:
            if isinstance(result, PenstockError):
                self.run.on_fetch_failed(result)
            else:
                answer(result)
            self.step()

        self.worker.call(name, server, settle, self.key)

    def _on_page(self, page: RecordPage, began_s: float) -> None:
        server_ms = (page.server_ms or 0) // 1000 * 1000  # the service's Date header has whole seconds
        self._fetcher.on_page(self.run, replace(page, server_ms=server_ms), began_s)
        is_tip = bool(page.next_iterator) and not page.millis_behind_latest
        if self._options.retention_s is not None and is_tip:
            self._world.record(reading.TipReached(*self.place, server_ms))

    # --- the handler ----------------------------------------------------------------------------------

    def _begin_call(self, call: Call) -> None:
        if not self.run.may_deliver:
            self.run.on_not_begun(call)
            self.step()
            return
        numbers = tuple(int(record.sequence_number) + record.sub_sequence_number for record in call.records)
        if call.kind is CallKind.BATCH:
            is_new = call.ordinals[0] > self._delivered
            kind = reading.RecordsDelivered if is_new else reading.RecordsRedelivered
            self._world.record(kind(*self.place, numbers))
            scenario = self._world.scenario
            if scenario.streams is not None:
                self._world.record(
                    reading.DeliveredFrom(
                        *self.place, tuple(sorted({(each.stream, each.shard_id) for each in call.records}))
                    )
                )
            if scenario.producers is not None or scenario.sinks is not None:
                # A record begins with its name; a row of a sink is longer.
                named = ((each.data.partition(b"|")[0], each.partition_key or "") for each in call.records)
                self._world.record(
                    reading.DeliveredTexts(*self.place, tuple((text.decode(), key) for text, key in named))
                )
            self._delivered = max(self._delivered, call.ordinals[-1])
        self.worker.later(self._world.handling_s(), self._end_call, call, numbers)

    def _end_call(self, call: Call, numbers: tuple[int, ...]) -> None:
        if call.kind is CallKind.BATCH and self._world.handler_fails(numbers):
            self._world.record(reading.HandlerRaised(*self.place, numbers))
            self.run.on_raised(call, HandlerFailed(f"cannot handle {numbers}"))
            if self.run.worker_failure is not None:
                self.worker.later(0.0, self.worker.request_stop)
        else:
            kind = reading.RecordsHandled if call.kind is CallKind.BATCH else reading.RecordsDeadLettered
            self._world.record(kind(*self.place, numbers))
            self.run.on_returned(call)
        self.step()


class _WaitingRun:
    """A run during a call of its fetcher, which it gets the answer to later."""

    def __init__(self, run: ShardRun) -> None:
        self._run = run
        self.take_answer: Callable[[], None]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._run, name)
        return partial(self._keep, found) if name.startswith("on_") else found

    def _keep(self, take: Callable[[Any], None], answer: Any) -> None:
        self.take_answer = partial(take, answer)


class _LossMetrics(NoMetrics):
    """Records in the history the possible losses that a run counts, and drops every other figure."""

    def __init__(self, reader: SimReader) -> None:
        self._reader = reader

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        if name == "possible_data_loss":
            self._reader.worker.world.record(reading.LossReported(*self._reader.place))
