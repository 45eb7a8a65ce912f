"""A simulated worker of a queue: the production's loop with its threads as fibers, and a handler that fails, hangs and rejects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final, cast

from penstock.core.queueing.queue_events import EntryOutcome
from penstock.errors import NotFound, PenstockError, Reject, Rejected, UnknownOutcome
from penstock.ports.metrics import NoMetrics
from penstock.ports.queues import EntryResult, Queues, ReceivedRecord
from penstock.queues.handler_calls import ThreadCalls
from penstock.queues.queue_loop import QueueEvent, QueueLoop, QueuePools
from penstock.queues.queue_records import QueueBatch, QueueRecord
from penstock.runtime.loop import LoopThread
from penstock_sim.actors import Actors
from penstock_sim.blocking_ports import Caller, SimClock
from penstock_sim.environment import Environment
from penstock_sim.events import processes, queues, streams
from penstock_sim.fibers import ProcessEnded
from penstock_sim.plan import QueuePlan
from penstock_sim.process import SimProcess
from penstock_sim.queue_service import QueueService
from penstock_sim.virtual_threads import VirtualThreads
from penstock_sim.world import World

_CALL_THREADS: Final = 4
"""As `penstock.queues.queue_consumer`."""
_FOR_EVER_S: Final = 1e6
_TURNS_MAX: Final = 200
"""Turns of a loop in one moment; each of its threads may post an event."""


class _SimQueues:
    """The calls on records of `penstock.ports.queues.Queues`, for one process."""

    def __init__(self, process: SimProcess, service: QueueService) -> None:
        self._process = process
        self._service = service
        self._caller = Caller(process, "", None)
        self._numbers = count()

    def receive(self, queue_arn: str, limit: int, wait_s: int, visibility_s: int) -> Sequence[ReceivedRecord]:
        process, service = self._process, self._service
        received: Sequence[ReceivedRecord] = self._caller.call(
            "receive", lambda: service.serve_receive(process.who, limit, wait_s, visibility_s)
        )
        process.world.record(queues.QueueAnswerArrived(tuple(each.handle for each in received)))
        return received

    def acknowledge(self, queue_arn: str, handles: Sequence[str]) -> Sequence[EntryResult]:
        service, who = self._service, self._process.who
        return self._call("acknowledge", lambda: service.serve_acknowledge(who, handles), handles, ())

    def set_visibility(
        self, queue_arn: str, handles: Sequence[str], seconds: Sequence[int]
    ) -> Sequence[EntryResult]:
        service = self._service
        return self._call("visibility", lambda: service.serve_visibility(handles, seconds), handles, seconds)

    def _call(
        self, name: str, server: Callable[[], Any], handles: Sequence[str], seconds: Sequence[int]
    ) -> Sequence[EntryResult]:
        world, who, number = self._process.world, self._process.who, next(self._numbers)
        world.record(queues.QueueCallSent(who, number, tuple(handles), tuple(seconds)))
        try:
            results: Sequence[EntryResult] = self._caller.call(name, server)
        except PenstockError as error:
            outcome = EntryOutcome.REFUSED
            if isinstance(error, UnknownOutcome):
                outcome = EntryOutcome.UNKNOWN
            elif isinstance(error, NotFound | Rejected):
                outcome = EntryOutcome.VOID
            world.record(queues.QueueCallAnswered(who, number, (outcome.value,) * len(handles)))
            raise
        world.record(queues.QueueCallAnswered(who, number, tuple(each.outcome.value for each in results)))
        return results


class _EndCounts(NoMetrics):
    """Counts the ends of deliveries among the situations."""

    def __init__(self, world: Environment) -> None:
        self._world = world

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        if name == "queue_records_ended" and labels is not None:
            self._world.met[f"situation: a delivery of a queue ends: {labels['end']}"] += int(value)


class _RecordingLoop(QueueLoop):
    """The production's loop. A lasting failure is recorded as a stop, and turns without a wait end the loop."""

    process: SimQueueWorker
    _turns: tuple[float, int] = (0.0, 0)

    def handle_events(self, events: list[QueueEvent], now_s: float) -> None:
        at_s, turn_count = self._turns
        self._turns = (now_s, turn_count + 1 if now_s == at_s else 0)
        if turn_count > _TURNS_MAX:
            raise AssertionError(f"{turn_count} turns of the loop without a wait")
        super().handle_events(events, now_s)

    def fail(self, error: PenstockError) -> None:
        if self.failure is None:
            self.process.world.record(processes.ProcessStopping(self.process.who))
        super().fail(error)


