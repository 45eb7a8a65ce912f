"""Replaces methods of moto for which it has no place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def replace_method(owner: type, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a method by what `wrap` makes of it; a second call changes nothing."""
    original = getattr(owner, name)
    if getattr(original, "is_of_penstock", False):
        return
    replacement = wrap(original)
    replacement.is_of_penstock = True  # a mark that it is in place
    setattr(owner, name, replacement)
