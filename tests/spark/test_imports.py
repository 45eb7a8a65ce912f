"""Modules of Penstock that Spark's short-lived processes load or must not load: each new process pays for them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NOT_FOR_TASKS = (
    "boto3",
    "google.protobuf",
    "penstock.aws.cloudwatch_metrics",
    "penstock.aws.object_lease_table",
    "penstock.aws.s3_objects",
    "penstock.cli",
    "penstock.consumer",
    "penstock.core.leases.balance",
    "penstock.core.leases.coordinator",
    "penstock_local",
    "penstock.producer.engine",
    "penstock.producer.producer",
    "penstock_sim",
    "penstock.spark.batch",
    "penstock.spark.driver.planner",
    "penstock.spark.driver.query_worker",
)
ONLY_FOR_WRITES = ("penstock.core.writing", "penstock.producer", "penstock.spark.sink.row_writer")
ONLY_FOR_READS = (
    "penstock.aws.lease_table",
    "penstock.spark.tasks.claimed_read",
    "penstock.spark.tasks.shard_page_reader",
)
ONLY_FOR_CALLS = ("botocore", "penstock.aws.connection", "penstock.aws.kinesis", "penstock.wiring")

OPEN = """
from penstock.aws.connection import client_for
from penstock.wiring import open_kinesis, open_lease_table
from penstock.spark.options.spark_options import parse_sink, parse_source
given = {"streamName": "s", "region": "us-east-1", "endpointUrl": "http://127.0.0.1:9", "awsAccessKeyId": "a",
         "awsSecretKey": "b"}
"""
READ = """
from penstock.spark.batch_planning import OneStream
from penstock.spark.stream_reader import KinesisStreamReader
options = parse_source(given)[0]
KinesisStreamReader(OneStream(options))
open_kinesis(options.connection), open_lease_table("leases", options.connection)
client_for("kinesis", options.connection), client_for("dynamodb", options.connection)
"""
WRITE = """
from penstock.spark.sink.writers import KinesisStreamWriter
options = parse_sink(given)[0]
KinesisStreamWriter(options, ("data", "partitionKey", "", "")).write(iter(()))
open_kinesis(options.connection), client_for("kinesis", options.connection)
"""
COMMIT = """
import pickle
from penstock.spark.sink.writers import KinesisCommitMessage, KinesisStreamWriter
from penstock.spark.options.spark_options import parse_sink
options = parse_sink({"streamName": "s", "checkpointLocation": FOLDER})[0]
writer = pickle.loads(pickle.dumps(KinesisStreamWriter(options, ("data", "partitionKey", "", ""))))
writer.commit([KinesisCommitMessage()], 0)
"""


PAGE = """
from penstock.aws.data_plane import WireRecord
from penstock.core.aggregation import AggregateBuilder
from penstock.spark.tasks.arrow_records import records_to_slices
builder = AggregateBuilder()
builder.add(b"first", "k", None)
builder.add(b"second", "other", "17")
plain, aggregate = WireRecord("1", b"plain", "key", 1.5), WireRecord("2", builder.build().data, "key", 1.75)
for page in ([plain], [plain, aggregate]):
    [(rows, count)] = records_to_slices("s", "shardId-000000000000", page)
    assert count == len(page) and rows.num_rows == (1 if len(page) == 1 else 3)
"""

FREEZE = """
import gc
from penstock.spark.worker_memory import freeze_once
assert gc.get_freeze_count() == 0
freeze_once()
count = gc.get_freeze_count()
assert count > 1_000
later = [[] for _ in range(100)]
freeze_once()
assert gc.get_freeze_count() <= count
"""


def loaded(program):
    """Run a program in a new process; return the modules that it has loaded."""
    tail = "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program + tail], check=True, capture_output=True, text=True, timeout=120
    )
    return set(json.loads(done.stdout))


def found(modules, names):
    return sorted(module for module in modules if any(f"{module}.".startswith(f"{name}.") for name in names))


@pytest.mark.parametrize(
    ("program", "left_alone", "needed"),
    [
        (OPEN + READ, (*NOT_FOR_TASKS, *ONLY_FOR_WRITES), ONLY_FOR_READS),
        (OPEN + WRITE, (*NOT_FOR_TASKS, *ONLY_FOR_READS), ONLY_FOR_WRITES),
    ],
    ids=["read", "write"],
)
def test_a_task_loads_only_what_it_needs(program, left_alone, needed):
    modules = loaded(program)
    assert found(modules, left_alone) == []
    assert len(found(modules, needed)) >= len(needed)


def test_a_page_becomes_rows_without_pandas():
    modules = loaded(PAGE)
    assert "pyarrow.compute" in modules
    assert found(modules, ("pandas",)) == []


def test_the_commit_of_a_sink_loads_nothing_that_reads_writes_or_calls(tmp_path):
    modules = loaded(COMMIT.replace("FOLDER", repr(f"file://{tmp_path}")))
    unneeded = (
        *NOT_FOR_TASKS,
        *ONLY_FOR_READS,
        *ONLY_FOR_CALLS,
        "penstock.core.writing",
        "penstock.spark.sink.row_writer",
    )
    assert found(modules, unneeded) == []
    assert list(tmp_path.iterdir()) != []


def test_a_worker_takes_what_it_keeps_out_of_the_collector_s_sight_once():
    assert "penstock.spark.worker_memory" in loaded(FREEZE)


DAEMON = """
import gc, os, signal, threading
from penstock.spark.daemon import load
load("pyspark.worker")
assert threading.active_count() == 1, "a thread would be missing after the fork"
assert gc.get_freeze_count() > 10_000
child = os.fork()
if child == 0:
    signal.alarm(60)
    import pyarrow as pa
    import pyarrow.compute as pc
    table = pa.table({"a": list(range(100_000))})
    os._exit(0 if pc.sum(table.take(pc.sort_indices(table["a"]))["a"]).as_py() == sum(range(100_000)) else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_the_daemon_has_loaded_what_tasks_need_and_no_more_before_it_forks():
    modules = loaded(DAEMON)
    assert {"pyspark.worker", "pyarrow.compute"} <= modules
    assert found(loaded(OPEN + READ) | loaded(OPEN + WRITE), ("penstock",)) == sorted(
        set(found(modules, ("penstock",))) - {"penstock.spark.daemon"}
    )
    assert found(modules, NOT_FOR_TASKS) == []
