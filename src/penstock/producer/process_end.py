"""The end of a process that has an open producer: the hook that closes the producer, and the processes without a hook.

| process | end | hook |
|---|---|---|
| any, also one made by `os.fork` that leaves by `sys.exit` | interpreter's exit | `atexit` |
| child of `multiprocessing` or billiard (Process, Pool, ProcessPoolExecutor) | `os._exit` after the module's finalizers | `multiprocessing.util.Finalize` |
| the same, terminated, as by `with Pool()` at its end | SIGTERM | a handler, and a thread that closes and ends the process |
| the same, if the producer was made on another thread than the main one | SIGTERM | none: `warn_of_open_end` |
| worker of Celery | `os._exit` | Celery's signal `worker_process_shutdown` |
| worker of billiard's Pool without Celery | `os._exit` without any finalizer | none: `refuse_open_end` |
| server of uvicorn | SIGTERM again, once its own shutdown is over | none: `warn_of_open_end` |
| worker of PySpark | `os._exit`, or a signal, without any finalizer | none: `refuse_open_end` |
| any whose code ends it so, for instance an RQ worker's process of a job | `os._exit` | none: `warn_of_open_end` |
| any, once its hooks have run | | none: `refuse_open_end` |
"""

from __future__ import annotations

import atexit
import dis
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from penstock.errors import UsageError

_log: Final = logging.getLogger("penstock.producer")
_FINALIZER_PRIORITY: Final = (
    100  # before the finalizers of queues and pools, whose threads user code may need
)
_SIGTERM_STATUS: Final = 128 + signal.SIGTERM
_WAKE_BYTE: Final = b"\0"
"""The handler writes this to the pipe. No signal has this number."""


class EndHook:
    """Calls a function when this process ends, unless `cancel` is called before.

    Args:
        close: Called by each kind of hook that the process has, so several times. Later calls must do nothing.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        _hooks[self] = None
        atexit.register(self.end)
        self._finalizer: Any = None
        self.add_pool_hooks()

    def add_pool_hooks(self) -> None:
        """Add the hooks of a pool's process, if this process is one. It becomes one after importing the program's main module."""
        # In a child of multiprocessing the module is loaded already. In other processes importing it would cost milliseconds.
        if self._finalizer is None and _is_pool_child():
            from multiprocessing.util import Finalize

            self._finalizer = Finalize(None, self.end, exitpriority=_FINALIZER_PRIORITY)
            _terminations.handle()
        celery = sys.modules.get("celery.signals")
        if celery is not None:
            celery.worker_process_shutdown.connect(_end_all, weak=False, dispatch_uid=__name__)

    def cancel(self) -> None:
        """Remove the hooks."""
        _hooks.pop(self, None)
        atexit.unregister(self.end)
        if self._finalizer is not None:
            self._finalizer.cancel()

    def end(self) -> None:
        """Call the function. A termination waits until it has returned."""
        with _terminations.closing:
            self._close()


_hooks: Final[dict[EndHook, None]] = {}
"""The hooks that are not cancelled, in the order in which they were made."""


def _end_all(*_: object, **__: object) -> None:
    with _terminations.closing:
        for hook in reversed(list(_hooks)):
            hook.end()


class _InterpreterExit:
    """The `atexit` hook of this module. It is registered early, so it runs after the hooks of modules that were loaded later.

    Hooks that are registered during the exit are never called, so this hook closes producers that other hooks open.
    """

    def __init__(self) -> None:
        # If the main thread has ended before this import, hooks may not run any more.
        self.is_over = not threading.main_thread().is_alive()
        atexit.register(self._on_exit)

    def _on_exit(self) -> None:
        _end_all()
        self.is_over = True


_interpreter_exit: Final = _InterpreterExit()


def _is_pool_child() -> bool:
    """Return whether this process was made by multiprocessing or by billiard, which uses multiprocessing's finalizers."""
    loaded, billiard = sys.modules.get("multiprocessing"), sys.modules.get("billiard.process")
    if loaded is not None and loaded.parent_process() is not None:
        return True
    return billiard is not None and type(billiard.current_process()).__name__ != "_MainProcess"


