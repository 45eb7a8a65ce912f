"""A thread that reports periodically, with a last report at the end."""

from __future__ import annotations

import threading
from typing import Self

from penstock.errors import OptionError


def check_interval(interval_s: float) -> None:
    """Raise `OptionError` unless the seconds between two reports are more than 0."""
    if not interval_s > 0:
        raise OptionError(f"interval_s={interval_s}: expected more than 0")


class PeriodicReports:
    """Calls `report` from a thread of its own until it is closed. A subclass starts it when it is complete."""

    def report(self) -> None:
        """Report the measurements since the last report. Never raises."""
        raise NotImplementedError

    def start_reports(self, interval_s: float, thread_name: str) -> None:
        """Start the thread that reports every `interval_s` seconds."""
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._report_on, args=(interval_s,), name=thread_name, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Send the last report and stop."""
        if not self._closed.is_set():
            self._closed.set()
            self._thread.join()
            self.report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report_on(self, interval_s: float) -> None:
        while not self._closed.wait(interval_s):
            self.report()
