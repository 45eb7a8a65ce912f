"""When one worker looks at the whole lease table: whether the table is there, whether a scan is under way, when the next is due."""

from __future__ import annotations

import math
from enum import Enum

from penstock.core.backoff import Backoff
from penstock.core.leases.coordinator_events import EnsureTable, Level, Problem, ScanTable, Topic
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.turn import Turn


class TableState(Enum):
    """Whether the lease table can be used."""

    UNKNOWN = "to be made ready when its moment has come"
    ENSURING = "being made ready"
    READY = "usable"


class Certainty(Enum):
    """Whether this worker knows of every lease whether it is its own."""

    CERTAIN = "every doubt was followed by a whole scan"
    CHECKING = "the scan under way began after the last doubt"
    DOUBTFUL = "only a scan that begins later tells"


class TableScans:
    """The scans of one worker. Not thread-safe.

    Args:
        options: As for the coordinator.
        turn: Where effects go.
    """

    def __init__(self, options: CoordinatorOptions, turn: Turn) -> None:
        self.options = options
        self._turn = turn
        self._state = TableState.UNKNOWN
        self._state_due_s = -math.inf
        self._due_s = math.inf
        self._is_scanning = False
        self._is_requested = False
        self._failures = 0
        self._certainty = Certainty.CERTAIN

    @property
    def next_wake_s(self) -> float:
        """When there is something to begin; infinity while an answer is awaited."""
        if self._state is TableState.UNKNOWN:
            return self._state_due_s
        return self._due_s if self._state is TableState.READY and not self._is_scanning else math.inf

    @property
    def is_quiet(self) -> bool:
        """Whether no scan is under way or asked for, and none is needed to know which leases are this worker's."""
        return not self._is_scanning and not self._is_requested and self._certainty is Certainty.CERTAIN

    def advance(self, now_s: float) -> None:
        """Begin what is due."""
        if self._state is TableState.UNKNOWN and now_s >= self._state_due_s:
            self._state = TableState.ENSURING
            self._turn.emit(EnsureTable())
        if self._is_requested and not self._is_scanning:
            self._is_requested = False
            self._due_s = min(self._due_s, now_s)
        if self._state is TableState.READY and not self._is_scanning and now_s >= self._due_s:
            self._is_scanning = True
            if self._certainty is Certainty.DOUBTFUL:
                self._certainty = Certainty.CHECKING
            self._turn.emit(ScanTable())

    def request(self) -> None:
        """Ask for a scan that begins after this moment: the one under way may have begun too early."""
        self._is_requested = True

    def request_by(self, at_s: float) -> None:
        """Let the next scan begin at a moment at the latest."""
        self._due_s = min(self._due_s, at_s)

    def schedule(self, at_s: float) -> None:
        """Let the next scan begin at a moment."""
        self._due_s = at_s

    def note_doubt(self) -> None:
        """Observe that it became unknown whose a lease is: only a scan that begins later tells."""
        self._certainty = Certainty.DOUBTFUL

    def on_table_ready(self, now_s: float) -> None:
        """Observe that the table is there."""
        self._state = TableState.READY
        self._due_s = now_s

    def on_table_failed(self, detail: str, now_s: float) -> None:
        """Observe that the table could not be made ready."""
        self._state = TableState.UNKNOWN
        self._state_due_s = now_s + self.options.interval_s * (0.1 + 0.9 * self._turn.draw())
        message = f"the lease table cannot be made ready: {detail}"
        self._turn.report(Topic.CALL_FAILED, Level.ERROR, message)

    def on_table_missing(self) -> bool:
        """Observe that a call found no table; True when that is news."""
        if self._state is not TableState.READY:
            return False
        self._turn.report(
            Topic.TABLE_GONE,
            Level.ERROR,
            "the lease table has been deleted under a running application; it is created again",
        )
        self._state = TableState.UNKNOWN
        self._state_due_s = -math.inf
        return True

    def on_scan_done(self) -> None:
        """Observe that the whole table was read."""
        self._is_scanning = False
        self._failures = 0
        if self._certainty is Certainty.CHECKING:
            self._certainty = Certainty.CERTAIN

    def on_scan_failed(self, problem: Problem, detail: str, now_s: float) -> bool:
        """Observe that the table could not be read; True when it is news that it is not there."""
        self._is_scanning = False
        self._failures += 1
        if self._certainty is Certainty.CHECKING:
            self._certainty = Certainty.DOUBTFUL
        self._turn.report_failed_call("scanning the lease table", problem, detail)
        is_gone = problem is Problem.TABLE_MISSING and self.on_table_missing()
        interval_s = self.options.interval_s
        backoff = Backoff(min(1.0, interval_s), interval_s)
        self._due_s = now_s + 0.1 + backoff.delay_s(self._failures, self._turn.draw())
        return is_gone
