"""The state of one worker's scans: whether the table exists, whether a scan is in flight, and when the next one is due."""

from __future__ import annotations

import math
from enum import Enum

from penstock.core.backoff import Backoff
from penstock.core.leases.coordinator_effects import EnsureTable, Level, ScanTable, Topic
from penstock.core.leases.coordinator_events import Problem
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.table_part import WHOLE_TABLE, TablePart
from penstock.core.leases.turn import Turn


class TableState(Enum):
    """Whether the lease table can be used."""

    UNKNOWN = "to be created or found at the next due moment"
    ENSURING = "being created or found"
    READY = "usable"


class TableScans:
    """The scans of one worker. Not thread-safe.

    Args:
        options: As for the coordinator.
        turn: Where effects go.
    """

    def __init__(self, options: CoordinatorOptions, turn: Turn) -> None:
        self.options = options
        self._turn = turn
        self.part: TablePart | None = None
        """The part that regular scans read; None for the whole table."""
        self._state = TableState.UNKNOWN
        self._state_due_s = -math.inf
        self._due_s = math.inf
        self._whole_due_s = math.inf  # of the whole table, if regular scans read a part
        self._wanted_s = math.inf  # of the whole table: it was requested by then
        self._retry_s = -math.inf  # the earliest next scan after one that failed
        self._is_scanning = False
        self._is_at_whole = False  # the scan in flight
        self._is_requested = False
        self._failures = 0
        self._unsure: set[str] = set()
        self._checked: set[str] = set()  # unsure leases that the scan in flight of the whole table resolves

    @property
    def next_wake_s(self) -> float:
        """When `advance` must be called next; infinity while an answer is pending."""
        if self._state is TableState.UNKNOWN:
            return self._state_due_s
        is_waiting = self._state is not TableState.READY or self._is_scanning
        return math.inf if is_waiting else max(self._retry_s, min(self._due_s, self._whole_s))

    @property
    def _whole_s(self) -> float:
        return min(self._whole_due_s, self._wanted_s)

    @property
    def is_quiet(self) -> bool:
        """Whether no scan is in flight or requested, and none is needed to find out which leases this worker owns."""
        return not self._is_scanning and not self._is_requested and not self._unsure

    @property
    def is_whole_scheduled(self) -> bool:
        """Whether a scan of the whole table is in flight or scheduled."""
        return self._whole_s < math.inf or (self._is_scanning and self._is_at_whole)

    @property
    def unsure(self) -> frozenset[str]:
        """Leases whose owner is unknown."""
        return frozenset(self._unsure)

    def advance(self, now_s: float) -> None:
        """Create the table, or begin a scan, if it is due."""
        if self._state is TableState.UNKNOWN and now_s >= self._state_due_s:
            self._state = TableState.ENSURING
            self._turn.emit(EnsureTable())
        if self._is_requested and not self._is_scanning:
            self._is_requested = False
            self._wanted_s = min(self._wanted_s, now_s)
        if now_s >= self.next_wake_s and self._state is TableState.READY:
            self._begin(is_whole=self.part is None or now_s >= self._whole_s)

    def _begin(self, *, is_whole: bool) -> None:
        self._is_scanning = True
        self._is_at_whole = is_whole
        if is_whole:
            self._checked = set(self._unsure)
            self._wanted_s = self._whole_due_s = math.inf
        part = WHOLE_TABLE if is_whole and self.part is not None else self.part
        self._turn.emit(ScanTable(part))

    def request(self) -> None:
        """Request a scan of the whole table that begins after this moment: one in flight may have begun too early."""
        self._is_requested = True

    def request_by(self, at_s: float) -> None:
        """Request a scan of the whole table that begins by a moment; one in flight does not count."""
        self._wanted_s = min(self._wanted_s, at_s)

    def schedule(self, at_s: float) -> None:
        """Schedule the next regular scan; requested scans stay."""
        self._due_s = at_s

    def schedule_whole(self, at_s: float) -> None:
        """Schedule the next regular scan of the whole table, if regular scans read a part."""
        self._whole_due_s = at_s

    def on_owner_unknown(self, key: str, now_s: float) -> None:
        """Handle that a lease's owner became unknown: only a read that begins later resolves it."""
        self._unsure.add(key)
        self._checked.discard(key)
        if self.part is None:
            self.request_by(now_s + self.options.interval_s)

    def on_owner_known(self, key: str) -> None:
        """Handle that the row was read by its key."""
        self._unsure.discard(key)

    def on_table_ready(self, now_s: float) -> None:
        """Handle that the table exists."""
        self._state = TableState.READY
        self._due_s = now_s

    def on_table_failed(self, now_s: float) -> None:
        """Handle that the table could not be created or found."""
        self._state = TableState.UNKNOWN
        self._state_due_s = now_s + self.options.interval_s * (0.1 + 0.9 * self._turn.draw())

    def on_table_missing(self) -> bool:
        """Handle that a call found no table; True the first time."""
        if self._state is not TableState.READY:
            return False
        self._turn.report(
            Topic.TABLE_GONE,
            Level.ERROR,
            "the lease table was deleted while the application runs; it is created again",
        )
        self._state = TableState.UNKNOWN
        self._state_due_s = -math.inf
        return True

    def on_scan_done(self) -> None:
        """Handle that a scan is complete."""
        self._is_scanning = False
        self._failures = 0
        self._retry_s = -math.inf
        self._unsure -= self._checked
        self._checked.clear()

    def on_scan_failed(self, problem: Problem, now_s: float) -> bool:
        """Handle that a scan failed; True if it is the first call to find no table."""
        self._is_scanning = False
        self._failures += 1
        self._checked.clear()
        is_gone = problem is Problem.TABLE_MISSING and self.on_table_missing()
        interval_s = self.options.interval_s
        backoff = Backoff(min(1.0, interval_s), interval_s)
        self._retry_s = now_s + 0.1 + backoff.delay_s(self._failures, self._turn.draw())
        if self._is_at_whole:
            self.request_by(self._retry_s)
        else:
            self._due_s = self._retry_s
        return is_gone
