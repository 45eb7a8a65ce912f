"""The processes of a Spark program: find, classify and kill them.

A driver started in a session of its own gives that session to everything that it starts: the JVM, the Python processes
that plan batches beside it, and the workers that read. Process groups are not enough: Spark gives each worker daemon its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError

_KILL_DEADLINE_S: Final = 20.0
_POLL_S: Final = 0.02
_PROC: Final = Path("/proc")


class ProcessKind(Enum):
    """Roles of the processes of a Spark program."""

    DRIVER = "driver"
    JVM = "JVM"
    PLANNER = "planner"
    WORKER = "worker"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FoundProcess:
    """One running process."""

    pid: int
    kind: ProcessKind
    command: str


def kind_of(command: str) -> ProcessKind:
    """Return the role of a process, by its command line."""
    if "pyspark.daemon" in command or "penstock.spark.daemon" in command:
        # These processes run the tasks of executors; the other daemons only handle options and plans.
        return ProcessKind.WORKER if command.rstrip().endswith("pyspark.worker") else ProcessKind.OTHER
    if "python_streaming_source_runner" in command:
        return ProcessKind.PLANNER
    if "penstock_demo.query" in command:
        return ProcessKind.DRIVER
    if "org.apache.spark.deploy.SparkSubmit" in command:
        return ProcessKind.JVM
    return ProcessKind.OTHER


def find_processes(session: int) -> list[FoundProcess]:
    """Return the running processes of a session, in no order, without those that have ended.

    Args:
        session: Process id of the session's first process, which may have ended.
    """
    listed = _list_proc() if _PROC.joinpath("self", "stat").exists() else _list_ps()
    found = []
    for pid, command in listed:
        # It may end between being listed and being asked.
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == session:
                found.append(FoundProcess(pid, kind_of(command), command))
    return found


def _list_proc() -> list[tuple[int, str]]:
    listed = []
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            state = (folder / "stat").read_text(errors="replace").rpartition(") ")[2][:1]
            if state not in ("Z", "X"):  # ended, but not reaped
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                listed.append((int(folder.name), command))
    return listed


def _list_ps() -> list[tuple[int, str]]:
    shown = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,stat=,command="],
        check=True,
        capture_output=True,
        text=True,
        timeout=10,
    ).stdout
    lines = [line.split(None, 2) for line in shown.splitlines()]
    return [(int(line[0]), line[2]) for line in lines if len(line) == 3 and not line[1].startswith("Z")]


def kill_process(pid: int) -> bool:
    """Send SIGKILL; False when the process had ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_session(session: int, deadline_s: float = _KILL_DEADLINE_S) -> int:
    """Kill every process of a session, also those that are born meanwhile, and wait until none is left.

    Returns:
        How many were killed.

    Raises:
        PenstockError: Some are left when the time is over.
    """
    end_s = time.monotonic() + deadline_s
    killed: set[int] = set()
    while found := find_processes(session):
        killed.update(each.pid for each in found if kill_process(each.pid))
        if time.monotonic() > end_s:
            left = ", ".join(f"{each.pid} ({each.command[:60].strip()})" for each in found)
            raise PenstockError(f"processes are left {deadline_s:g} s after SIGKILL: {left}")
        time.sleep(_POLL_S)
    return len(killed)
