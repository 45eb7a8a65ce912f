"""A Python for the processes of Spark's driver that has its modules loaded: it forks, where Python would import them anew.

Spark starts a new Python for each streaming query, and imports PySpark from an archive without compiled modules: more than
two CPU seconds. A soak starts thousands of queries. `LoadedPython` is a process that has imported all of it; the program that it
names in `path` has Spark's streaming source runner forked by it. The runner's code is Spark's own.
"""

from __future__ import annotations

import array
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
_REQUEST_BYTES_MAX: Final = 1 << 20
_START_S_MAX: Final = 120
_CALLER: Final = """\
#!{python} -ISs
import array, json, os, signal, socket, sys
if sys.argv[1:] != ["-m", "{runner}"]:
    os.execv("{python}", ["{python}", *sys.argv[1:]])
own = socket.socket(socket.AF_UNIX)
own.connect("{address}")
given = json.dumps(dict(os.environ)).encode() + b"\\n"
own.sendmsg([given[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
own.sendall(given[1:])
answers = own.makefile()
pid = int(answers.readline())
signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
sys.exit(int(answers.readline() or 1))
"""
"""Spark's processes but the runner are started as ever; the runner's ends when this program is stopped."""


class LoadedPython:
    """The process; a context manager.

    Args:
        folder: Gets the program and the socket.
    """

    def __init__(self, folder: Path) -> None:
        self.path: Final = folder / "python"
        address = folder / "python.socket"
        self.path.write_text(_CALLER.format(python=sys.executable, runner=RUNNER, address=address))
        self.path.chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(address)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    @property
    def pid(self) -> int:
        """The process whose children are the runners."""
        return self._process.pid

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the process has not begun"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(_START_S_MAX)


def _serve(address: str) -> None:
    import pyspark.sql.worker.plan_data_source_read  # noqa: F401 - all of these are loaded, and none is used here

    import penstock.aws.kinesis
    import penstock.aws.lease_table
    import penstock.spark.driver.planner_opening
    import penstock.spark.source
    import penstock.spark.stream_reader  # noqa: F401 - all of these are loaded, and none is used here

    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen(64)
    print("ready", flush=True)
    while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:  # it is closed when the soak ends
        caller, _ = server.accept()
        if os.fork() == 0:
            server.close()
            _run(caller)
        caller.close()


def _run(caller: socket.socket) -> None:
    """Be Spark's runner, with files and environment of the caller; the process ends here."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    handles = array.array("i")
    text, sent, _, _ = caller.recvmsg(1, socket.CMSG_LEN(3 * handles.itemsize))
    handles.frombytes(sent[0][2])
    while not text.endswith(b"\n"):
        text += caller.recv(_REQUEST_BYTES_MAX)
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
    os.environ.clear()
    os.environ.update(json.loads(text))
    caller.sendall(f"{os.getpid()}\n".encode())
    code = 0
    try:
        sys.argv = [RUNNER]
        runpy.run_module(RUNNER, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        caller.sendall(f"{code & 255}\n".encode())
        os._exit(code & 255)


if __name__ == "__main__":
    _serve(sys.argv[1])
