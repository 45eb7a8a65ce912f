"""The processes of Spark queries, for those that read and those that write: drivers, executors, and their faults.

A driver's checkpoint location survives it, and executors do not end with drivers. Everything else dies with its process, at
any moment, also in the middle of a call.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from penstock.errors import PenstockError
from penstock_sim.actors import Actors
from penstock_sim.environment import Environment
from penstock_sim.events import processes, queries
from penstock_sim.fibers import Fiber
from penstock_sim.process import SimProcess
from penstock_sim.spark_job import JobFailed, OnEnd, SparkJob, TaskFailed
from penstock_sim.world import World


class LogConflict(Exception):  # noqa: N818 - Spark's CONCURRENT_STREAM_LOG_UPDATE
    """Another driver has written this entry of the checkpoint location's log."""


class SparkLog(Struct):
    """The logs in a query's checkpoint location, which survive the driver: batches, and how many of them are done."""

    offsets: list[Any] = field(default_factory=list)  # an entry of each batch
    committed_count: int = 0

    def check_next(self, index: int) -> None:
        if index != len(self.offsets):
            raise LogConflict(f"offsets/{index} is there already")

    def commit(self, index: int) -> None:
        if index != self.committed_count:
            raise LogConflict(f"commits/{index} is there already")
        self.committed_count += 1


class TaskAttempt(Struct, eq=False, kw_only=True):
    """One attempt of one task of a batch."""

    driver: SimProcess  # gets the outcome
    on_end: OnEnd[Any]  # called in the driver's process with the outcome


_Attempt = TypeVar("_Attempt", bound=TaskAttempt)


class SparkExecutor(SimProcess, Generic[_Attempt]):
    """One process that runs tasks."""

    def __init__(self, world: Environment, name: str) -> None:
        super().__init__(world, name)
        self.attempts: dict[_Attempt, None] = {}

    def run(self, attempt: _Attempt) -> None:
        self.attempts[attempt] = None
        self.spawn(lambda: self._run(attempt))

    def _run(self, attempt: _Attempt) -> None:
        result: Any
        try:
            result = self.execute(attempt)
        except PenstockError as error:
            self.record_failed(attempt, error)
            result = TaskFailed(error)
        except Exception as error:  # noqa: BLE001 - a defect, which the checkers report
            self.world.record(processes.MessageLogged(self.who, "CRITICAL", "a task crashed", repr(error)))
            result = TaskFailed(error)
        self.attempts.pop(attempt, None)
        self.record_ended(attempt)
        attempt.driver.later(self.world.latency_s(), attempt.on_end, result)

    @abstractmethod
    def execute(self, attempt: _Attempt) -> Any:
        """Run an attempt to its end; return its result."""

    @abstractmethod
    def record_failed(self, attempt: _Attempt, error: PenstockError) -> None:
        """Record the error that ended an attempt."""

    def record_ended(self, attempt: _Attempt) -> None:
        """Record that an attempt has ended, with or without an error."""


class SparkDriver(SimProcess):
    """One life of a query's driver."""

    def __init__(self, world: Environment, name: str, executors: Callable[[], list[Any]]) -> None:
        super().__init__(world, name)
        self._executors = executors
        self.main: Fiber | None = None
        self._is_stopping = False

    def start(self) -> None:
        self.main = self.spawn(self.live)

    def live(self) -> None:
        """Run in the driver's main thread, to its end."""
        how = "done"
        try:
            self.run_query()
        except SystemExit:
            how = "stopped"
        except (PenstockError, LogConflict, JobFailed) as error:
            how = f"failed: {type(error).__name__}"
            self.world.record(queries.QueryFailed(self.who, type(error).__name__, str(error)))
            self.on_failed(error)
        except Exception as error:  # noqa: BLE001 - a defect, which the checkers report
            how = "crashed"
            self.world.record(
                processes.MessageLogged(self.who, "CRITICAL", "the driver crashed", repr(error))
            )
        try:
            self.close()
        except SystemExit:
            how = "stopped"
        self.on_gone(self, how)

    @abstractmethod
    def run_query(self) -> None:
        """Run batch after batch, as Spark does."""

    @abstractmethod
    def on_failed(self, error: Exception) -> None:
        """Do as its user does when an error has ended the query."""

    def close(self) -> None:
        """Stop the production code in this process."""

    def job(self, task_count: int, attempt_of: Callable[[int, OnEnd[Any]], TaskAttempt]) -> SparkJob[Any]:
        """Return a job whose attempts run in executors drawn by chance; some tasks get a second attempt."""
        chance = self.world.chance

        def start(number: int, on_end: OnEnd[Any]) -> None:
            attempt = attempt_of(number, on_end)
            chance.choice(self._executors()).run(attempt)

        return SparkJob(self, task_count, start, lambda: self.world.has_fault("second_attempt"))

    def request_stop(self) -> None:
        """Stop as `query.stop()` does, or SIGTERM: wherever it is."""
        if self.main is not None and not self._is_stopping:
            self._is_stopping = True
            self.main.interrupt(SystemExit(0))


