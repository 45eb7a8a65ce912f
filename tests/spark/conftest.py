"""One embedded Kinesis for all tests of this folder; each test has streams and checkpoints of its own."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def stream(kinesis):
    """A new stream of two shards, by name."""
    name = f"s-{uuid.uuid4().hex[:10]}"
    kinesis.create_stream(name, shards=2)
    return name


@pytest.fixture
def client(kinesis):
    return kinesis.client("kinesis")
