"""The source of Penstock in the conformance kit's run in a Spark session."""

from __future__ import annotations

import pytest

from kinesis_stream import KinesisStream
from penstock.testing import StreamSourceSessionChecks
from penstock_local import LocalKinesis


class TestKinesis(StreamSourceSessionChecks):
    @pytest.fixture
    def source(self):
        with LocalKinesis(limits=False, settle_s=0) as server:
            source = KinesisStream(server)
            source.visible_s = 120  # on a busy machine
            yield source