_Driver = TypeVar("_Driver", bound=SparkDriver)
_Executor = TypeVar("_Executor", bound=SparkExecutor[Any])


class SparkActors(Actors, Generic[_Driver, _Executor]):
    """Queries of one kind, their executors, and the faults of both."""

    def __init__(
        self, world: World, names: frozenset[str], executor_count: int, driver_type: type[_Driver]
    ) -> None:
        super().__init__(world)
        self.names = names
        self._driver_type = driver_type
        self.extra: list[_Driver] = []
        """Drivers beside those that the world starts again."""
        self.executors: dict[str, _Executor] = {}
        for place in range(executor_count):
            name = f"executor{place}"
            self.executors[name] = self.make_executor(name)

    def make(self, name: str) -> _Driver | None:
        return self.make_driver(name) if name in self.names else None

    @abstractmethod
    def make_executor(self, name: str) -> _Executor:
        """Return a new executor."""

    @abstractmethod
    def make_driver(self, name: str) -> _Driver:
        """Return a new driver of a query, from its checkpoint location."""

    def recurring(self) -> list[tuple[float, Callable[[], None]]]:
        plan = self.world.faults
        return [
            (plan.executor_kills_per_min, self._kill_executor),
            (plan.executor_pauses_per_min, self._pause_executor),
            (plan.second_drivers_per_min, self._start_second_driver),
        ]

    def heal(self) -> None:
        """End all pauses of executors, and every driver but one of each query."""
        for extra in list(self.extra):
            self.on_extra_gone(extra, "ended")
        for executor in self.executors.values():
            executor.end_pause()

    # --- executors ----------------------------------------------------------------------------------------

    def executors_now(self) -> list[_Executor]:
        return list(self.executors.values())

    def _kill_executor(self) -> None:
        self.end_executor(self.world.chance.choice(self.executors_now()))

    def end_executor(self, executor: _Executor) -> None:
        """Kill an executor, and start another one in its place."""
        world = self.world
        executor.end()
        left = [attempt for attempt in executor.attempts if attempt.driver.is_alive]
        world.record(queries.ExecutorKilled(executor.who))
        self.record_killed(executor)
        for attempt in left:
            attempt.driver.later(world.chance.uniform(0.5, 10.0), attempt.on_end, TaskFailed(None))
        self.executors[executor.name] = self.make_executor(executor.name)

    def record_killed(self, executor: _Executor) -> None:
        """Record the attempts that have ended with their executor."""

    def _pause_executor(self) -> None:
        executor = self.world.chance.choice(self.executors_now())
        executor.pause(self.world.chance.uniform(0.5, self.world.faults.executor_pause_max_s))

    # --- drivers ------------------------------------------------------------------------------------------

    def drivers(self) -> list[_Driver]:
        """Return the drivers that the world starts again."""
        return [worker for worker in self.world.workers.values() if isinstance(worker, self._driver_type)]

    def some_driver(self) -> _Driver | None:
        found = self.drivers()
        return self.world.chance.choice(found) if found else None

    def _start_second_driver(self) -> None:
        query = self.some_driver()
        if query is not None:
            self.world.met["fault: second_drivers_per_min"] += 1
            self.world.record(queries.SecondDriverStarted(query.name))
            self.start_extra(self.make_driver(query.name))

    def start_extra(self, driver: _Driver, on_gone: Callable[[SimProcess, str], None] | None = None) -> None:
        """Start a driver that is not started again."""
        driver.on_gone = on_gone or self.on_extra_gone
        self.extra.append(driver)
        self.world.record(processes.ProcessStarted(driver.who))
        driver.start()

    def on_extra_gone(self, driver: SimProcess, how: str) -> None:
        driver.end()
        self.extra = [each for each in self.extra if each is not driver]
        self.world.record(processes.ProcessExited(driver.who, how))
