"""The recipes of docs/lakehouse.md, killed between the write of a batch and Spark's commit: the table has each record once.

They need the jars of Delta Lake and Iceberg, which are fetched into build/lakehouse, and a Spark for which there are some:
`make test-lakehouse` has both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import __version__ as spark_version

from lake_jars import CENTRAL, JARS, may_have
from lake_recipes import LAKES, RECIPES, packages
from penstock_demo.processes import kill_session
from penstock_demo.resharding import split_shard
from penstock_local import LocalKinesisProcess
from spark_support import numbered, put, wait_active
from waiting import wait_until

PROGRAM = Path(__file__).with_name("program.py")
SPARK_LINE = ".".join(spark_version.split(".")[:2])
STREAM = "orders"
WAYS = tuple(RECIPES["delta"])
DEADLINE_S = 240.0
FIRST, SECOND, LAST = 300, 450, 700
"""Records before the start, before the kill, and in the end."""
_CONFIGURATION = {
    "spark.jars.ivy": JARS,
    "spark.master": "local[2,4]",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}


class Program:
    """A lake's recipes in a folder that stands for the bucket; a session of its own, so that all of it can be killed."""

    def __init__(self, lake, folder, server):
        self._lake, self._server, self.folder = lake, server, folder
        self._process = None
        for name in ("conf", "written"):
            folder.joinpath(name).mkdir()
        lines = [f"{key} {value}\n" for key, value in _CONFIGURATION.items()]
        folder.joinpath("conf", "spark-defaults.conf").write_text("".join(lines))

    def start(self, *task):
        words = [str(PROGRAM), str(self.folder), self._lake, *map(str, task)]
        with (self.folder / "spark.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    **self._server.environ(),
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_CONF_DIR": str(self.folder / "conf"),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                cwd=self.folder,
                start_new_session=True,
            )

    def wait_for(self, is_true, what):
        wait_until(lambda: is_true() or self._process.poll() is not None, what, DEADLINE_S)
        assert self._process.poll() is None, f"the program ended before {what}:\n{self.log()}"

    def end(self):
        assert self._process.wait(DEADLINE_S) == 0, self.log()

    def kill(self):
        """Kill driver, planners and tasks."""
        if self._process is not None:
            kill_session(self._process.pid)
            self._process.wait()
            self._process.stdin.close()

    def log(self):
        return (self.folder / "spark.log").read_text(errors="replace")[-4000:]

    def checkpoint(self, way, folder):
        return self.folder / "checkpoints" / way / folder

    def noted(self, way, folder):
        """Return the numbers of the batches in a folder of a checkpoint location."""
        return {int(path.name) for path in self.checkpoint(way, folder).glob("*") if path.name.isdigit()}

    def held(self, way):
        """Return the number of the batch in which a function for `foreachBatch` is held; None before that."""
        path = self.folder / "written" / way
        return int(path.read_text() or 0) if path.exists() else None

    def batches_of_sink(self):
        """Return the numbers of the batches that the table's own log has, as the sink writes it."""
        table = self.folder / "lake" / "sink" / "orders"
        if self._lake == "delta":
            lines = [
                line for path in table.glob("_delta_log/*.json") for line in path.read_text().splitlines()
            ]
            found = [json.loads(line).get("txn", {}).get("version") for line in lines]
        else:
            tables = [json.loads(path.read_text()) for path in table.glob("metadata/*.metadata.json")]
            summaries = [each["summary"] for one in tables for each in one.get("snapshots", [])]
            found = [summary.get("spark.sql.streaming.epochId") for summary in summaries]
        return {int(each) for each in found if each is not None}


@pytest.fixture
def server():
    with LocalKinesisProcess(limits=False, settle_s=0) as running:
        yield running


@pytest.fixture
def program(request, server, tmp_path):
    coordinates = packages(SPARK_LINE).get(request.param)
    if coordinates is None:
        pytest.skip(
            f"no {request.param} for Spark {SPARK_LINE} yet: make test-lakehouse takes a line that has one"
        )
    if not may_have(coordinates):
        pytest.skip(f"the jars of {coordinates} are not in {JARS}, and {CENTRAL} cannot be reached")
    made = Program(request.param, tmp_path, server)
    yield made
    made.kill()


def kill_between_write_and_commit(program, client):
    """Kill when each table has a second batch, and Spark has noted none of them as done; return their numbers.

    The functions for `foreachBatch` do not come back. Where the sink's query notes its batches, a file is in the way.
    """
    program.start("hold")
    for way in WAYS:
        # the last file that Spark writes of a batch
        program.wait_for(program.checkpoint(way, "commits/.0.crc").exists, f"the first batch of {way}")
    commits, away = program.checkpoint("sink", "commits"), program.checkpoint("sink", "commits-away")
    commits.rename(away)
    commits.touch()
    put(client, STREAM, numbered(FIRST, SECOND))
    for way in WAYS[1:]:
        program.wait_for(lambda way=way: program.held(way), f"the second batch of {way}")
    program.wait_for(
        lambda: program.batches_of_sink() - program.noted("sink", "commits-away"), "the sink's second batch"
    )
    program.kill()
    commits.unlink()
    away.rename(commits)
    return {"sink": max(program.batches_of_sink()), **{way: program.held(way) for way in WAYS[1:]}}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", LAKES, indirect=True)
def test_a_record_is_in_the_table_once_though_the_driver_was_killed_before_spark_noted_the_batch(
    program, server
):
    client = server.client()
    server.create_stream(STREAM, shards=2)
    put(client, STREAM, numbered(0, FIRST))
    batches = kill_between_write_and_commit(program, client)
    for way, batch in batches.items():
        assert batch in program.noted(way, "offsets") - program.noted(way, "commits"), way

    split_shard(client, STREAM, 0)
    wait_active(client, STREAM)
    put(client, STREAM, numbered(SECOND, LAST))
    program.start("read", LAST)
    program.end()
    told = json.loads((program.folder / "rows.json").read_text())
    for way, batch in batches.items():
        assert batch in program.noted(way, "commits"), way
    assert told["offered again"] >= LAST, "with a new checkpoint location all of the stream is merged again"
    for way in (*WAYS, "again"):
        assert sorted((key, data) for *_, key, data in told[way]) == sorted(numbered(0, LAST)), way
        assert len({(shard, number, sub) for shard, number, sub, *_ in told[way]}) == LAST, way
