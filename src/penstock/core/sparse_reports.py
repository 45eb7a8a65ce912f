"""Which of many equal events are reported: ever more rarely, since there may be thousands a second. Pure."""

from __future__ import annotations


def is_reported(number: int, first: int = 1) -> bool:
    """Return whether to report an event: its number is a power of two.

    Args:
        number: The number of the event, from 1; 0 is none.
        first: Events with smaller numbers are not reported.
    """
    return number >= first and number & (number - 1) == 0
