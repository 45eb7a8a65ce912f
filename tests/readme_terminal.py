"""A terminal in which the README's blocks are run, in their order, and what the text says that they print."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from docs_blocks import shows

DEADLINE_S = 240.0
TOO_BUSY = "Python worker failed to connect back"
_STARTS_MAX = 3


class Terminal:
    """A shell in a folder, in which `penstock` and `python` are those of an environment.

    `penstock local` gets a free port, since another server may have the default one.

    Args:
        folder: Where the shell works.
        python: The environment's Python.
        pip: What `pip` does. By default nothing: all that the README installs is in this environment.
    """

    def __init__(self, folder: Path, python: str = sys.executable, pip: str = "exit 0") -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        tools = folder / "bin"
        tools.mkdir()
        self._tool(tools / "python", f'exec {python} "$@"')
        self._tool(tools / "pip", pip)
        self._tool(
            tools / "penstock",
            f'if [ "$1" = local ]; then set -- "$@" --port {port}; fi\nexec {python} -m penstock "$@"',
        )
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.environ = {
            **environ,
            "PATH": f"{tools}:{environ['PATH']}",
            "TMPDIR": str(folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONUNBUFFERED": "1",
        }
        self._exports = ""
        self.running: list[Program] = []

    @staticmethod
    def _tool(path: Path, text: str) -> None:
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def run(self, script: str) -> str:
        """Run a block to its end; what it exports counts for the next ones."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{self._exports}\n{script}\nexport -p > exports"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            cwd=self.folder,
            env=self.environ,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        self._exports = (self.folder / "exports").read_text()
        return done.stdout

    def start(self, script: str) -> Program:
        """Start a block that runs until Ctrl-C."""
        self.running.append(Program(f"{self._exports}\n{script}", self.folder, self.environ))
        return self.running[-1]

    def start_spark(self, script: str, expected: str) -> Program:
        """Start a Spark program and wait for what it prints; once more where the machine was too busy, as the text says."""
        for _ in range(_STARTS_MAX):
            program = self.start(script)
            if program.has_shown(expected):
                return program
            assert TOO_BUSY in program.said, program.said
        pytest.fail(f"{TOO_BUSY}, {_STARTS_MAX} times")


class Program:
    """A block that runs until Ctrl-C; what it prints is kept."""

    def __init__(self, script: str, folder: Path, environ: dict[str, str]) -> None:
        self.said = ""
        self._process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=environ,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self.said += line

    def wait_for(self, expected: str) -> None:
        """Wait until it has printed what a text block shows."""
        assert self.has_shown(expected), self.said

    def wait_for_all(self, lines: list[str]) -> None:
        """Wait until it has printed these lines, in any order."""
        assert self._waited(lambda: set(lines) <= set(self.said.splitlines()), "\n".join(lines)), self.said

    def has_shown(self, expected: str) -> bool:
        """Wait until it has printed what a text block shows, or has ended."""
        return self._waited(lambda: shows(self.said, expected), expected)

    def _waited(self, has_it: Callable[[], bool], expected: str) -> bool:
        end_s = time.monotonic() + DEADLINE_S
        while not has_it():
            if self._process.poll() is not None:
                self._reader.join(DEADLINE_S)
                return has_it()
            assert time.monotonic() < end_s, f"waited for\n{expected}\nand saw\n{self.said}"
            time.sleep(0.05)
        return True

    def interrupt(self) -> int:
        """Press Ctrl-C, which everything in the terminal sees; return the exit status."""
        os.killpg(self._process.pid, signal.SIGINT)
        status = self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        self._process.stdout.close()
        return status

    def kill(self) -> None:
        """End it whatever it does."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(DEADLINE_S)
            self._reader.join(DEADLINE_S)
            self._process.stdout.close()


def run_readme(terminal: Terminal, texts: list[str]) -> None:
    """Run the README's blocks for a terminal: quick start, Spark program, plain Python, and a new stream."""
    _, serve, shell, shown, pipeline, start, batch, create, _, plain, printed = texts

    terminal.start(serve).wait_for("# Streams: orders (2 shards).")
    assert shows(terminal.run(shell), shown)

    checkpoint = str(terminal.folder / "checkpoint")
    (terminal.folder / "pipeline.py").write_text(pipeline.replace("/tmp/orders-checkpoint", checkpoint))
    program = terminal.start_spark(start, batch)
    assert program.interrupt() == 0, program.said
    assert "KeyboardInterrupt" not in program.said

    (terminal.folder / "plain.py").write_text(plain)
    program = terminal.start("exec python plain.py")
    program.wait_for(printed)
    assert program.interrupt() == 0, program.said
    assert "Traceback" not in program.said

    assert terminal.run(create) == "billed is being created; 1 shard will be billed\n"
