"""A worker of an application as a process, and what it prints: of the KCL or of Penstock."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from company_checks import Began, Processed
from counterparts import Counterpart, environment

from penstock.core.position import parse_checkpoint
from penstock_local import Handle

WAIT_S = 240.0


class WorkerProcess:
    """A running worker; a context manager that ends it.

    Args:
        counterpart: Its program.
        server: What it speaks to.
        tmp_path: Where it may write.
        name: Of the worker.
        stream: What it reads.
        application: For whom.
        more: Further arguments of the program.
        java: Options of its Java machine.

    Attributes:
        did: The shards that it began and the records that it processed, in its order.
        last_line: What it printed last.
    """

    def __init__(
        self,
        counterpart: Counterpart,
        server: Handle,
        tmp_path: Path,
        name: str,
        stream: str,
        application: str,
        *more: str,
        java: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.did: list[Began | Processed] = []
        self.last_line = ""
        self._log = tmp_path / f"{name}.log"
        folder = tmp_path / name
        folder.mkdir()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                counterpart.line(server, folder, stream, application, name, *more, java=java),
                env=environment(server, folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            if not line.endswith("\n"):
                break  # cut off by a kill
            match line.split():
                case ["begin", shard, place, sub]:
                    self.did.append(Began(shard, parse_checkpoint(place, int(sub))))
                case ["record", shard, number, sub, key, data]:
                    self.did.append(Processed(shard, int(number), int(sub), key, data))
                case ["stopped"] | ["runs", "on"]:
                    pass
                case _:
                    raise ValueError(f"{self.name} printed {line!r}")
            self.last_line = line.strip()

    @property
    def records(self) -> list[Processed]:
        """What it processed."""
        return [each for each in self.did if isinstance(each, Processed)]

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something is true; fails with the end of the worker's log."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert self.is_alive, self.log()
            assert time.monotonic() < deadline_s, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        return self._log.read_text()[-6000:]

    def stop(self) -> None:
        """Let it stop in order."""
        self._process.stdin.close()
        self.wait()

    def kill(self) -> None:
        """End it at once (SIGKILL), and read what it had printed."""
        self._process.kill()
        self._process.wait()
        self._reader.join(WAIT_S)

    def wait(self) -> None:
        """Wait until it ends by itself; fails with the end of the worker's log."""
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(
                f"{self.name} runs after {WAIT_S:g} s; its last line was {self.last_line!r}:\n{self.log()}"
            )
        self._reader.join(WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill it if it lives, and let go of it."""
        self.kill()
        self._process.stdin.close()
        self._process.stdout.close()
