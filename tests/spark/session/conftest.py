"""The Spark session of the test process, and a query to start in it."""

from __future__ import annotations

import pytest

from spark_support import Job


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
