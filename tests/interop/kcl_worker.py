"""A worker of the KCL as a process, and the records that it prints."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from counterparts import Counterpart, environment

from penstock.local import Handle

WAIT_S = 150.0


class Printed(NamedTuple):
    """A record as the worker printed it."""

    shard: str
    key: str
    data: str


class KclWorker:
    """A running worker; a context manager that ends it.

    Args:
        counterpart: Its program.
        server: What it speaks to.
        tmp_path: Where it may write.
        name: Of the worker.
        stream: What it reads.
        application: For whom.
    """

    def __init__(
        self,
        counterpart: Counterpart,
        server: Handle,
        tmp_path: Path,
        name: str,
        stream: str,
        application: str,
    ) -> None:
        self.records: list[Printed] = []
        self.last_line = ""
        self._log = tmp_path / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                counterpart.line(server, tmp_path, stream, application, name),
                env=environment(server, tmp_path),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            kind, *rest = line.split()
            if kind == "record":
                self.records.append(Printed(*rest))
            self.last_line = line.strip()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something is true; fails with the end of the worker's log."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline_s, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        return self._log.read_text()[-6000:]

    def stop(self) -> None:
        """Let it stop in order."""
        self._process.stdin.close()
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(WAIT_S)
        self._process.stdin.close()
        self._process.stdout.close()
