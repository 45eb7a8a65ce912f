"""The run in a session compares the ids in its batches; a fake session decides which rows they have."""

from __future__ import annotations

import pytest
from pyspark.sql import Row

from lines_source import Lines
from penstock.testing import PromiseBroken
from penstock.testing.stream_source.session_run import run_in_spark


class Session:
    """A session in which each query runs one batch with the lines that were put, but those of `lost`."""

    def __init__(self, path, lost=(), failure=None):
        self.path, self.lost, self.failure = path, lost, failure
        self.read = 0
        self.batch = 0
        self.dataSource = self.readStream = self.writeStream = self
        self.isActive = True

    def __getattr__(self, name):
        return lambda *_, **__: self

    def foreachBatch(self, collect):  # noqa: N802
        self.collect_batch = collect
        return self

    def start(self):
        self.run()
        return self

    def run(self):
        lines = self.path.read_text().splitlines()
        self.rows = [Row(line=line, number=0) for line in lines[self.read :] if line not in self.lost]
        self.read = len(lines)
        self.collect_batch(self, self.batch)
        self.batch += 1

    def collect(self):
        return self.rows

    def awaitTermination(self, _):  # noqa: N802
        return True

    def exception(self):
        self.run()
        return self.failure


def test_a_session_whose_batches_hold_every_record_passes(tmp_path):
    source = Lines(tmp_path)
    source.visible_s = 0
    run_in_spark(source, Session(source.path), tmp_path)


def test_a_record_that_no_batch_holds_is_found(tmp_path):
    source = Lines(tmp_path)
    source.visible_s = 0
    with pytest.raises(PromiseBroken, match="14 rows: 1 missing \\('line 7'\\)"):
        run_in_spark(source, Session(source.path, lost={"line 7"}), tmp_path)


def test_a_query_that_fails_is_found(tmp_path):
    source = Lines(tmp_path)
    source.visible_s = 0
    with pytest.raises(PromiseBroken, match="the third run failed: no more"):
        run_in_spark(source, Session(source.path, failure="no more"), tmp_path)
