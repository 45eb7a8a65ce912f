"""Hands rows from the threads that read a stream to DuckDB's threads, and can be stopped from any thread.

DuckDB waits for rows inside its own code, and returns only when it gets an answer. So a stop answers at once, even if a call to
the service is still under way.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

_Item = TypeVar("_Item")

_BATCHES_HELD_MAX: Final = 2
_CHECK_INTERVAL_S: Final = 0.25


class ReadStopped(Exception):  # noqa: N818 - not an error: the query is not wanted any more
    """`ReadAhead.stop` ended the rows."""


class ReadAhead(Generic[_Item]):
    """Iterates over rows that another thread reads ahead. Iterate once.

    Args:
        read: Returns the rows; called on the reading thread when the first row is requested.
        on_wait: Called about four times a second while rows are waited for, by the thread that requests them.
    """

    def __init__(
        self, name: str, read: Callable[[], Iterator[_Item]], on_wait: Callable[[], None] = lambda: None
    ) -> None:
        self._on_wait = on_wait
        self._read = read
        self._queue: queue.Queue[_Item | None] = queue.Queue(_BATCHES_HELD_MAX)
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._read_on_thread, name=name, daemon=True)
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[_Item]:
        """Yield the rows.

        Raises:
            ReadStopped: `stop` was called.
            BaseException: The error of the reading thread, which `error` keeps.
        """
        self._thread.start()
        while True:
            rows = self._next_rows()
            if rows is None:
                if self.error is not None:
                    raise self.error
                return
            yield rows

    def stop(self) -> None:
        """End the rows at once, for the reading thread and for the thread that requests them."""
        self._is_stopped.set()

    def join(self, timeout_s: float) -> bool:
        """Wait until the reading thread has ended; return whether it has."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _next_rows(self) -> _Item | None:
        """Wait for the next rows; return None at the end."""
        while not self._is_stopped.is_set():
            try:
                return self._queue.get(timeout=_CHECK_INTERVAL_S)
            except queue.Empty:
                self._on_wait()
        raise ReadStopped

    def _read_on_thread(self) -> None:
        try:
            for rows in self._read():
                self._enqueue(rows)
        except ReadStopped:
            return
        except BaseException as error:  # noqa: BLE001 - raised again on the thread that requests rows
            self.error = error
        try:
            self._enqueue(None)
        except ReadStopped:
            return

    def _enqueue(self, rows: _Item | None) -> None:
        while not self._is_stopped.is_set():
            try:
                self._queue.put(rows, timeout=_CHECK_INTERVAL_S)
            except queue.Full:
                continue
            return
        raise ReadStopped
