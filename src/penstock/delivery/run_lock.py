"""Locks of a delivery's runs on this machine. The system releases them when a process ends, however it ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from penstock.core.delivering.manifest import parse_range

QUERY: Final = "query"
RANGE: Final = "range"
REDELIVERY: Final = "redelivery"
_LOCKED_ERRORS: Final = (BlockingIOError, PermissionError)


class RunLock:
    """The lock of a run, held until `release`.

    Args:
        descriptor: Descriptor of the lock file; None if the state folder cannot be locked.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def kind_of_batch(label: str) -> str:
    """Return the kind of run to which a batch with this label belongs."""
    if parse_range(label) is not None:
        return RANGE
    return QUERY if label.isdecimal() else REDELIVERY


def try_lock(state: str, kind: str) -> RunLock | None:
    """Take the lock of one kind of run; return None if another run on this machine holds it.

    If the state folder is not on this machine, or the system has no `flock`, nothing is locked and other runs are not noticed.

    Args:
        state: The state folder of the delivery.
        kind: `QUERY`, `RANGE` or `REDELIVERY`.
    """
    if not state.startswith("/"):
        return RunLock(None)
    try:
        import fcntl
    except ModuleNotFoundError:
        return RunLock(None)
    Path(state).mkdir(parents=True, exist_ok=True)
    descriptor = os.open(_lock_path(state, kind), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except _LOCKED_ERRORS:
        os.close(descriptor)
        return None
    except OSError:  # a file system without locks
        os.close(descriptor)
        return RunLock(None)
    return RunLock(descriptor)


def is_locked(state: str, kind: str) -> bool:
    """Return whether another run on this machine holds the lock of one kind of run. No lock file is created."""
    if not state.startswith("/") or not os.path.exists(_lock_path(state, kind)):  # noqa: PTH110 - pathlib's raises PermissionError
        return False
    lock = try_lock(state, kind)
    if lock is None:
        return True
    lock.release()
    return False


def _lock_path(state: str, kind: str) -> str:
    return f"{state}/{kind}.lock"
