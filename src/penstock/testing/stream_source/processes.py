"""Functions that run in a new Python process, as Spark's workers are."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.testing.stream_source.spark_calls import Driver, Task, pickled, unpickled

_PROCESS_S: Final = 120.0
_PAUSE_S: Final = 0.02
_READERS: Final = 3
_SOCKET: Final = "socket:"
_PROGRAM: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from pathlib import Path
from penstock.testing.stream_source.spark_calls import pickled, unpickled
call, arguments = unpickled(Path(sys.argv[2]).read_bytes())
answer = call(*arguments)
Path(sys.argv[3]).write_bytes(pickled(answer, "an answer"))
"""


class ProcessFailed(Exception):  # noqa: N818 - the process failed, its error is the text
    """A process ended with an error, or not at all."""


def run_in_process(call: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function of this package in a new process and return its answer.

    Raises:
        ProcessFailed: It raised, or the process did not end in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, answer, errors = (Path(folder, name) for name in ("given", "answer", "errors"))
        given.write_bytes(pickled((call, arguments), "what a process is given"))
        line = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(given), str(answer)]
        with errors.open("wb") as log:
            try:
                done = subprocess.run(line, stdout=log, stderr=log, timeout=_PROCESS_S, check=False)  # noqa: S603 - our own program
            except subprocess.TimeoutExpired:
                state = "was done and did not end" if answer.exists() else "was not done"
                raise ProcessFailed(f"the process {state} after {_PROCESS_S:g} s") from None
        if done.returncode != 0 or not answer.exists():
            text = errors.read_text(encoding="utf-8", errors="replace").strip()
            raise ProcessFailed(text.splitlines()[-1] if text else f"status {done.returncode}")
        return unpickled(answer.read_bytes())


def read_rows(tasks: list[Task]) -> list[dict[str, Any]]:
    """Return the rows of tasks. It can run in a process of its own."""
    return [row for task in tasks for row in task.rows()]


# --- stop -----------------------------------------------------------------------------------------------------

CALLS: Final = ("streamReader", "initialOffset", "partitions(x, x)", "latestOffset", "partitions", "commit")


def find_leaks_after_stop(data_source: bytes, schema: Any, start: str, stop_s: float) -> str | None:
    """Stop readers after each of Spark's calls; return a text about the first call after which all left something, or None.

    Runs in a process of its own. Readers may share connections, so a number counts only if it grows with every reader.

    Args:
        data_source: The data source, pickled.
        start: An offset after which there are records.
        stop_s: How long threads and connections may take to end after `stop`.
    """
    for count in (0, *range(1, len(CALLS) + 1)):  # the first turn opens what readers share
        before = _threads_and_sockets()
        for _ in range(_READERS):
            driver = Driver(data_source, schema)
            _make_calls(driver, start, count or len(CALLS))
            try:
                driver.stop()
            except Exception as error:  # noqa: BLE001 - it is the answer
                return f"stop after {CALLS[count - 1]}: {type(error).__name__}: {error}"
            del driver  # as Spark's process forgets its reader
        gc.collect()
        deadline_s = time.monotonic() + stop_s
        while count and (grown := _find_leaks(before)) and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)
        if count and grown:
            return f"{_READERS} readers, each stopped after {CALLS[count - 1]}, left {grown}"
    return None


def _make_calls(driver: Driver, start: str, count: int) -> None:
    if count >= 2:
        driver.initial()
    if count >= 3:
        driver.tasks(start, start)
    if count >= 4:
        end = driver.latest(start)
        if count >= 5:
            driver.tasks(start, end)
        if count >= 6:
            driver.commit(end)


def _find_leaks(earlier_resources: set[tuple[str, int]]) -> str:
    """Return the threads and connections that every reader has left behind; empty if there are none."""
    new = _threads_and_sockets() - earlier_resources
    sockets = [each for each in new if each[0].startswith(_SOCKET)]
    lost = [each for each in earlier_resources - _threads_and_sockets() if each[0].startswith(_SOCKET)]
    names = sorted(name for name, _ in new if not name.startswith(_SOCKET))
    found = names if len(names) >= _READERS else []
    if len(sockets) - len(lost) >= _READERS:
        found.append(f"{len(sockets) - len(lost)} connections")
    return ", ".join(found)


def _threads_and_sockets() -> set[tuple[str, int]]:
    """Return the threads and sockets of this process."""
    threads = {(f"thread {each.name}", id(each)) for each in threading.enumerate()}
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return threads
    sockets = set()
    for each in folder.iterdir():
        try:
            target = os.readlink(each)  # noqa: PTH115 - the name of a socket, which is not a path
        except FileNotFoundError:
            continue  # the one by which the folder is listed
        if target.startswith(_SOCKET):
            sockets.add((target, 0))
    return threads | sockets
