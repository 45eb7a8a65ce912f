"""The consumer's own worker in virtual time: its loops are driven by hand, and a pause costs nothing."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from typing import Final

from penstock.consumer.consumer_ports import ConsumerPorts
from penstock.consumer.pending_checkpoint import PendingCheckpoint
from penstock.consumer.processor import DeadLetterHandler, StreamProcessorFactory
from penstock.consumer.worker import Worker
from penstock.core.keyword_options import check_range
from penstock.errors import PenstockError, UsageError
from penstock.runtime.loop import Task
from penstock.runtime.worker_ports import Pools
from penstock.testing.lease_table import WatchedLeaseTable
from penstock.testing.memory_stream import MemoryStream
from penstock.testing.recorder import Recorder

_RUN_S_MAX: Final = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults during a run. Only calls with records are counted, from 1, repeated calls too.

    Attributes:
        lease_lost_after: Another worker takes the lease when this call has ended, and before the next one begins.
        lease_lost_during: Another worker takes the lease while this call is under way, before user code reads the batch.
        stop_during: The worker is asked to stop, as by SIGTERM, while this call is under way.
        refused_checkpoints: The lease table refuses this many of the first checkpoints that user code waits for.

    Raises:
        OptionError: A number is out of its range.
    """

    lease_lost_after: int | None = None
    lease_lost_during: int | None = None
    stop_during: int | None = None
    refused_checkpoints: int = 0

    def __post_init__(self) -> None:
        check_range(self, 1, None, "lease_lost_after", "lease_lost_during", "stop_during")
        check_range(self, 0, None, "refused_checkpoints")


class VirtualClock:
    """Implements `penstock.ports.clock.Clock`: it moves when nothing else is due."""

    def __init__(self, start_ms: int) -> None:
        self.now_s = 0.0
        self._start_ms = start_ms

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return self._start_ms + round(self.now_s * 1000)

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


class LongestPause:
    """Implements `penstock.ports.clock.Chance`: every pause is as long as it can be, so the same in each run."""

    def random(self) -> float:
        """Return the largest number below 1."""
        return 1.0 - 2.0**-53


