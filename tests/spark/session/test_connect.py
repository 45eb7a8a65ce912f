"""Through Spark Connect: the client has no JVM, so everything must work without one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_demo.processes import kill_session
from spark_support import numbered, put


def free_port():
    """Return a port outside the range of free ones that others get, because the server opens it seconds later."""
    for port in random.sample(range(15_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    pytest.fail("no free port")


@contextlib.contextmanager
def connect_server(folder, environ):
    """Start a server on a free port of loopback; gives its address."""
    port = free_port()
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("connect_server.py")), str(folder), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environ,
            start_new_session=True,
        )
    try:
        assert server.stdout.readline() == "ready\n", (folder / "server.log").read_text()[-3000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        kill_session(server.pid)
        server.wait(30)
        server.stdin.close()
        server.stdout.close()


@pytest.mark.timeout(400)
def test_source_sink_lag_report_and_alignment_work_through_connect(kinesis, stream, client, tmp_path):
    copy = f"copy-of-{stream}"
    kinesis.create_stream(copy, shards=3)
    put(client, stream, numbered(0, 200))
    environ = {
        **os.environ,
        **kinesis.environ(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with connect_server(tmp_path, environ) as remote:
        program = Path(__file__).with_name("connect_program.py")
        done = subprocess.run(
            [sys.executable, str(program), remote, str(tmp_path), kinesis.endpoint_url, stream, copy],
            capture_output=True,
            text=True,
            timeout=360,
            env=environ,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["copied"], told["read"], told["behind"]) == (200, 500, 0)
    assert "sink_report(query, checkpoint_location=...)" in told["asked"]
    assert told["session"].startswith("pyspark.sql.connect")
