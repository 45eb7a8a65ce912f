"""The end of the process that holds an open producer: the hook that closes it, and the processes without one.

| process | end | hook |
|---|---|---|
| any, also one made by `os.fork` that leaves by `sys.exit` | interpreter's exit | `atexit` |
| child of `multiprocessing` (Process, Pool, ProcessPoolExecutor) | `os._exit` after the module's finalizers | `multiprocessing.util.Finalize` |
| the same, terminated, as by `with Pool()` at its end | SIGTERM | a handler that ends the process in order |
| worker of PySpark | `os._exit`, or a signal, without any finalizer | none: `refuse_open_end` |
"""

from __future__ import annotations

import atexit
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from penstock.errors import UsageError

_FIRST: Final = 100  # before the finalizers of queues and pools, which end threads that user code may need
_TERMINATED: Final = 128 + signal.SIGTERM
_ending = threading.Event()
"""Set once a hook has begun to close: a signal must not break that off."""


class EndHook:
    """Calls a function when this process ends, unless it is cancelled before.

    Args:
        close: Called once by each hook that the process has; must do nothing when called again.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        atexit.register(self._end)
        self._finalizer: Any = None
        # A child of multiprocessing has the module; importing it in every other process would cost milliseconds.
        loaded = sys.modules.get("multiprocessing")
        if loaded is not None and loaded.parent_process() is not None:
            from multiprocessing.util import Finalize

            self._finalizer = Finalize(None, self._end, exitpriority=_FIRST)
            _end_in_order_when_terminated()

    def cancel(self) -> None:
        """Remove the hooks."""
        atexit.unregister(self._end)
        if self._finalizer is not None:
            self._finalizer.cancel()

    def _end(self) -> None:
        _ending.set()
        self._close()


def _end_in_order_when_terminated() -> None:
    """Make SIGTERM run the finalizers of a child of multiprocessing, unless the program handles the signal itself."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit_in_order)


def _exit_in_order(number: int, frame: FrameType | None) -> None:
    del number, frame
    # A Pool asks its processes to end and terminates them a moment later: the first may be closing a producer already.
    if not _ending.is_set():
        raise SystemExit(_TERMINATED)


def refuse_open_end(stream: str) -> None:
    """Refuse a producer outside a `with` block in a task of Spark, whose process ends without any hook.

    Raises:
        UsageError: This process runs a task of Spark.
    """
    loaded = sys.modules.get("pyspark.taskcontext")
    if loaded is not None and loaded.TaskContext.get() is not None:
        raise UsageError(
            f"stream {stream}: in a task of Spark a Producer works only in a `with` block, since Spark ends its Python processes "
            "without a word and the last records would be lost: `with Producer(stream=...) as producer:` inside the function that "
            'runs in the task. To write a DataFrame use df.write.format("kinesis") instead'
        )
