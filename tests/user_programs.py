"""Programs of users in processes of their own: started, signalled, and read by the lines that they print."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from penstock.core.aggregation import deaggregate
from waiting import DEADLINE_S, wait_until

# One write for each line: shards have threads of their own.
CONSUMER = r"""
    import logging

    from penstock import Consumer

    logging.basicConfig(level="INFO")

    def handle(batch):
        for record in batch:
            print(record.data.decode() + "\n", end="", flush=True)

    Consumer(stream="orders", application="billing", handler=handle, starting_position="TRIM_HORIZON").run()
"""
"""The program of most stories: it prints the text of each record."""


class Program:
    """One process.

    Args:
        arguments: The command line behind `python`.
        folder: Where it runs, and where its output is kept in files.
        name: Of the files.
        environ: Its environment, whole.
        stdin: What it reads; an open file or `subprocess.PIPE`.
    """

    def __init__(self, arguments, *, folder: Path, name: str, environ, stdin=subprocess.DEVNULL) -> None:
        self.name = name
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, *arguments], stdin=stdin, stdout=out, stderr=err, cwd=folder, env=environ
            )

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def lines(self) -> list[str]:
        """Return the whole lines that were printed to stdout."""
        return self._out.read_text(encoding="utf-8").split("\n")[:-1]

    def log(self) -> str:
        """Return what was written to stderr."""
        return self._err.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> None:
        """Wait until the output or the log has a text; fail at once when the program ends without it."""

        def has_it() -> bool:
            is_running = self.is_running  # asked first: what was written before the end counts
            found = text in self._out.read_text(encoding="utf-8") or text in self.log()
            assert found or is_running, f"{self.name} ended without {text!r}:\n{self.log()}"
            return found

        wait_until(has_it, f"{text!r} of {self.name}")

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for the end; return the exit code."""
        return self.process.wait(deadline_s)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def terminate(self) -> int:
        """End it as a deploy does, by SIGTERM; return the exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def end(self) -> None:
        """End it by force, if it still runs."""
        if self.is_running:
            self.process.kill()
            self.process.wait()


class Programs:
    """The programs of one story. All are ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Program] = []

    def start(
        self, text: str, *arguments: str, name: str, stdin=subprocess.DEVNULL, **environ: str
    ) -> Program:
        """Start a program given as text, with the environment of the test and more."""
        path = self.folder / f"{name}.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return self._start([str(path), *arguments], name, stdin, environ)

    def penstock(self, *arguments: str, name: str, stdin=subprocess.DEVNULL, **environ: str) -> Program:
        """Start a command of `penstock`."""
        return self._start(["-m", "penstock", *arguments], name, stdin, environ)

    def _start(self, arguments, name: str, stdin, environ) -> Program:
        activated = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        environ = {**os.environ, **activated, **environ}
        program = Program(arguments, folder=self.folder, name=name, environ=environ, stdin=stdin)
        self.started.append(program)
        return program

    def printed(self) -> Counter[str]:
        """Count the lines that all programs of the story have printed."""
        names = {program.name: program for program in self.started}
        return Counter(line for program in names.values() for line in program.lines())

    def wait_for_lines(self, count: int) -> None:
        """Wait until so many different lines were printed."""
        names = sorted({program.name for program in self.started})
        wait_until(lambda: len(self.printed()) >= count, f"{count} lines, in all of {names}")

    def wait_for(self, orders: Orders) -> None:
        """Wait until all orders were printed."""
        self.wait_for_lines(len(orders.texts))

    def end(self) -> None:
        for program in self.started:
            program.end()


class Orders:
    """What the customers of a story put, by boto3, as an application that knows nothing of Penstock.

    Args:
        kinesis: The server.
        stream: By name.
    """

    def __init__(self, kinesis, stream: str = "orders") -> None:
        self._client = kinesis.client("kinesis")
        self._stream = stream
        self.texts: list[str] = []

    def put(self, count: int) -> None:
        """Put so many more; each of a customer of its own."""
        new = [f"order {number}" for number in range(len(self.texts), len(self.texts) + count)]
        for begin in range(0, count, 500):
            records = [{"Data": text.encode(), "PartitionKey": text} for text in new[begin : begin + 500]]
            answer = self._client.put_records(StreamName=self._stream, Records=records)
            assert answer["FailedRecordCount"] == 0
        self.texts += new

    def put_until(self, is_true, what: str) -> None:
        """Go on putting until something has happened."""

        def is_done():
            self.put(5)
            return is_true()

        wait_until(is_done, what)


def once(orders: Orders) -> dict[str, int]:
    """Return the count of lines in which each order was printed exactly once."""
    return dict.fromkeys(orders.texts, 1)


class StreamRecord(NamedTuple):
    data: bytes
    partition_key: str
    shard_id: str


def all_records(kinesis, stream: str) -> list[StreamRecord]:
    """Return every record that a stream holds, in the order of each shard, read by boto3 alone; aggregates are opened."""
    client = kinesis.client("kinesis")
    found = []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        position = {"ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = client.get_shard_iterator(StreamName=stream, **position)["ShardIterator"]
        while iterator is not None:
            page = client.get_records(ShardIterator=iterator)
            for record in page["Records"]:
                parts = deaggregate(record["Data"])
                if parts is None:
                    found.append(StreamRecord(record["Data"], record["PartitionKey"], shard["ShardId"]))
                else:
                    found += [StreamRecord(part.data, part.partition_key, shard["ShardId"]) for part in parts]
            iterator = (
                page.get("NextShardIterator") if page["MillisBehindLatest"] or page["Records"] else None
            )
    return found
