"""A lease table in an embedded server."""

from __future__ import annotations

import pytest

from penstock.aws.aws_options import AwsOptions
from penstock.aws.lease_table import DynamoLeaseTable
from penstock_local import LocalKinesis


@pytest.fixture(scope="module")
def dynamo():
    with LocalKinesis() as server:
        options = AwsOptions(
            **server.connection(),
            retry_base_s=0.01,
            deadline_s=60,
        )
        table = DynamoLeaseTable("contract", options)
        assert table.ensure_exists() is True
        assert table.ensure_exists() is False
        # Making an SDK client costs more than a hundred calls with one.
        dynamodb = server.client("dynamodb")
        server.client = lambda service: {"dynamodb": dynamodb}[service]
        yield server, table