class _Terminations:
    """Closes the producers of a child of multiprocessing at SIGTERM, then ends the process.

    A separate thread does this: the main thread may be blocked, or go on after `SystemExit`, and `Pool` waits for its processes
    without a deadline.
    """

    def __init__(self) -> None:
        self.closing = threading.RLock()
        """Held while a hook closes producers: a process that is terminated meanwhile ends after that."""
        self.has_warned = False
        """Whether a warning of a termination without a hook was logged. It is logged once per process."""
        self._pipe: tuple[int, int] | None = None
        os.register_at_fork(after_in_child=self._on_forked)

    def handle(self) -> None:
        """Handle SIGTERM, unless the program handles it. Only the main thread may set a handler; on others nothing happens."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            if self._pipe is None:
                self._pipe = self._start()
            signal.signal(signal.SIGTERM, self._on_signal)

    def _start(self) -> tuple[int, int]:
        """Start the thread; return the ends of its pipe, to read from and to write to."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        # The interpreter writes each signal's number to this pipe at once. A handler would wait for a blocked main thread.
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before != -1:  # an event loop has set its own descriptor: keep that
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        threading.Thread(target=self._run, args=(reading,), name="penstock-terminated", daemon=True).start()
        return reading, writing

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._pipe is not None:
            os.write(self._pipe[1], _WAKE_BYTE)
        else:  # a handler of the program has called this handler, in a forked child that has opened no producer
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _run(self, reading: int) -> None:
        # If the program has set another handler, SIGTERM does not end the process here: that handler may go on, or call this one.
        while (read := os.read(reading, 1)) != _WAKE_BYTE:
            if read == bytes([signal.SIGTERM]) and self._is_handler():
                break
        try:
            _end_all()
        finally:
            os._exit(_SIGTERM_STATUS)

    def _is_handler(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self._on_signal

    def _on_forked(self) -> None:
        """Undo `handle` in a forked child, which shares the pipe with the parent and lacks the thread."""
        self.closing = threading.RLock()
        if self._pipe is None:
            return
        before = signal.set_wakeup_fd(-1)
        if before not in (-1, self._pipe[1]):
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        for end in self._pipe:
            os.close(end)
        self._pipe = None
        if self._is_handler():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


_terminations: Final = _Terminations()


def refuse_open_end(stream: str) -> None:
    """Refuse a producer outside a `with` block if this process ends without calling any hook.

    Raises:
        UsageError: This process runs a task of Spark or belongs to billiard's Pool, or it is ending.
    """
    loaded = sys.modules.get("pyspark.taskcontext")
    if loaded is not None and loaded.TaskContext.get() is not None:
        raise UsageError(
            f"stream {stream}: in a task of Spark a Producer works only in a `with` block, since Spark ends its Python processes "
            "without a word and the last records would be lost: `with Producer(stream=...) as producer:` inside the function that "
            'runs in the task. To write a DataFrame use df.write.format("kinesis") instead'
        )
    if _is_unhooked_billiard_worker():
        raise UsageError(
            f"stream {stream}: in a process of billiard's Pool a Producer works only in a `with` block, since such a process ends "
            "without a word and the last records would be lost"
        )
    if _is_after_hooks():
        raise UsageError(
            f"stream {stream}: this process is ending, and a Producer that is opened now works only in a `with` block: no hook "
            "would close it, and its records would be lost"
        )


def warn_of_open_end(stream: str) -> None:
    """Warn of a producer outside a `with` block if this process may end without calling a hook.

    In a server of uvicorn, a shutdown hook of the program must close the producer. In a process of a pool, only the main thread
    can set the handler of SIGTERM. Elsewhere a caller of this function may end the process by `os._exit`.
    """
    servers = sys.modules.get("uvicorn.server")
    owner = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)  # the object of the handler
    if servers is not None and isinstance(owner, servers.Server):
        _log.warning(
            "stream %s: uvicorn ends its process by the signal itself once its shutdown is over, and no hook closes this producer "
            "then: close it in the lifespan of the application (`async with AsyncProducer(Producer(...))`), or its last records are "
            "lost",
            stream,
        )
    elif _is_pool_child():
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not _terminations.has_warned:
            _terminations.has_warned = True
            _log.warning(
                "stream %s: this producer was made on another thread than the main one, so its last records are lost if the process is "
                "terminated, as multiprocessing.Pool does at the end of its `with` block: make it on the main thread, for instance in "
                "the pool's initializer, or close it",
                stream,
            )
    elif (caller := _caller_that_may_exit()) is not None:
        _log.warning(
            "stream %s: %s has called this code and can end the process by os._exit, without any hook: use `with Producer(...)`, or "
            "the last records may be lost",
            stream,
            caller,
        )


def _caller_that_may_exit() -> str | None:
    """Return the function on this stack that may end this forked process by `os._exit`; None if there is none.

    The callers' code shows the fork and the `_exit`. A counter of forks would be 0 in a child that first imports this module, as RQ's.
    """
    found = None
    frame = inspect.currentframe()
    while frame is not None:
        if found is None and any(
            offset > frame.f_lasti for offset in _offsets_of_uses(frame.f_code, "_exit")
        ):
            found = f"{frame.f_code.co_qualname} of {frame.f_code.co_filename}"
        if found is not None and any(
            offset < frame.f_lasti for offset in _offsets_of_uses(frame.f_code, "fork")
        ):
            return found
        frame = frame.f_back
    return None


def _offsets_of_uses(code: CodeType, name: str) -> list[int]:
    """Return where a function uses a global name or an attribute: the offsets of its instructions."""
    if name not in code.co_names:
        return []
    return [
        each.offset
        for each in dis.get_instructions(code)
        if each.opcode in dis.hasname and each.argval == name
    ]


def _is_unhooked_billiard_worker() -> bool:
    pools, processes = sys.modules.get("billiard.pool"), sys.modules.get("billiard.process")
    if pools is None or processes is None or "celery.signals" in sys.modules:
        return False
    return isinstance(getattr(processes.current_process(), "_target", None), pools.Worker)


def _is_after_hooks() -> bool:
    if _interpreter_exit.is_over:
        return True
    loaded = sys.modules.get("multiprocessing")
    if loaded is None or loaded.parent_process() is None:
        return False  # in this process multiprocessing's finalizers run before the hook of this module
    util = sys.modules.get("multiprocessing.util")
    return util is not None and bool(util.is_exiting())
