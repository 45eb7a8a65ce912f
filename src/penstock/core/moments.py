"""Moments as users write them: the one parser behind every option, argument and JSON field that takes one. Pure."""

from __future__ import annotations

import math
import re
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta, tzinfo
from typing import Any, Final

from penstock.core.safe_text import text_of
from penstock.errors import PositionError

SERVICE_BEGAN_MS: Final = 1_383_264_000_000
"""2013-11-01, the month in which the service was announced: no record is older."""
_MOMENT_MAX_MS: Final = 253_370_764_799_999  # the end of the year 9998: in every time zone a datetime
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_ISO: Final = re.compile(
    r"(?P<date>\d{4}(?:-?W\d\d(?:-?\d)?|-\d\d-\d\d|\d{4}))"
    r"(?:[Tt ]\s*(?P<time>\d\d(?::?\d\d(?::?\d\d(?:[.,]\d+)?)?)?)\s*(?P<offset>[Zz]|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
_NUMBER: Final = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?", re.ASCII)
_EXPECTED: Final = "expected ISO 8601, for instance 2026-01-31T12:00:00Z, or milliseconds since the epoch"


class NoTimeZoneError(PositionError):
    """A moment is written without a time zone, and nothing else gives one."""


def parse_moment(value: Any, option: str, zone: tzinfo | None = None) -> int:
    """Return a moment in milliseconds since the epoch, rounded down.

    Args:
        value: ISO 8601 (`2026-01-31T12:00:00Z`, with an offset, a space or a date alone), milliseconds since the epoch as a
            number or as digits, or a `datetime`.
        option: The option of the moment, for messages.
        zone: The time zone of a moment without one; None refuses it.

    Raises:
        NoTimeZoneError: The moment has no time zone, and `zone` is None.
        PositionError: It is not a moment, it is before the service began, or its local time exists twice or not at all.
    """
    shown = f"{option}: {text_of(value, 60)!r}"
    try:
        read = _read(value)
        is_local = isinstance(read, datetime) and read.utcoffset() is None
    except (ValueError, OverflowError):
        raise PositionError(f"{shown} is not a moment; {_EXPECTED}") from None
    if isinstance(read, int):
        return _checked_number(read, shown)
    if is_local and zone is None:
        raise NoTimeZoneError(
            f"{shown} has no time zone: add Z or an offset, for instance -05:00 (a datetime: its tzinfo)"
        )
    if is_local:
        # In the first and the last year, a time zone's offset can lead out of a datetime's range.
        read = read.replace(tzinfo=zone if MINYEAR < read.year < MAXYEAR else UTC)
    _check_existence(read, shown, refuses_repeated=is_local)
    moment_ms = (read - _EPOCH) // _MS
    if moment_ms < SERVICE_BEGAN_MS:
        raise PositionError(
            f"{shown} is before Kinesis began (November 2013); for all that the stream holds use TRIM_HORIZON"
        )
    if moment_ms > _MOMENT_MAX_MS:
        raise PositionError(f"{shown} is after the year 9998")
    return moment_ms


def _read(value: Any) -> int | datetime:
    """Return the milliseconds of a number, or the date and time of a text, with or without a time zone."""
    if isinstance(value, datetime):
        return value
    raw = str(value).strip().strip("\"'")
    if _NUMBER.fullmatch(raw):
        return math.floor(float(raw)) if set(raw) & set(".eE") else int(raw)
    match = _ISO.fullmatch(raw)
    if match is None:
        raise ValueError
    time = "" if match["time"] is None else f"T{match['time']}{(match['offset'] or '').upper()}"
    return datetime.fromisoformat(match["date"] + time)


def describe_moment(moment_ms: int, zone: tzinfo | None = UTC) -> str:
    """Return a moment as clocks in a time zone (None: this machine's) show it, then as UTC clocks do if that differs."""
    there = _iso_text(moment_ms, zone)
    in_utc = _iso_text(moment_ms)
    return in_utc if there == in_utc else f"{there} ({in_utc})"


def _iso_text(moment_ms: int, zone: tzinfo | None = UTC) -> str:
    moment = (_EPOCH + moment_ms * _MS).astimezone(zone)
    text = moment.isoformat(timespec="milliseconds" if moment_ms % 1000 else "seconds")
    return text.replace("+00:00", "Z")


def _check_existence(moment: datetime, shown: str, *, refuses_repeated: bool) -> None:
    """Refuse a local time that a change of the clocks skips.

    Args:
        refuses_repeated: Refuse also one that exists twice; else its `fold` selects one of the two.
    """
    before, after = (moment.replace(fold=fold) for fold in (0, 1))
    step = (after.utcoffset() or timedelta()) - (before.utcoffset() or timedelta())
    if step > timedelta() or (step and refuses_repeated):
        problem = "does not exist" if step > timedelta() else "exists twice"
        raise PositionError(
            f"{shown} {problem} in the time zone {moment.tzinfo}, where the clocks change: write it with its offset, "
            f"{before.isoformat()} or {after.isoformat()}"
        )


def _checked_number(moment_ms: int, shown: str) -> int:
    """Return a number of milliseconds if a record can have this moment.

    Raises:
        PositionError: It is too small (perhaps seconds) or too large (perhaps microseconds or nanoseconds).
    """
    if SERVICE_BEGAN_MS <= moment_ms <= _MOMENT_MAX_MS:
        return moment_ms
    problem, unit, meant_ms = "is after the year 9998", "nanoseconds", moment_ms // 1_000_000
    if moment_ms < SERVICE_BEGAN_MS:
        shown_ms = f"{_iso_text(moment_ms)}, " if moment_ms >= 0 else ""
        problem, unit, meant_ms = f"is {shown_ms}before Kinesis began", "seconds", moment_ms * 1000
    elif moment_ms // 1000 <= _MOMENT_MAX_MS:
        unit, meant_ms = "microseconds", moment_ms // 1000
    remedy = ""
    if 0 <= meant_ms <= _MOMENT_MAX_MS:
        remedy = f"; in {unit} it would be {_iso_text(meant_ms)}, {meant_ms} in milliseconds"
    raise PositionError(f"{shown} {problem}: {unit}? milliseconds are expected{remedy}")
