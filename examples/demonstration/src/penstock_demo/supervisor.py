"""Run the Spark program in a separate process: start, watch, kill, restart, end it.

Spark's output goes to a log file; the program's own lines (one JSON document each) are read from a pipe.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.errors import PenstockError
from penstock_demo.processes import FoundProcess, ProcessKind, find_processes, kill_session
from penstock_demo.query import QuerySettings

_LOG_TAIL_LINES: Final = 40
_POLL_S: Final = 0.05
_SPARK_ENVIRON: Final = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


class QueryProcess:
    """The program, through all its lives. Used by one thread; status lines are handled on another.

    Args:
        settings: Of the program.
        environ: Environment variables beside this process's own.
        log_path: Where Spark's log goes; every life appends.
        on_status: Called with each status line, on a thread of this object.
    """

    def __init__(
        self,
        settings: QuerySettings,
        environ: Mapping[str, str],
        log_path: Path,
        on_status: Callable[[dict[str, Any]], None],
    ) -> None:
        self._settings = settings
        self._environ = dict(environ)
        self._log_path = log_path
        self._on_status = on_status
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.start_count = 0
        self.command: tuple[str, ...] = (
            sys.executable,
            "-m",
            "penstock_demo.query",
            settings.to_text(),
        )
        self.has_started = threading.Event()

    @property
    def session(self) -> int:
        """The session that all its processes share."""
        if self._process is None:
            raise PenstockError("the query was not started")
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status, None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it, or start it again; returns at once."""
        self.has_started.clear()
        with self._log_path.open("a") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,  # closes when this process ends, which ends the program
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._environ, **_SPARK_ENVIRON},
                text=True,
                start_new_session=True,
            )
        self.start_count += 1
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def processes(self, kind: ProcessKind) -> list[FoundProcess]:
        """Return its running processes of a kind."""
        return [each for each in find_processes(self.session) if each.kind is kind]

    def kill(self) -> None:
        """Kill every process of it at once, as a machine that loses its power; returns when all are gone."""
        if self._process is None:
            return
        kill_session(self._process.pid)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._reader is not None:
            self._reader.join()

    def wait_for_end(self, deadline_s: float, what: str) -> int:
        """Wait until it has ended by itself.

        Args:
            deadline_s: For how long.
            what: Names the awaited end in the error.

        Raises:
            PenstockError: It runs still.
        """
        end_s = time.monotonic() + deadline_s
        while (status := self.status) is None:
            if time.monotonic() > end_s:
                raise PenstockError(f"waited {deadline_s:g} s for {what}{self.log_tail()}")
            time.sleep(_POLL_S)
        return status

    def end(self, deadline_s: float) -> None:
        """Ask it to end and wait for it.

        Raises:
            PenstockError: It failed, or did not end in time; the end of Spark's log is in the message.
        """
        self._settings.stop_file.touch()
        status = self.wait_for_end(deadline_s, "the query to end")
        if status != 0:
            raise PenstockError(f"the query ended with status {status}{self.log_tail()}")
        self.kill()  # nothing should be left; if something is, it does not outlive the demonstration

    def log_tail(self) -> str:
        """Return the end of Spark's log, to follow a message; Java's frames are left out."""
        with self._log_path.open(errors="replace") as log:
            lines = deque((line for line in log if not line.startswith("\tat ")), _LOG_TAIL_LINES)
        return f"\nThe end of {self._log_path}:\n{''.join(lines)}"

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if not line.endswith("\n"):
                    return  # cut off by a kill
                document = json.loads(line)
                if "started" in document:
                    self.has_started.set()
                else:
                    self._on_status(document)
