"""Time zones by the names that Spark has for them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final

from penstock.core.option_table import Kind

_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?([0-5]\d))?", re.ASCII)
_HOURS_MAX: Final = 18  # Java's limit
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS: Final = range(0, 68 * 365, 10)


def read_time_zone(text: str) -> tzinfo:
    """Return the time zone that a text names: a region, an offset or UTC.

    Raises:
        ValueError: This machine has no time zone of this name.
    """
    from zoneinfo import ZoneInfo

    name = text.strip()
    if name.upper() in ("Z", "UTC", "GMT", "UT"):
        return UTC
    match = _OFFSET.fullmatch(name)
    if match is not None and int(match[2]) <= _HOURS_MAX:
        offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
        return timezone(-offset if match[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            "expected a time zone, for instance America/New_York, +01:00 or UTC (regions need the package tzdata if the "
            "machine has none)"
        ) from None


def is_same_time_zone(first: str, second: str) -> bool:
    """Return whether two names are of one time zone, such as UTC and Etc/UTC: every ten days since 1970 their offsets are the same."""
    if first == second:
        return True
    try:
        zones = read_time_zone(first), read_time_zone(second)
    except ValueError:
        return False
    one, other = (
        [(_FIRST + timedelta(each)).astimezone(zone).utcoffset() for each in _DAYS] for zone in zones
    )
    return one == other


def session_time_zone(name: str) -> tzinfo | None:
    """Return a session's time zone; None for a name that only Java has, since few queries need it."""
    try:
        return read_time_zone(name)
    except ValueError:
        return None


TIME_ZONE: Final = Kind("time zone", read_time_zone)
