"""A Spark job in virtual time: tasks that are tried up to four times, and now and then by two attempts at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

from msgspec import Struct

from penstock_sim.process import SimProcess
from penstock_sim.virtual_threads import VirtualThreads

TASK_FAILURES_MAX: Final = 4  # spark.task.maxFailures
_Result = TypeVar("_Result")


class JobFailed(Exception):  # noqa: N818 - as Spark says it
    """A task failed too often."""


class TaskFailed(Struct, frozen=True):
    """An attempt failed, or its executor ended."""

    error: Exception | None


OnEnd: TypeAlias = Callable[[_Result | TaskFailed], None]
"""Called in the driver's process with the outcome of an attempt."""
Start: TypeAlias = Callable[[int, OnEnd[_Result]], None]
"""Begins an attempt of a task by its number."""


class _Task(Struct, Generic[_Result]):
    number: int
    failure_count: int = 0
    result: _Result | None = None
    error: Exception | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it failed too often. Once an attempt has succeeded, failures of others do not count."""
        return self.result is None and self.failure_count >= TASK_FAILURES_MAX


class SparkJob(Generic[_Result]):
    """One job of a driver.

    Args:
        runs_twice: Draws whether a task gets a second attempt while the first one runs.
    """

    def __init__(
        self, driver: SimProcess, task_count: int, start: Start[_Result], runs_twice: Callable[[], bool]
    ) -> None:
        self._driver = driver
        self._start = start
        self._runs_twice = runs_twice
        self._tasks = [_Task[_Result](number) for number in range(task_count)]
        self._changed = VirtualThreads(driver).condition()

    def run(self) -> list[_Result]:
        """Run every task; return their results in order.

        Raises:
            JobFailed: A task failed too often; names the last error of the one that did.
        """
        for task in self._tasks:
            self._attempt(task)
            if self._runs_twice():
                self._driver.later(self._driver.world.chance.uniform(0.0, 5.0), self._speculate, task)
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    all(task.result is not None for task in self._tasks)
                    or any(task.has_failed for task in self._tasks)
                )
            )
        failed = next((task for task in self._tasks if task.has_failed), None)
        if failed is not None:
            raise JobFailed(f"a task failed {failed.failure_count} times, last: {failed.error!r}")
        return self.finished()

    def finished(self) -> list[_Result]:
        return [task.result for task in self._tasks if task.result is not None]

    def _speculate(self, task: _Task[_Result]) -> None:
        if task.result is None:
            self._attempt(task)

    def _attempt(self, task: _Task[_Result]) -> None:
        def on_end(result: _Result | TaskFailed) -> None:
            if isinstance(result, TaskFailed):
                task.failure_count += 1
                task.error = result.error
                if task.result is None and task.failure_count < TASK_FAILURES_MAX:
                    self._driver.later(self._driver.world.chance.uniform(0.01, 0.5), self._attempt, task)
            elif task.result is None:
                task.result = result
            self._changed.notify_all()

        self._start(task.number, on_end)