class TaskQueue:
    """Implements `penstock.runtime.loop.Pool`: tasks wait until the driver runs them."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        self.tasks.append(task)

    def close(self) -> None:
        self.tasks.clear()


class VirtualDriver:
    """Implements `penstock.consumer.worker.WorkerDriver` for a run over the records of one shard.

    Calls of user code run one at a time on the thread that drives. A call that returns a future lasts until that is done.
    """

    def __init__(self, stream: MemoryStream, faults: Faults) -> None:
        self.stream = stream
        self.table: WatchedLeaseTable = WatchedLeaseTable(stream.shard_id, stream.start)
        self.clock: VirtualClock = VirtualClock(stream.newest_ms)
        self.recorder: Recorder = Recorder(self.clock, self._before_call, self._after_call)
        self._calls, self._handlers = TaskQueue(), TaskQueue()
        self.pools: Pools = Pools(self._calls, self._calls, self._calls, self._handlers)
        self.ports: ConsumerPorts = ConsumerPorts(stream, self.table, self.clock, LongestPause(), driver=self)
        self.is_lease_lost: bool = False
        self._faults = faults
        self._refusals_left = faults.refused_checkpoints
        self._must_lose_lease = False
        self._worker: Worker | None = None
        self._lock = threading.RLock()  # user code may wait for a checkpoint on a thread of its own

    # --- as the consumer's driver ---

    def wrap_user_code(
        self, factory: StreamProcessorFactory, dead_letter: DeadLetterHandler | None
    ) -> tuple[StreamProcessorFactory, DeadLetterHandler | None]:
        return self.recorder.wrap_user_code(factory, dead_letter)

    def start(self, worker: Worker) -> None:
        self._worker = worker

    def on_checkpoint_begun(self, pending: PendingCheckpoint) -> None:
        """Run the worker until the checkpoint has its outcome, or its time is over."""
        self.table.is_refusing = self._refusals_left > 0
        self._refusals_left -= self.table.is_refusing
        # A refused checkpoint is not waited for: the lease would expire before the wait ends.
        timeout_s = 0.0 if self.table.is_refusing else pending.timeout_s
        self._drive_until(pending.outcome.done, self.clock.now_s + timeout_s)
        self.table.is_refusing = False
        pending.on_timeout()

    # --- driving ---

    @property
    def worker(self) -> Worker:
        """The worker, once the consumer was started."""
        assert self._worker is not None, "the consumer was not started"
        return self._worker

    def drive(self) -> None:
        """Run the worker to its end, on this thread."""
        while not self.worker.has_ended.is_set():
            if self.step():
                continue
            if self.recorder.running_calls:
                wait(tuple(self.recorder.running_calls), return_when=FIRST_COMPLETED)
            else:
                self._pass_time_or_stop()

    async def drive_on_loop(self) -> None:
        """Run the worker to its end; calls of user code run on the event loop."""
        while not self.worker.has_ended.is_set():
            if self.step():
                continue
            if self.recorder.running_calls:
                calls = [asyncio.wrap_future(call) for call in tuple(self.recorder.running_calls)]
                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            else:
                self._pass_time_or_stop()

    def drive_until_called(self) -> None:
        """Run the worker until user code has been called."""
        while not self.recorder.calls:
            if not self.step():
                self._pass_time_or_stop()

    def let_pass(self, duration_s: float) -> None:
        """Pass time without calls of user code."""
        self._drive_until(lambda: False, self.clock.now_s + duration_s)

    def step(self) -> bool:
        """Run everything that is due now; return whether anything was."""
        if self.recorder.interruption is not None:
            raise self.recorder.interruption
        if self._must_lose_lease:
            self._must_lose_lease = False
            self.lose_lease()
        if self._step_worker():
            return True
        if self._handlers.tasks:
            self._handlers.tasks.popleft()()
            return True
        if self.worker.leases.is_finished and not self.recorder.running_calls:
            self.worker.finish()
            return True
        return False

    def _step_worker(self) -> bool:
        """Run everything that is due except calls of user code; return whether anything was."""
        with self._lock:
            has_run = bool(self._calls.tasks)
            while self._calls.tasks:
                self._calls.tasks.popleft()()
            for loop in (self.worker.delivery, self.worker.leases):
                wake_s = loop.next_wake_s()
                is_due = wake_s is not None and wake_s <= self.clock.now_s
                if not loop.is_finished and (loop.has_events or is_due):
                    loop.run_once(self.clock.now_s)
                    has_run = True
            return has_run

    def _drive_until(self, is_true: Callable[[], bool], deadline_s: float) -> None:
        """Run everything but user code until a condition holds, or the time is over."""
        while not is_true():
            if not self._step_worker() and not self._pass_time(deadline_s):
                return

    def _pass_time(self, until_s: float) -> bool:
        """Move the clock to the next due moment, at most to `until_s`; return whether that moment is before `until_s`."""
        with self._lock:
            loops = (self.worker.delivery, self.worker.leases)
            wakes_s = [loop.next_wake_s() for loop in loops if not loop.is_finished]
            wake_s = min((wake_s for wake_s in wakes_s if wake_s is not None), default=until_s)
            self.clock.now_s = max(self.clock.now_s, min(wake_s, until_s))
            return wake_s < until_s

    def _pass_time_or_stop(self) -> None:
        """Stop when everything is done, or let time pass."""
        if self._is_at_rest():
            self.worker.request_stop()
        if not self._pass_time(_RUN_S_MAX):
            raise UsageError(
                f"the run has not ended within {_RUN_S_MAX / 86_400:.0f} days of virtual time and "
                f"{len(self.recorder.calls)} calls: does the handler fail for ever?"
            )

    def _is_at_rest(self) -> bool:
        """Return whether nothing more is due without an outside event."""
        runs = [run for run in self.worker.delivery.runs() if not run.is_reported]
        if self.failure is not None or (self.is_lease_lost and not runs):
            return True
        if self.table.lease is not None and self.table.lease.is_ended:
            return True
        # After the records of a closed shard only its end follows, as soon as everything is acknowledged.
        is_over = all(run.is_at_rest and not (self.stream.children and run.is_acknowledged) for run in runs)
        return self.stream.is_read and bool(runs) and is_over

    @property
    def failure(self) -> PenstockError | None:
        """Why the shard or the worker has stopped after a failure; None if it has not."""
        stopped = self.worker.delivery.stopped.failures.get(self.stream.shard_id)
        if stopped is not None:
            return stopped
        failure = self.worker.failure
        if failure is None or isinstance(failure, PenstockError):
            return failure
        raise failure

    # --- faults ---

    def check_faults(self) -> None:
        """Check that the handler was called often enough for each fault that names a call.

        Raises:
            UsageError: A call that a fault names was not made.
        """
        count = sum(call.kind == "records" for call in self.recorder.calls)
        for name in ("lease_lost_after", "lease_lost_during", "stop_during"):
            number = getattr(self._faults, name)
            if number is not None and number > count:
                raise UsageError(f"{name}={number}: the handler was called {count} times")

    def _before_call(self, number: int) -> None:
        if number == self._faults.lease_lost_during:
            self.lose_lease()
        if number == self._faults.stop_during:
            self.worker.request_stop()
            while self._step_worker():
                """Run until the stop has reached the shard."""

    def _after_call(self, number: int) -> None:
        if number == self._faults.lease_lost_after:
            self._must_lose_lease = True

    def lose_lease(self) -> None:
        """Take the lease as another worker, and run this worker until it has noticed."""
        self.is_lease_lost = True
        self.table.take_by_another(self.stream.shard_id)
        self._drive_until(lambda: all(run.is_lost for run in self.worker.delivery.runs()), _RUN_S_MAX)
