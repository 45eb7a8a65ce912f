"""Loggers whose errors stay in the log: a program's log handler that raises must not end a thread of ours.

Log handlers, filters and record factories belong to the program. Some work only on its own threads (a filter that reads the web
request) or only sometimes (a handler that posts to a chat). `logging` raises their errors where a line is logged: in a thread
that renews leases or sends records.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from traceback import TracebackException
from typing import Any, Final

from penstock.core.safe_text import name_of, text_of


class _Reporter(logging.Handler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - of the library
        """Report on stderr as every log handler does, unless `logging.raiseExceptions` is false or stderr is closed."""
        with suppress(Exception):
            super().handleError(record)


_reporter: Final = _Reporter()
_PLAIN_FIELDS: Final = ("name", "level", "fn", "lno", "msg", "args", "exc_info")
"""The first arguments of `makeRecord`, and all that a record needs."""
_TRACE_CHARACTERS_MAX: Final = 32_000
_GROUP_ERRORS_MAX: Final = 100
_INNER_ERRORS_MAX: Final = 20
_GROUP_DEPTH_MAX: Final = 10


class _Guard(partial[Any]):
    """A guarded method of one logger."""


def guard_loggers() -> None:
    """Report the errors of log handlers, filters and record factories on stderr, instead of raising them in our threads.

    Tracebacks are cut, and spelled so that UTF-8 can encode them: an exception of user code may have any text. A formatter with a
    `formatException` of its own gets the whole traceback, since it may hide secrets.

    Called before each thread or pool of ours is made. It makes no logger, because `logging.config` disables existing loggers.
    """
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if not name.startswith("penstock.") or not isinstance(logger, logging.Logger):
            continue
        # On the logger itself: it keeps the class that the program may have set by `setLoggerClass`.
        methods = vars(logger)
        for method, guarded in (("handle", _handle), ("makeRecord", _make_record)):
            before = methods.get(method)  # the program's own, or None
            if not isinstance(before, _Guard):
                methods[method] = _Guard(guarded, logger, before)


def warn_if_disabled(logger: logging.Logger, missing_facts: str, stacklevel: int = 4) -> None:
    """Warn if a logger is disabled. `logging.config` disables the loggers of packages that were imported before it ran.

    Args:
        missing_facts: Named in the warning: the log lacks them.
        stacklevel: How many calls up the program's own line is, this function included.
    """
    if logger.disabled:
        warnings.warn(
            f"the logger {logger.name} is disabled, so the log will not say {missing_facts}: give logging.config "
            "disable_existing_loggers=False, or configure logging before penstock is imported",
            RuntimeWarning,
            stacklevel=stacklevel,
        )


def _handle(logger: logging.Logger, handle: Callable[..., object] | None, record: logging.LogRecord) -> None:
    try:
        if handle is None:
            type(logger).handle(logger, record)
        else:
            handle(record)
    except Exception:  # noqa: BLE001 - the program's own, reported as `logging` reports others
        _reporter.handleError(record)


def _make_record(
    logger: logging.Logger, make_record: Callable[..., logging.LogRecord] | None, *given: Any, **named: Any
) -> logging.LogRecord:
    try:
        if make_record is None:
            record = type(logger).makeRecord(logger, *given, **named)
        else:
            record = make_record(*given, **named)
        if record.exc_info and not _formats_traces(logger):
            _bound_trace(record)
    except Exception:  # noqa: BLE001 - the same
        fields: dict[str, Any] = {**dict(zip(_PLAIN_FIELDS, given, strict=False)), **named}
        needed: list[Any] = [fields.get(field) for field in _PLAIN_FIELDS]
        plain = logging.LogRecord(*needed)
        _reporter.handleError(plain)
        return plain
    return record


def _formats_traces(logger: logging.Logger) -> bool:
    """Return whether a handler that the logger reaches has a formatter with a `formatException` of its own."""
    reached: logging.Logger | None = logger
    while reached is not None:
        for handler in reached.handlers:
            for each in (handler, getattr(handler, "target", None)):  # the target of a MemoryHandler
                formatter = getattr(each, "formatter", None)
                own = getattr(formatter, "formatException", None)
                if formatter and getattr(own, "__func__", None) is not logging.Formatter.formatException:
                    return True
        reached = reached.parent if reached.propagate else None
    return False


def _bound_trace(record: logging.LogRecord) -> None:
    """Set the text of a traceback that is long, not valid Unicode or of a large group; the formatter writes any other traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return
    shown = with_few_errors(error)
    trace = "".join(TracebackException.from_exception(shown).format()).rstrip("\n")
    bounded = bounded_trace(trace)
    if shown is not error or bounded != trace:
        record.exc_text = bounded


def with_few_errors(error: BaseException, depth: int = 1) -> BaseException:
    """Return a group of the first errors in place of a large group, and any other error itself. A group inside a group is cut too.

    `traceback` examines every error of a group and then shows 15: with 20,000 failed tasks, each log line would take a second.

    Args:
        depth: How many groups the error is in, itself included. Groups deeper than `traceback` shows are not cut.
    """
    if not issubclass(type(error), BaseExceptionGroup):  # `isinstance` may call code of the error
        return error
    errors: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    first = errors[: _GROUP_ERRORS_MAX if depth == 1 else _INNER_ERRORS_MAX]
    cut = [with_few_errors(each, depth + 1) if depth < _GROUP_DEPTH_MAX else each for each in first]
    is_large = len(first) < len(errors)
    if not is_large and all(new is old for new, old in zip(cut, errors, strict=True)):
        return error
    text = (
        f"{name_of(type(error))}: {text_of(error)}; the first"
        if is_large
        else text_of(getattr(error, "message", ""))
    )
    few = BaseExceptionGroup(text, cut)
    few.__cause__, few.__context__ = error.__cause__, error.__context__
    few.__suppress_context__ = error.__suppress_context__
    for note in getattr(error, "__notes__", ()):
        few.add_note(text_of(note))
    return few.with_traceback(error.__traceback__)


def bounded_trace(trace: str) -> str:
    """Return the text of a traceback: cut if it is long, and spelled so that UTF-8 can encode it."""
    if len(trace) > _TRACE_CHARACTERS_MAX:
        half = _TRACE_CHARACTERS_MAX // 2  # the last lines are of the error that was raised last
        trace = f"{trace[:half]}...\n...{trace[-half:]}"
    return text_of(trace, len(trace))


# Handlers that look for the line of a log call, as loguru's, pass over the frames of the file of `logging`.
# A traceback shows these functions with their line numbers here, and with lines of that file.
for _function in (_handle, _make_record):
    _function.__code__ = _function.__code__.replace(co_filename=logging.__file__)
