"""Checks of the options of a server: a value of another kind, or out of its range, is named."""

from __future__ import annotations

import math
import os
from numbers import Integral, Real
from typing import Any

from penstock_local.errors import OptionError


def plain_number(name: str, value: Any, low: int, high: int | None = None, *, is_whole: bool = False) -> Any:
    """Return an option as an `int` or a `float`, whatever kind of number it is.

    Args:
        is_whole: Whether it must be a whole number; `1e9` is one.

    Raises:
        OptionError: It is not a number, or out of its range; the message names the option, its range and its value.
    """
    bound = f"at least {low}" if high is None else f"{low} to {high}"
    kind = "a whole number" if is_whole else "a number"
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or (is_whole and value % 1 != 0):  # the remainder of an infinite number is not 0 either
        raise OptionError(f"{name} must be {kind} of {bound}, not {value!r}")
    if not low <= value <= (math.inf if high is None else high) or not math.isfinite(value):
        raise OptionError(f"{name} must be {bound}, not {value}")
    return int(value) if is_whole or isinstance(value, Integral) else float(value)


def check_folder(name: str, value: Any) -> None:
    """Refuse an option that names no folder; None is allowed.

    Raises:
        OptionError: It is not a path, or empty, as the text of a variable that is not set.
    """
    if value is None:
        return
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str):
        raise OptionError(f"{name} must be the path of a folder, not {value!r}")
    if not path.strip():
        raise OptionError(f"{name} is empty: name a folder; `.` is the one that this program runs in")
