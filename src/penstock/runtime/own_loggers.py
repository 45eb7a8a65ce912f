"""Loggers whose errors stay in the log: a program's log handler that raises must not end a thread of ours.

Log handlers, filters and record factories belong to the program. Some work only on its own threads (a filter that reads the web
request) or only sometimes (a handler that posts to a chat). `logging` raises their errors where a line is logged: in a thread
that renews leases or sends records.
"""

from __future__ import annotations

import logging
import warnings
from functools import partial
from typing import Any, Final

NAMES: Final = tuple(
    f"penstock.{area}"
    for area in (
        "aws",
        "consumer",
        "delivery",
        "leases",
        "metrics",
        "overview",
        "producer",
        "queues",
        "sizing",
        "spark",
        "sql",
    )
)
"""Every logger of this package."""
_reporter: Final = logging.Handler()
"""Reports on stderr as every log handler does, unless `logging.raiseExceptions` is false."""
_PLAIN_ARGUMENTS: Final = 7  # of a record: its name, level, file, line, message, arguments and exception


def guard_loggers() -> None:
    """Report the errors of log handlers, filters and record factories on stderr, instead of raising them in our threads.

    Called before a thread of ours is made, and not at the import: `logging.config` disables every logger that exists by then.
    """
    for name in NAMES:
        logger = logging.getLogger(name)
        if "handle" in vars(logger):
            return  # done before
        # On the logger itself: it keeps the class that the program may have set by `setLoggerClass`.
        vars(logger).update(handle=partial(_handle, logger), makeRecord=partial(_make_record, logger))


def warn_if_disabled(logger: logging.Logger, untold: str, stacklevel: int = 4) -> None:
    """Warn of a logger that is disabled, as `logging.config` leaves those of packages that were imported before.

    Args:
        untold: The facts that are missing from the log.
        stacklevel: How many calls up the program's own line is, this function included.
    """
    if logger.disabled:
        warnings.warn(
            f"the logger {logger.name} is disabled, so the log will not say {untold}: give logging.config "
            "disable_existing_loggers=False, or configure logging before penstock is imported",
            RuntimeWarning,
            stacklevel=stacklevel,
        )


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    try:
        type(logger).handle(logger, record)
    except Exception:  # noqa: BLE001 - the program's own, reported as `logging` reports others
        _reporter.handleError(record)


def _make_record(logger: logging.Logger, *given: Any) -> logging.LogRecord:
    try:
        return type(logger).makeRecord(logger, *given)
    except Exception:  # noqa: BLE001 - the same
        plain = logging.LogRecord(*given[:_PLAIN_ARGUMENTS])
        _reporter.handleError(plain)
        return plain
