"""The signals that ask a program to end: taken over while a consumer runs in the main thread."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType
from typing import Any, Final

from penstock.consumer.home_process import HomeProcess

log = logging.getLogger("penstock.consumer")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Takes SIGTERM and SIGINT over for a while, where that is possible."""

    def __init__(self, on_signal: Any) -> None:
        self._on_signal = on_signal
        self._before: dict[int, Any] = {}
        self._home = HomeProcess()
        self._is_second = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if not self._home.is_here:  # a forked child inherits this handler, and nothing that could stop
            signal.signal(number, self._before[number])
            os.kill(os.getpid(), number)
            return
        if self._is_second:
            raise KeyboardInterrupt
        self._is_second = True
        log.info("signal %s: finishing what is in hand", signal.Signals(number).name)
        self._on_signal()

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
