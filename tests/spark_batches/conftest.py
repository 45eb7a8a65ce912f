"""A Spark session and an embedded server for tests of micro-batches, with any Spark from 3.5 on."""

import os
import sys

import pytest

pytest.importorskip("pyspark")

from penstock_local import LocalKinesis


@pytest.fixture(scope="session")
def spark():
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kinesis():
    with LocalKinesis() as server:
        yield server


@pytest.fixture
def stream(kinesis, request):
    name = f"s{abs(hash(request.node.nodeid))}"
    kinesis.create_stream(name, shards=3)
    return name


@pytest.fixture
def options(kinesis, stream):
    """The options of a source or sink on the test's stream; the endpoint by name, since SDK clients are kept by options."""
    return {
        "streamName": stream,
        "endpointUrl": kinesis.endpoint_url,
        "region": "us-east-1",
        "awsAccessKeyId": "local",
        "awsSecretKey": "local",
    }
