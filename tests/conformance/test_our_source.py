"""The source of Penstock keeps every promise of the kit."""

from __future__ import annotations

import pytest

from kinesis_stream import KinesisStream
from penstock.testing import StreamSourceChecks
from penstock_local import LocalKinesis


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False, settle_s=0) as running:
        yield running


class TestKinesis(StreamSourceChecks):
    @pytest.fixture
    def source(self, server):
        return KinesisStream(server)
