"""Keep messages out of the logs of a command's consumer."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONSUMER_LOGGERS: Final = ("penstock.leases", "penstock.consumer")


def is_shown_without_leases(record: logging.LogRecord) -> bool:
    """Return whether a command without leases shows a log record.

    It reports stopped leases and the end of all shards itself. A traceback shows an unexpected error.
    """
    is_of_lease = record.name == "penstock.leases" and "stopped" in record.getMessage()
    return bool(record.exc_info) or (record.levelno < logging.CRITICAL and not is_of_lease)


@contextlib.contextmanager
def filtered_logs(is_shown: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Show only messages of a consumer for which `is_shown` returns True, while the body runs."""
    loggers = [logging.getLogger(name) for name in CONSUMER_LOGGERS]
    for logger in loggers:
        logger.addFilter(is_shown)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_shown)
