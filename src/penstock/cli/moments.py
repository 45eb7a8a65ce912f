"""Moments on the command line: read in the time zone of this machine, and shown as parsed."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Final

from penstock.cli.terminal import warn
from penstock.errors import OptionError, PositionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.core.reading.service_clock import ServiceClock
    from penstock.core.starting import StartingPosition
    from penstock.ports.kinesis import Kinesis

_AGE: Final = re.compile(r"(\d{1,18})\s*([smhd])", re.ASCII)
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MOMENT_FORMS: Final = "ISO 8601, in the time zone of this machine if it names none"


class MachineZone(tzinfo):
    """The time zone of this machine, for parsing local times."""

    def utcoffset(self, local: datetime | None) -> timedelta | None:
        """Return the offset that this machine's clock has at a local time."""
        return None if local is None else local.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, _local: datetime | None) -> timedelta | None:
        """Return None: daylight saving is a part of `utcoffset`."""
        return None

    def tzname(self, _local: datetime | None) -> str:
        """Return a name for messages."""
        return f"of this machine ({os.environ.get('TZ') or '/'.join(time.tzname)})"

    def __str__(self) -> str:
        return self.tzname(None)


class ServiceTime:
    """Returns the current time by the service's clock, which also dates the records. The first call asks the service.

    Args:
        stream: A stream of the service, for the call.
    """

    def __init__(self, kinesis: Kinesis, stream: str) -> None:
        self._kinesis, self._stream = kinesis, stream
        self._clock: ServiceClock | None = None

    def __call__(self) -> int:
        """Return the service's time in milliseconds since the epoch."""
        from penstock.core.reading.service_clock import ServiceClock

        if self._clock is None:
            answered_ms = self._kinesis.fetch_shards(self._stream).server_ms
            self._clock = ServiceClock()
            self._clock.on_answer(_wall_ms(), answered_ms)
        return self._clock.now_ms(_wall_ms())


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def parse_position(text: str, option: str) -> StartingPosition:
    """Parse a starting position that the user typed.

    Raises:
        PositionError: The text cannot be parsed.
    """
    from penstock.core.starting import parse_starting

    return parse_starting(text, option, MachineZone())


def parse_age_or_moment(text: str, option: str, now_ms: Callable[[], int]) -> int:
    """Return the typed moment, or the moment that is the typed age before `now_ms()`, in milliseconds since the epoch.

    Args:
        text: `30s`, `10m`, `2h`, `1d` or a moment.
        now_ms: Returns the moment from which an age counts.

    Raises:
        OptionError: The text is neither an age nor a moment.
    """
    from penstock.core.moments import SERVICE_BEGAN_MS, parse_moment

    age = _AGE.fullmatch(text.strip())
    if age is not None:
        return max(SERVICE_BEGAN_MS, now_ms() - int(age[1]) * _UNITS_S[age[2]] * 1000)
    try:
        return parse_moment(text, option, MachineZone())
    except PositionError as error:
        raise OptionError(f"{error}; or an age (30s, 10m, 2h, 1d)") from error


def moments_of(start: StartingPosition) -> dict[str, int]:
    """Return the moments of a starting position, in milliseconds, by shard id; an empty id stands for all other shards."""
    positions = {"": start.default, **start.by_shard}
    return {name: at.timestamp_ms for name, at in positions.items() if at.timestamp_ms is not None}


def print_moments(command: str, word: str, moments: Mapping[str, int]) -> None:
    """Print parsed moments to stderr, so that a user sees how they were understood.

    Args:
        command: Name of the command.
        word: Precedes each moment, for instance `from` or `until`.
        moments: As `moments_of` returns them.
    """
    from penstock.core.moments import describe_moment

    for name, moment_ms in moments.items():
        warn(f"penstock {command}: {f'{name} ' if name else ''}{word} {describe_moment(moment_ms, None)}")
