"""The process that a consumer was made in: a forked child has its memory and none of its threads."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from contextlib import suppress
from traceback import print_exception
from typing import ClassVar, Final, NoReturn, Self

from penstock.errors import UsageError


def random_worker_id() -> str:
    """Return a worker id made of the host, the process and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


class InOneProcess:
    """The base of an object whose threads or connections stay in the process that made it: it cannot be pickled."""

    _to_send: ClassVar[str] = "make one in the function that the other process runs"
    """What to do instead."""

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent to another process, as `multiprocessing` and process pools send their arguments.

        Raises:
            TypeError: Always.
        """
        name = type(self).__name__
        raise TypeError(f"{name} works in the process that made it and cannot be pickled: {self._to_send}")

    def __copy__(self) -> Self:
        """Return a shallow copy for this process; `copy` would use `__reduce__` otherwise."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied


class _Forks:
    """Counts the forks that led to this process since the module was loaded; asking for the process id is slower."""

    def __init__(self) -> None:
        self.count = 0
        os.register_at_fork(after_in_child=self._on_forked)

    def _on_forked(self) -> None:
        self.count += 1


_forks: Final = _Forks()


class HomeProcess:
    """The process in which this object was made.

    As a context manager around user code, it ends a forked child that returns from that code: the parent has the records in hand, and
    may wait for the child's end.

    Args:
        owner: The kind of object that has threads in this process, for the error.
    """

    def __init__(self, owner: str = "consumer") -> None:
        self._owner = owner
        self._process_id = os.getpid()
        self._fork_count = _forks.count

    @property
    def is_here(self) -> bool:
        """Whether the current process made this object; False in a forked child."""
        return self._fork_count == _forks.count

    def refuse_fork(self) -> None:
        """Refuse to go on in a forked child, which has none of the owner's threads.

        Raises:
            UsageError: This is another process.
        """
        if not self.is_here:
            raise UsageError(
                f"this {self._owner} was made in process {self._process_id} and its threads stayed there; make one in process "
                f"{os.getpid()}, after the fork"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not self.is_here:
            _end_child(error)


def _end_child(error: BaseException | None) -> None:
    """End a forked child, which has only this thread of its parent, and copies of the parent's other calls.

    Args:
        error: The exception by which user code ended. `SystemExit` names the exit status; any other one is printed.
    """
    status = 0 if error is None else 1
    if type(error) is SystemExit and (error.code is None or type(error.code) is int):
        status = (error.code or 0) & 0xFF  # `_exit` refuses large numbers
    elif error is not None:
        with suppress(Exception):
            print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(status)
