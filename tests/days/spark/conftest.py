"""Fixtures of stories with Spark: the session of the test process, and its server, which all stories share.

A story that moves the clock, or scripts faults for all streams, starts a program with a session and a server of its own:
`programs` and `local_kinesis`.
"""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def client(kinesis):
    return kinesis.client("kinesis")


@pytest.fixture
def stream(kinesis):
    """A new stream of two shards, by name."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    kinesis.create_stream(name, shards=2)
    return name


@pytest.fixture
def spark(running_spark, kinesis):
    """The session; every query that a story leaves behind is stopped."""
    yield running_spark
    for query in running_spark.streams.active:
        query.stop()
