"""The Spark session of every contender that needs one, warm: the JVM has run a job and forked its Python workers."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from program import DEADLINE_S


@contextmanager
def session(
    jars: str = "", daemon: str = "penstock.spark.daemon", java_options: str = "", slots: int = 2
) -> Iterator[Any]:
    """Start Spark with two task slots, or more."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{slots},4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.daemon.module", daemon)
        .config("spark.sql.shuffle.partitions", "2")
    )
    if jars:
        builder = builder.config("spark.jars", jars)
    if java_options:
        builder = builder.config("spark.driver.extraJavaOptions", java_options)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(1000).mapInArrow(lambda batches: batches, "id long").count()
    try:
        yield spark
    finally:
        spark.stop()


def task_times_s(spark: Any, write: Callable[[], object]) -> list[float]:
    """Run a job and return how long each task of its last stage took."""
    context = spark.sparkContext
    context.setJobGroup("measured", "measured")
    jobs_before = set(context.statusTracker().getJobIdsForGroup("measured"))
    write()
    context._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - the status has no other way out without Spark's web page
    jobs = set(context.statusTracker().getJobIdsForGroup("measured")) - jobs_before
    stage_id = max(stage for job in jobs for stage in context.statusTracker().getJobInfo(job).stageIds)
    store = context._jsc.sc().statusStore()  # noqa: SLF001 - as above
    tasks = store.taskList(stage_id, store.lastStageAttempt(stage_id).attemptId(), 1000)
    return [tasks.apply(number).duration().get() / 1000 for number in range(tasks.size())]


def register(spark: Any) -> None:
    """Register Penstock's source: its tasks then share their processes with the session's other Python code."""
    import penstock.spark

    spark.dataSource.register(penstock.spark.KinesisDataSource)


@contextmanager
def running(frame: Any, action: Callable[[Any, int], None], trigger_s: float = 0.0) -> Iterator[Any]:
    """Run a query that gives its batches to an action, with a checkpoint of its own."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        writer = frame.writeStream.foreachBatch(action).option("checkpointLocation", folder)
        if trigger_s:
            writer = writer.trigger(processingTime=f"{round(trigger_s * 1000)} milliseconds")
        query = writer.start()
        try:
            yield query
        finally:
            query.stop()


def run_a_stream(spark: Any) -> None:
    """Run a stream of Spark's own, so that the JVM has loaded what streams need."""
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counts: list[int] = []
    with running(frame, lambda batch, _: counts.append(batch.count())) as query:
        wait_until(query, lambda: len(counts) > 1, "a stream of Spark's own")


def wait_until(query: Any, is_done: Callable[[], bool], what: str) -> None:
    """Wait for a condition while a query runs; fail with the query, or at the deadline."""
    end_s = time.monotonic() + DEADLINE_S
    while not is_done():
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        if time.monotonic() > end_s:
            raise SystemExit(f"{what} took longer than {DEADLINE_S:g} s")
        time.sleep(0.002)


def kinesis(spark: Any, stream: str, application: str, **options: str) -> Any:
    """Return Penstock's source over a stream from its beginning."""
    return (
        spark.readStream.format("kinesis")
        .option("streamName", stream)
        .option("applicationName", application)
        .option("startingPosition", "TRIM_HORIZON")
        .options(**options)
        .load()
    )


# --- awslabs' connector -----------------------------------------------------------------------------------------


@contextmanager
def _named(host: str, address: str) -> Iterator[str]:
    """Map a name to an address in a JVM with these options, which can then resolve no other name."""
    with tempfile.NamedTemporaryFile("w", prefix="penstock-bench-hosts-") as hosts:
        hosts.write(f"{address} {host}\n127.0.0.1 localhost {socket.gethostname()}\n")
        hosts.flush()
        yield f"-Djdk.net.hosts.file={hosts.name}"


@contextmanager
def awslabs_session(jars: str) -> Iterator[tuple[Any, str]]:
    """Start Spark with awslabs' connector; yield the session and the endpoint by the name that the connector wants."""
    endpoint = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    # It takes the region from the second label of the endpoint's host, whatever `kinesis.region` says.
    host = f"kinesis.{os.environ['AWS_REGION']}.localhost"
    with (
        _named(host, endpoint.hostname or "") as java_options,
        session(jars, "pyspark.daemon", java_options) as spark,
    ):
        yield spark, f"{endpoint.scheme}://{host}:{endpoint.port}"


def awslabs_frame(spark: Any, stream: str, endpoint_url: str) -> Any:
    """Return awslabs' source over a stream from its beginning."""
    return (
        spark.readStream.format("aws-kinesis")
        .option("kinesis.region", os.environ["AWS_REGION"])
        .option("kinesis.streamName", stream)
        .option("kinesis.endpointUrl", endpoint_url)
        .option("kinesis.consumerType", "GetRecords")
        .option("kinesis.startingPosition", "TRIM_HORIZON")
        .load()
    )
