"""The embedded Kinesis for producer tests, and a reader by the rules of the KCL."""

from __future__ import annotations

import itertools

import pytest

from penstock.aws.aws_options import AwsOptions
from penstock.aws.kinesis import AwsKinesis
from penstock_local import LocalKinesis

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False) as running:
        yield running


@pytest.fixture(scope="module")
def kinesis(server):
    return AwsKinesis(
        AwsOptions(
            endpoint_url=server.endpoint_url, region=server.region, read_timeout_s=10.0, **credentials(server)
        )
    )


def credentials(server):
    environ = server.environ()
    return {
        "access_key_id": environ["AWS_ACCESS_KEY_ID"],
        "secret_access_key": environ["AWS_SECRET_ACCESS_KEY"],
    }


@pytest.fixture
def stream(server):
    name = f"orders-{next(_numbers)}"
    server.create_stream(name, shards=4)
    yield name
    server.faults.clear()
