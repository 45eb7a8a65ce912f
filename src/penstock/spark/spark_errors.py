"""Errors as Spark shows them: their message, without long tracebacks.

Spark shows the whole Python traceback, with every cause, in front of the message. Penstock's messages explain the
error, so the frames are removed, and a cause is kept as a note; the whole traceback goes to the log.
"""

from __future__ import annotations

import functools
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, ParamSpec, TypeVar

from penstock.core.safe_text import describe_error
from penstock.errors import PenstockError

_log: Final = logging.getLogger("penstock.spark")
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


def with_plain_errors(call: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
    """Decorate a function: it raises Penstock's errors without the frames and causes that led to them."""

    @functools.wraps(call)
    def raise_plain_errors(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        try:
            return call(*args, **kwargs)
        except PenstockError as error:
            raise _without_traceback(error) from None

    return raise_plain_errors


def rows_with_plain_errors(call: Callable[_Args, Iterator[_Item]]) -> Callable[_Args, Iterator[_Item]]:
    """Decorate a generator function as `with_plain_errors` does a function."""

    @functools.wraps(call)
    def raise_plain_errors(*args: _Args.args, **kwargs: _Args.kwargs) -> Iterator[_Item]:
        try:
            yield from call(*args, **kwargs)
        except PenstockError as error:
            raise _without_traceback(error) from None

    return raise_plain_errors


def _without_traceback(error: PenstockError) -> PenstockError:
    _log.debug("the whole traceback of the error that follows", exc_info=error)
    cause = error.__cause__
    if cause is not None and str(cause) not in str(error):
        error.add_note(f"Cause: {describe_error(cause)}")
    return error.with_traceback(None)


def exit_on_termination() -> None:
    """Turn SIGTERM into an orderly end of this process, so that Spark's `stop` reaches the reader.

    Spark ends the process beside the driver with SIGTERM. Python's default handler would end it at once, with leases held
    and threads running. This does nothing if the signal has another handler, or on another thread than the main one, as Python demands.
    """
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    # Once is enough: another one must not interrupt the orderly end that this one begins.
    signal.signal(number, signal.SIG_IGN)
    sys.exit(0)
