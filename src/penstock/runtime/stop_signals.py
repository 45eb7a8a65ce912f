"""The signals that ask a program to end: taken over while consumers run in the main thread."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

from penstock.runtime.home_process import HomeProcess

log = logging.getLogger("penstock.consumer")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_REPEAT_S: Final = 0.5
"""The first signal again within this time is no second one. `timeout` signals its child and then its group, which the child belongs to."""


class StopSignals:
    """Handles SIGTERM and SIGINT while it is entered on the main thread; on others it does nothing.

    Several may be entered at once, and left in any order, because an event loop may run several consumers. A first signal
    goes to all of them; the next one raises KeyboardInterrupt, unless it is a repeat of the first.

    Args:
        on_signal: Called once, in the signal handler.
    """

    def __init__(self, on_signal: Callable[[], object]) -> None:
        self.is_interrupted = False
        """Whether a second signal arrived: all waits end."""
        self._on_signal = on_signal
        self._has_signalled = False
        self._home = HomeProcess()

    @property
    def is_of_this_process(self) -> bool:
        """Whether these signals were entered in this process, and not before a fork."""
        return self._home.is_here

    def request_stop(self) -> bool:
        """Pass a first signal on; return whether it was the first one."""
        if self._has_signalled:
            return False
        self._has_signalled = True
        self._on_signal()
        return True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            _active_stop_signals[:] = [each for each in _active_stop_signals if each.is_of_this_process]
            if not _active_stop_signals:
                _received_signals.clear()
                for number in _SIGNALS:
                    handler = signal.signal(number, _handle)
                    if handler is not _handle:  # a forked child inherits `_handle`
                        _earlier_handlers[number] = handler
            _active_stop_signals.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in _active_stop_signals:
            _active_stop_signals.remove(self)
            if not _active_stop_signals:
                for number in _SIGNALS:
                    signal.signal(number, _handler_before(number))


_active_stop_signals: Final[list[StopSignals]] = []
_earlier_handlers: Final[dict[int, Any]] = {}
_received_signals: Final[list[tuple[int, float]]] = []
"""Each signal with its moment by the monotonic clock."""


def _handler_before(number: int) -> Any:
    """Return the handler that a signal had before. One that was not set by Python, as in a server that embeds it, is lost."""
    before = _earlier_handlers[number]
    return signal.SIG_DFL if before is None else before


def received_signal() -> int | None:
    """Return the signal that asked this process's consumers to end, or None. It is forgotten when the next consumers begin."""
    return _received_signals[0][0] if _received_signals else None


def _handle(number: int, _frame: FrameType | None) -> None:
    own_stop_signals = [each for each in _active_stop_signals if each.is_of_this_process]
    if not own_stop_signals:  # a forked child inherits this handler, and nothing that could stop
        signal.signal(number, _handler_before(number))
        os.kill(os.getpid(), number)
        return
    _received_signals.append((number, time.monotonic()))
    log.info("signal %s: finishing calls under way", signal.Signals(number).name)
    stopped = [each.request_stop() for each in own_stop_signals]
    if not any(stopped) and not _is_repeat():
        for each in own_stop_signals:
            each.is_interrupted = True
        raise KeyboardInterrupt


def _is_repeat() -> bool:
    """Return whether the last signal is the first one again."""
    (first, first_s), (last, last_s) = _received_signals[0], _received_signals[-1]
    return last == first and last_s - first_s < _REPEAT_S
