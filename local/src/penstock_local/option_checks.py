"""Checks of the options of a server: a value of another kind, or out of its range, is named."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from penstock_local.errors import OptionError


def check_number(name: str, value: Any, low: int, high: int | None = None, *, is_whole: bool = False) -> None:
    """Refuse an option that is no number of a range.

    Args:
        is_whole: Whether it must be a whole number.

    Raises:
        OptionError: The message names the option, its range and its value.
    """
    bound = f"at least {low}" if high is None else f"{low} to {high}"
    kind = "a whole number" if is_whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if is_whole else (int, float)):
        raise OptionError(f"{name} must be {kind} of {bound}, not {value!r}")
    if not low <= value <= (math.inf if high is None else high) or not math.isfinite(value):
        raise OptionError(f"{name} must be {bound}, not {value}")


def check_folder(name: str, value: Any) -> None:
    """Refuse an option that names no folder; None is allowed.

    Raises:
        OptionError: It is no path, or empty, as the text of a variable that is not set.
    """
    if value is None:
        return
    if not isinstance(value, str | Path):
        raise OptionError(f"{name} must be the path of a folder, not {value!r}")
    if not str(value).strip():
        raise OptionError(f"{name} is empty: name a folder; `.` is the one that this program runs in")
