"""One Spark session for all tests of this folder that one process runs."""

from __future__ import annotations

import sys

import pytest

from spark_support import Job


@pytest.fixture(scope="session")
def running_spark(running_kinesis, tmp_path_factory):
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as environment:
        # Spark's processes have the environment that its JVM was started with.
        for name, value in running_kinesis.environ().items():
            environment.setenv(name, value)
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
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
def spark(running_spark, kinesis):
    """The session, with the server's address in the environment."""
    return running_spark


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
