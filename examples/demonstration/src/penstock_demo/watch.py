"""Runs the query through kills and restarts: its status lines, its next kill, its next start."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.errors import PenstockError
from penstock_demo.checkpoints import running_batch
from penstock_demo.display import Display
from penstock_demo.kills import Kill
from penstock_demo.processes import ProcessKind, kill_process
from penstock_demo.query import AVERAGES, EVENTS, QuerySettings
from penstock_demo.supervisor import QueryProcess

_START_DEADLINE_S: Final = 120.0
_END_DEADLINE_S: Final = 60.0


class Statuses:
    """The program's status lines over all its lives. Written by one thread, read by another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: dict[str, set[int]] = {EVENTS: set(), AVERAGES: set()}
        self._finished_in_life = 0
        self._lag_ms: dict[str, int] = {}
        self.lag_ms_max = 0

    def take(self, status: dict[str, Any]) -> None:
        """Note the line of a finished batch."""
        with self._lock:
            if "ended" in status:
                self._lag_ms = {"": status["ended"]}
                return
            self._batches[status["query"]].add(status["batch"])
            self._finished_in_life += 1
            self._lag_ms[status["query"]] = status["lag_ms"]
            self.lag_ms_max = max(self.lag_ms_max, status["lag_ms"])

    def begin_life(self) -> None:
        """Count the batches of a life from 0."""
        with self._lock:
            self._finished_in_life = 0

    @property
    def finished_in_life(self) -> int:
        """Batches that finished since the program was last started."""
        with self._lock:
            return self._finished_in_life

    @property
    def lag_ms(self) -> int:
        """How far the slower query is behind, as last reported."""
        with self._lock:
            return max(self._lag_ms.values(), default=0)

    def batch_count(self, query: str) -> int:
        """How many batches of a query were reported as finished."""
        with self._lock:
            return len(self._batches[query])


class QueryWatch:
    """Keeps the program running and kills it by plan. All methods are called by one thread.

    Args:
        process: The program.
        settings: Of the program.
        statuses: Its status lines.
        kills: In order.
        display: Where kills and restarts are shown.
        seed: Picks one of several processes of a kind.
    """

    def __init__(  # noqa: PLR0917 - what `Demo` has, handed over once
        self,
        process: QueryProcess,
        settings: QuerySettings,
        statuses: Statuses,
        kills: Sequence[Kill],
        display: Display,
        seed: int,
    ) -> None:
        self._process = process
        self._settings = settings
        self._statuses = statuses
        self._kills = list(kills)
        self._planned_count = len(self._kills)
        self._display = display
        self._chance = random.Random(seed)
        self._due_s: float | None = None
        self._born_s = 0.0
        self._dies_until_s: float | None = None
        self.kill_count = 0

    @property
    def restart_count(self) -> int:
        """How often the program was started again."""
        return self._process.start_count - 1

    @property
    def has_kills_left(self) -> bool:
        """Whether the plan is not done."""
        return bool(self._kills) or self._dies_until_s is not None

    def start(self) -> None:
        """Start the program; returns at once."""
        self._statuses.begin_life()
        self._process.start()
        self._born_s = time.monotonic()
        self._due_s = None
        self._dies_until_s = None

    def step(self, *, may_kill: bool, is_all_read: Callable[[], bool]) -> None:
        """Start the program again after a kill, or kill it when it is due.

        Args:
            may_kill: Whether the run is far enough for the next kill.
            is_all_read: Whether nothing more is to be read for the time being, so that no batch will finish.

        Raises:
            PenstockError: It ended without having been killed, or does not start.
        """
        now_s = time.monotonic()
        if self._process.status is not None:
            self._start_again()
        elif self._dies_until_s is not None:
            # A process was killed that the program cannot run without: it gets a while to notice.
            if now_s > self._dies_until_s:
                self._start_again()
        elif not self._process.has_started.is_set():
            if now_s - self._born_s > _START_DEADLINE_S:
                raise PenstockError(
                    f"waited {_START_DEADLINE_S:g} s for Spark to start{self._process.log_tail()}"
                )
        elif self._kills and may_kill:
            self._kill_if_due(self._kills[0], now_s, is_all_read)

    def _start_again(self) -> None:
        status = self._process.status
        if self._dies_until_s is None:
            raise PenstockError(f"the query ended with status {status}{self._process.log_tail()}")
        # Whatever is left of the old life must not write beside the new one.
        self._process.kill()
        self.start()

    def _kill_if_due(self, kill: Kill, now_s: float, is_all_read: Callable[[], bool]) -> None:
        if self._due_s is None:
            if self._statuses.finished_in_life >= kill.after_batches or is_all_read():
                self._due_s = now_s + kill.delay_s
            return
        if now_s < self._due_s:
            return
        batch = running_batch(self._settings.checkpoint_dir(EVENTS))
        if kill.in_batch and batch is None:
            return
        del self._kills[0]
        self._due_s = None
        self.kill_count += 1
        victim = self._kill(kill)
        where = "" if batch is None else f" in the middle of batch {batch}"
        which = "" if self._planned_count == 1 else f"kill {self.kill_count} of {self._planned_count}: "
        self._display.note(f"{which}SIGKILL to {victim}{where}")

    def _kill(self, kill: Kill) -> str:
        found = [] if kill.kind is None else self._process.processes(kill.kind)
        chosen = self._chance.choice(sorted(found, key=lambda each: each.pid)) if found else None
        if chosen is None or kill.kind is None:
            # No worker is alive before the first batch: then all of it is killed.
            self._dies_until_s = time.monotonic()
            self._process.kill()
            return "the whole query"
        kill_process(chosen.pid)
        if kill.kind is not ProcessKind.WORKER:  # Spark replaces a worker by itself
            self._dies_until_s = time.monotonic() + _END_DEADLINE_S
        return str(kill)
