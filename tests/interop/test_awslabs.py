"""awslabs' Spark connector reads a stream that Penstock wrote, and a query of Penstock goes on from the positions that it saved.

No registry has its jar: build it from its repository (`mvn package -DskipTests`) and name it, with what it needs beside
Spark, in PENSTOCK_AWSLABS_JARS (paths, separated by commas), for the Spark that it was built for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from counterparts import HERE, RUN_TIMEOUT_S, environment

from penstock import Producer
from penstock_local import Handle, LocalKinesis

JARS = os.environ.get("PENSTOCK_AWSLABS_JARS", "")
COUNT = 600

pytestmark = pytest.mark.skipif(
    not JARS, reason="PENSTOCK_AWSLABS_JARS names no jars of awslabs' connector, and no registry has them"
)


def put(server: Handle, start: int, end: int) -> list[list[str]]:
    """Write records with Penstock's producer, in aggregates; returns (key, data) of each."""
    rows = [[f"key-{number % 20}", f"{number}"] for number in range(start, end)]
    keys = {"access_key_id": "local", "secret_access_key": "local"}
    options = {"region": server.region, "endpoint_url": server.endpoint_url, "connection": keys}
    with Producer("numbers", force_aggregation=True, **options) as producer:
        for key, data in rows:
            producer.put(data.encode(), key)
    return rows


def read(server: Handle, connector: str, folder: Path, count: int) -> list[list[str]]:
    """Let a connector read until it has so many records; returns what it read."""
    more = {"PENSTOCK_AWSLABS_JARS": JARS, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "awslabs" / "read.py"), connector, str(folder), str(count)],
        env={**environment(server, folder), **more},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return [json.loads(line) for line in (folder / f"{connector}.jsonl").read_text().splitlines()]


def test_it_reads_what_penstock_wrote_and_penstock_goes_on_where_it_stopped(tmp_path):
    with LocalKinesis(limits=False, settle_s=0) as server:
        server.create_stream("numbers", shards=3)
        first = put(server, 0, COUNT)
        assert sorted(read(server, "awslabs", tmp_path, COUNT)) == sorted(first)
        second = put(server, COUNT, 2 * COUNT)
        assert sorted(read(server, "penstock", tmp_path, COUNT)) == sorted(second)
