"""Detect that the reader of our output has gone, also while there is nothing to write."""

from __future__ import annotations

import contextlib
import select
import sys
import threading
from typing import TYPE_CHECKING, Final

from penstock.runtime.threads import repeat_on_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHECK_INTERVAL_S: Final = 0.25


@contextlib.contextmanager
def while_output_is_read(request_stop: Callable[[], None]) -> Iterator[threading.Event]:
    """Request a stop when the output is a pipe whose reader has gone, as in `... | head`.

    A pipe reports this only to a writer, and a quiet stream gives nothing to write: a worker would keep its
    leases for a reader that left.

    Args:
        request_stop: Called on another thread once the reader has gone, and then repeatedly until the body has ended.

    Yields:
        An event that is set once the reader has gone. The caller decides whether that matters: everything may have been written.
    """
    is_gone = threading.Event()

    def check() -> bool:
        if _is_reader_gone():
            is_gone.set()
            request_stop()
        return False  # it is called again

    with repeat_on_daemon("penstock-output", _CHECK_INTERVAL_S, check):
        yield is_gone


def _is_reader_gone() -> bool:
    if not hasattr(select, "poll"):  # Windows: the next write fails
        return False
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # stdout is not a file: the program that replaced it reads it
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # POLLERR is always reported
    return any(event & select.POLLERR for _, event in poll.poll(0))
