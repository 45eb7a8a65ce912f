"""Through Spark Connect: the client has no JVM at hand, so everything must go without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_support import numbered, put

pytestmark = pytest.mark.spark


@pytest.mark.timeout(240)
def test_source_sink_lag_report_and_alignment_work_through_connect(kinesis, stream, client, tmp_path):
    copy = f"copy-of-{stream}"
    kinesis.create_stream(copy, shards=3)
    put(client, stream, numbered(0, 200))
    program = Path(__file__).with_name("connect_program.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path), kinesis.endpoint_url, stream, copy],
        capture_output=True,
        text=True,
        timeout=220,
        env={
            **os.environ,
            **kinesis.environ(),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["copied"], told["read"], told["behind"]) == (200, 500, 0)
    assert "sink_report(query, checkpoint_location=...)" in told["asked"]
    assert told["session"].startswith("pyspark.sql.connect")
