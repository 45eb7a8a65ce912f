"""Events of every simulated process: its lives, its calls, its reports and its log."""

from __future__ import annotations

from typing import ClassVar

from penstock_sim.events.base import Event, ProcessEvent


class ProcessStarted(ProcessEvent, frozen=True):
    story: ClassVar = "{who} starts"
    concerns_all: ClassVar = True


class ProcessExited(ProcessEvent, frozen=True):
    """A process has ended: "stopped", "crashed" or for another reason."""

    how: str
    story: ClassVar = "{who} ends: {how}"
    concerns_all: ClassVar = True

    def situation(self) -> str:
        return "fault: crashes_per_min" if self.how == "crashed" else ""


class ProcessStopping(ProcessEvent, frozen=True):
    story: ClassVar = "{who} is asked to stop"
    meets: ClassVar = "fault: stops_per_min"
    concerns_all: ClassVar = True


class ProcessPaused(ProcessEvent, frozen=True):
    story: ClassVar = "{who} is paused until {until_s:.2f} s"
    until_s: float
    concerns_all: ClassVar = True

    def situation(self) -> str:
        is_executor = self.who.startswith("executor")
        return f"fault: {'executor_pauses_per_min' if is_executor else 'pauses_per_min'}"


class SecondProcessStarted(Event, frozen=True):
    story: ClassVar = "a second process of {worker} is about to start"
    worker: str


class CallMade(ProcessEvent, frozen=True):
    """A process calls a service."""

    call: str
    key: str


class CallRetried(ProcessEvent, frozen=True):
    """A process repeats a call that has failed."""

    call: str
    key: str


class CoordinatorReported(ProcessEvent, frozen=True):
    story: ClassVar = "{who} reports {topic} {reason} {key}"
    topic: str
    reason: str
    key: str | None


class MessageLogged(ProcessEvent, frozen=True):
    story: ClassVar = "{who} logs ({level}): {text}"
    level: str
    text: str
    error: str


class WallClockJumped(Event, frozen=True):
    story: ClassVar = "the wall clocks are {offset_s:.0f} s off from now on"
    offset_ms: int

    @property
    def offset_s(self) -> float:
        return self.offset_ms / 1000


class FaultsEnded(Event, frozen=True):
    story: ClassVar = "the faults end"
    concerns_all: ClassVar = True


class TimeStoodStill(Event, frozen=True):
    """More events were due within one second than a loop that waits can cause."""

    count: int
