"""The Spark program as a process: started, watched, killed, started again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

TAIL_LINES: Final = 25


class Driver:
    """One Spark driver process at a time, with its own process group.

    Args:
        work: The demo's folder.
        environ: Where the embedded Kinesis is.
        records_per_trigger: Limit of one batch.
    """

    def __init__(self, work: Path, environ: Mapping[str, str], records_per_trigger: int) -> None:
        self._work = work
        self._environ = {
            **os.environ,
            **environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        self._per_trigger = records_per_trigger
        self._process: subprocess.Popen[str] | None = None
        self.start_count = 0
        self.batch_rows: dict[tuple[str, int], int] = {}
        self.lag_ms = 0
        self.failure: str | None = None
        self.is_started = False

    def start(self) -> None:
        """Start the process; its status lines are read by a thread."""
        self.start_count += 1
        self.is_started = False
        self.failure = None
        with (self._work / "spark.log").open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, our own arguments
                [sys.executable, "-m", "penstock.cli.flights.query", str(self._work), str(self._per_trigger)],
                env=self._environ,
                cwd=self._work,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self._process,), name="demo-driver", daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is None:
            return
        for text in process.stdout:
            try:
                line: dict[str, Any] = json.loads(text)
            except ValueError:
                continue  # something else that Spark printed
            if "started" in line:
                self.is_started = True
            elif "failed" in line:
                self.failure = f"query {line['failed']}: {line['error']}"
            elif "query" in line:
                self.batch_rows[(line["query"], line["batch"])] = line["rows"]
                self.lag_ms = line["lag_ms"]

    @property
    def read_count(self) -> int:
        """Events that finished batches of the first query held."""
        return sum(rows for (query, _), rows in self.batch_rows.items() if query == "events")

    @property
    def returncode(self) -> int | None:
        """How the process ended, or None while it runs."""
        return None if self._process is None else self._process.poll()

    def is_in_a_batch(self, query: str = "events") -> bool:
        """Whether a batch is planned and not finished: its offset is logged and its commit is not."""
        folder = self._work / "checkpoints" / query
        return _last(folder / "offsets") > _last(folder / "commits")

    def kill(self) -> None:
        """Kill the process and everything that it started, as a machine that loses power would."""
        process = self._process
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)

    def kill_part(self, chance: random.Random) -> str:
        """Kill one process of the driver's family, or all of it.

        Returns:
            What was killed, for the log.
        """
        family = _family(self._process.pid) if self._process is not None else {}
        kinds = {
            "the Spark driver": "java",
            "a reader process": "python_streaming_source_runner",
            "the Python workers": "pyspark.daemon",
        }
        found = {name: [pid for pid, text in family.items() if word in text] for name, word in kinds.items()}
        choices = [name for name, pids in found.items() if pids]
        choice = chance.choice([*choices, "everything"])
        if choice == "everything":
            self.kill()
            return choice
        for pid in found[choice][:1]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return choice

    def wait(self, timeout_s: float) -> int:
        """Wait for the process's own end."""
        return 0 if self._process is None else self._process.wait(timeout=timeout_s)

    def log_tail(self) -> str:
        """Give the last lines of Spark's log."""
        log = self._work / "spark.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join(lines[-TAIL_LINES:])


def _last(folder: Path) -> int:
    if not folder.exists():
        return -1
    return max((int(file.name) for file in folder.iterdir() if file.name.isdigit()), default=-1)


def _family(root: int) -> dict[int, str]:
    """Give the command lines of a process's descendants."""
    parents: dict[int, int] = {}
    texts: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            texts[int(folder.name)] = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile
    family = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        if not more:
            return {pid: texts[pid] for pid in family if pid in texts and pid != root}
        family |= more
