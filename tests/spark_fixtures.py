"""The one embedded Kinesis and the one Spark session of a test process: for `tests/spark` and the stories with Spark.

Spark's processes keep the environment that its JVM was started with, and a process has one JVM. So a second session for
another server is not to be had, and whoever tests with Spark shares these two.
"""

from __future__ import annotations

import sys

import pytest

from s3_server import S3Server


@pytest.fixture(scope="session")
def running_kinesis():
    """An embedded Kinesis without quotas."""
    from penstock_local import LocalKinesis

    with LocalKinesis(limits=False) as server:
        yield server


@pytest.fixture(scope="session")
def running_bucket():
    """A small S3."""
    with S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def running_spark(running_kinesis, running_bucket, tmp_path_factory):
    """A Spark session whose processes find the embedded Kinesis, and the small S3, in their environment."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as environment:
        for name, value in running_kinesis.environ().items():
            environment.setenv(name, value)
        environment.setenv("AWS_ENDPOINT_URL_S3", running_bucket.url)
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
def kinesis(running_kinesis, monkeypatch):
    """The server of the session, named in the environment for as long as the test runs."""
    for name, value in running_kinesis.environ().items():
        monkeypatch.setenv(name, value)
    return running_kinesis