class SimQueueWorker(SimProcess):
    """One process that consumes the queue."""

    def __init__(self, world: Environment, name: str, plan: QueuePlan, service: QueueService) -> None:
        super().__init__(world, name)
        self.is_hung = False
        self._clock = SimClock(self)
        threads, options = VirtualThreads(self), plan.options
        pools = QueuePools(
            receive=threads.pool("receive", options.receives_max),
            call=threads.pool("call", _CALL_THREADS),
            handler=threads.pool("handler", options.concurrency),
        )
        self._loop = _RecordingLoop(
            queue=service.description,
            queues=cast("Queues", _SimQueues(self, service)),  # the loop makes no control call
            options=options,
            worker_id=name,
            calls=ThreadCalls(self._handle, pools.handler),
            pools=pools,
            clock=self._clock,
            chance=world.chance,
            metrics=_EndCounts(world),
            condition=threads.condition(),
        )
        self._loop.process = self

    def start(self) -> None:
        self.spawn(self._drive)

    def request_stop(self) -> None:
        self._loop.request_stop()

    @property
    def has_nothing(self) -> bool:
        """Whether no delivery is in hand whose handle is in use."""
        return self._loop.health().oldest_unacknowledged_s is None

    def _drive(self) -> None:
        LoopThread("queue", self._loop, self._clock, self._crash).run()
        if self.is_alive:
            self.on_gone(self, "stopped")

    def _crash(self, error: BaseException) -> None:
        if not isinstance(error, ProcessEnded):
            self.world.record(
                processes.MessageLogged(self.who, "CRITICAL", "the queue's loop crashed", repr(error))
            )
        self._loop.crash(error)

    # --- user code ------------------------------------------------------------------------------------------

    def _handle(self, argument: QueueRecord | QueueBatch) -> None:
        if not self.is_alive:  # a thread of the pool goes on after a call that ended with its process
            raise ProcessEnded
        world = self.world
        records = (argument,) if isinstance(argument, QueueRecord) else argument.records
        parts = tuple((record.record_id, record.sub_sequence_number) for record in records)
        world.met[queues.SEVERAL_PARTS] += parts[0][1] > 0
        world.record(queues.QueueHandlerBegan(self.who, parts))
        if world.luck("hung_handler"):
            self.is_hung = True
            self._clock.sleep(_FOR_EVER_S)
        self._clock.sleep(world.handling_s())
        rejected = tuple(part for part in parts if world.luck("rejected_record"))
        if world.handler_fails(tuple(int(record[1:]) for record, _ in parts)):
            done = parts[: world.chance.randrange(len(parts))]
            if isinstance(argument, QueueBatch) and done:
                argument.acknowledge(*records[: len(done)])
            world.record(queues.QueueHandlerEnded(self.who, done=done, failed=parts[len(done) :]))
            raise RuntimeError("the handler failed")
        done = tuple(part for part in parts if part not in rejected)
        world.record(queues.QueueHandlerEnded(self.who, done=done, rejected=rejected))
        if isinstance(argument, QueueBatch):
            for part in rejected:
                argument.reject(records[parts.index(part)])
        elif rejected:
            raise Reject("the handler rejects it")


class QueueActors(Actors):
    """The workers of a queue, and its service."""

    def __init__(self, world: World, plan: QueuePlan) -> None:
        super().__init__(world)
        self._plan = plan
        self._service = QueueService(world, plan)

    def begin(self) -> None:
        self._put_later()

    def _put_later(self) -> None:
        world = self.world
        if not world.is_healed:
            for _ in range(world.chance.randint(1, 5)):
                self._service.put()
            world.schedule(
                world.now + world.chance.expovariate(self._plan.records_per_s / 3), self._put_later
            )

    def recurring(self) -> list[tuple[float, Callable[[], None]]]:
        return [(self.world.scenario.faults.early_redeliveries_per_min, self._service.surface)]

    def make(self, name: str) -> SimQueueWorker | None:
        is_worker = name in self._plan.workers
        return SimQueueWorker(self.world, name, self._plan, self._service) if is_worker else None

    def _on_shard_closed(self, event: streams.ShardClosed) -> None:
        self._service.move_records_of(event.key)

    def wants_restart(self, process: SimProcess) -> bool:
        return isinstance(process, SimQueueWorker) and process.is_hung

    def is_done(self) -> bool:
        workers = [each for each in self.world.workers.values() if isinstance(each, SimQueueWorker)]
        return self._service.is_empty and all(worker.has_nothing for worker in workers)
