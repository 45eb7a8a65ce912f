"""Turn signals into SystemExit, so that a command closes its files and connections before it ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType


CLEAN_STOP: Final = {signal.SIGINT: 0, signal.SIGTERM: 0}
"""The exit statuses of a command that runs until it is stopped."""


def shell_statuses(*signals: signal.Signals) -> dict[signal.Signals, int]:
    """Return the exit status of each signal by the convention of shells: 128 plus its number."""
    return {each: 128 + each for each in signals}


@contextlib.contextmanager
def exit_on_signals(statuses: Mapping[signal.Signals, int]) -> Iterator[None]:
    """Raise SystemExit in the body when a signal arrives. Outside the main thread, do nothing.

    Args:
        statuses: The exit status of each signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    exits: list[SystemExit] = []

    def raise_exit(number: int, _frame: FrameType | None) -> None:
        for each in statuses:
            signal.signal(each, signal.SIG_IGN)  # a second signal must not interrupt the unwinding
        exits.append(SystemExit(statuses[signal.Signals(number)]))
        raise exits[0]

    earlier_handlers = {each: signal.signal(each, raise_exit) for each in statuses}
    try:
        yield
    except Exception:
        if exits:  # an extension module has replaced the SystemExit by its own error, as DuckDB does
            raise exits[0] from None
        raise
    finally:
        for each, handler in earlier_handlers.items():
            signal.signal(each, handler)
