"""Queries without Spark: one embedded Kinesis for each file, and queries that end with their test."""

from __future__ import annotations

import pytest

from penstock_local import LocalKinesis
from reader_query import Query


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False, settle_s=0) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return server.client("kinesis")


@pytest.fixture
def query(request, server, client):
    """Make queries; a file's `QUERY_OPTIONS` are the default."""
    defaults = getattr(request.module, "QUERY_OPTIONS", {})
    made = []

    def make(**options):
        made.append(Query(server, client, **{**defaults, **options}))
        return made[-1]

    yield make
    server.faults.clear()
    for each in made:
        each.stop()
