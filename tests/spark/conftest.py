"""One Spark session and one embedded Kinesis for all tests of this folder; streams and checkpoints are a test's own."""

from __future__ import annotations

import os
import sys
import uuid

import pytest

from spark_support import Job

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def kinesis():
    from penstock.local import LocalKinesis

    with LocalKinesis(limits=False) as server:
        before = {key: os.environ.get(key) for key in server.environ()}
        os.environ.update(server.environ())
        yield server
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@pytest.fixture(scope="session")
def spark(kinesis, tmp_path_factory):
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("penstock tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def stream(kinesis):
    """A new stream of two shards, by name."""
    name = f"s-{uuid.uuid4().hex[:10]}"
    kinesis.create_stream(name, shards=2)
    return name


@pytest.fixture
def client(kinesis):
    return kinesis.client("kinesis")


@pytest.fixture
def job(spark, stream, tmp_path):
    """A query on `stream` from its oldest record, under an application of its own."""
    made = Job(
        spark,
        stream,
        tmp_path / "checkpoint",
        {
            "startingPosition": "TRIM_HORIZON",
            "applicationName": f"app-{stream}",
            "leaseDuration": "5s",
            "fetchInterval": "0ms",
            "probeInterval": "200ms",
        },
    )
    yield made
    for query in made.running:
        query.stop()
