"""The programs of docs/queues.md, in order, on an embedded Kinesis."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("httptools")

from docs_blocks import run_blocks
from penstock_local import LocalKinesisProcess
from queue_rig import knows_queues
from waiting import wait_until

pytestmark = knows_queues
PAGE = "docs/queues.md"


@contextlib.contextmanager
def program(text, folder, environ, name):
    out = folder / f"{name}.out"
    with out.open("w") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-uc", text], stdout=stdout, stderr=stdout, env=environ, cwd=folder
        )
    try:
        try:
            yield out
        except AssertionError as error:
            raise AssertionError(f"{error}; it printed: {out.read_text()}") from error
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.wait(60)
    assert process.returncode == 0, out.read_text()


def test_the_programs_of_the_page(tmp_path):
    shell, handled, pulled, memory, asynchronous, tested = run_blocks(PAGE)
    folder = os.path.dirname(sys.executable)  # noqa: PTH120 - beside the interpreter, links not followed
    with LocalKinesisProcess() as server:
        environ = {**os.environ, **server.environ(), "PATH": f"{folder}:{os.environ['PATH']}"}
        lines = [line for line in shell.splitlines() if not line.startswith("eval ")]
        subprocess.run(["bash", "-ec", "\n".join(lines)], env=environ, check=True, timeout=120)
        with program(handled, tmp_path, environ, "handled") as out:
            wait_until(lambda: "b'invoice 1' 1" in out.read_text(), "the first record")
        with program(pulled, tmp_path, environ, "pulled") as out:
            subprocess.run(["bash", "-ec", lines[-1]], env=environ, check=True, timeout=120)
            wait_until(lambda: "b'invoice 1'" in out.read_text(), "the second record")

        memory = f"{memory}\nconsumer.run()"
        with program(memory, tmp_path, environ, "memory") as out:
            subprocess.run(["bash", "-ec", lines[-1]], env=environ, check=True, timeout=120)
            wait_until(lambda: "b'invoice 1'" in out.read_text(), "the record with a durable memory")
            wait_until(lambda: server.client("dynamodb").scan(TableName="finished")["Count"])

        def counts():
            queue = server.state()["streams"]["orders"]["queues"]["invoices"]
            return queue["visible"] + queue["in_flight"]

        with program(asynchronous, tmp_path, environ, "asynchronous"):
            subprocess.run(["bash", "-ec", lines[-1]], env=environ, check=True, timeout=120)
            wait_until(lambda: server.calls().count("AcknowledgeQueueRecords") >= 4)
            wait_until(lambda: counts() == 0)
    subprocess.run([sys.executable, "-c", tested], check=True, timeout=120)
