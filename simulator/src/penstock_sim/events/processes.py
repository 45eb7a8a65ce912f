"""Events of every simulated process: its lives, its calls, its reports and its log."""

from __future__ import annotations

from typing import ClassVar

from penstock_sim.events.base import Event, ProcessEvent


class ProcessStarted(ProcessEvent, frozen=True):
    """A process starts."""


class ProcessExited(ProcessEvent, frozen=True):
    """A process has ended: "stopped", "crashed" or for another reason."""

    how: str

    def situation(self) -> str:
        return "fault: crashes_per_min" if self.how == "crashed" else ""


class ProcessStopping(ProcessEvent, frozen=True):
    meets: ClassVar = "fault: stops_per_min"


class ProcessPaused(ProcessEvent, frozen=True):
    until_s: float

    def situation(self) -> str:
        is_executor = self.who.startswith("executor")
        return f"fault: {'executor_pauses_per_min' if is_executor else 'pauses_per_min'}"


class SecondProcessStarted(Event, frozen=True):
    worker: str  # its name is about to get a second process


class CallMade(ProcessEvent, frozen=True):
    call: str
    key: str


class CallRetried(ProcessEvent, frozen=True):
    call: str
    key: str


class CoordinatorReported(ProcessEvent, frozen=True):
    topic: str
    reason: str
    key: str | None


class MessageLogged(ProcessEvent, frozen=True):
    level: str
    text: str
    error: str


class WallClockJumped(Event, frozen=True):
    offset_ms: int


class FaultsEnded(Event, frozen=True):
    """The liveness phase begins."""


class TimeStoodStill(Event, frozen=True):
    """More events were due within one second than a loop that waits can cause."""

    count: int
