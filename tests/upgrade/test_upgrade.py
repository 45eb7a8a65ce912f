"""What version 0.1.0 wrote is read on: a lease table, a query's offsets, and a state folder that is refused in words."""

from __future__ import annotations

import json
import shutil

import pytest

from old_version import NEW, WRITTEN
from penstock import Consumer
from penstock.core.batches.offsets import parse_offset
from penstock_local import LocalKinesis, OptionError


@pytest.fixture
def kinesis(tmp_path):
    """The server with the stream and the lease tables as the old version left them."""
    shutil.copytree(WRITTEN / "state", tmp_path / "state")
    with LocalKinesis(limits=False, settle_s=0, state_dir=tmp_path / "state") as server:
        yield server


def test_a_consumer_goes_on_where_the_old_one_stopped(kinesis):
    rows = []

    def handle(batch):
        rows.extend(record.data.decode() for record in batch)
        if len(rows) >= len(NEW):
            consumer.request_stop()

    consumer = Consumer("orders", "billing", handle, connection=kinesis.connection(), worker_id="new-worker")
    consumer.run()
    assert sorted(rows) == NEW


def test_the_old_offsets_are_read():
    files = sorted((WRITTEN / "checkpoint" / "offsets").iterdir(), key=lambda path: int(path.name))
    offsets = [parse_offset(json.loads(path.read_text(encoding="utf-8").splitlines()[-1])) for path in files]
    assert [offset.batch for offset in offsets] == sorted({offset.batch for offset in offsets})
    assert offsets[-1].shards


def test_an_old_state_folder_is_refused_with_the_remedy(tmp_path):
    shutil.copytree(WRITTEN / "state-of-0.1.0", tmp_path / "state")
    before = {path.name: path.read_bytes() for path in (tmp_path / "state").iterdir()}
    with pytest.raises(OptionError, match=r"version 0\.1\.0 wrote it.*move the state folder away"):
        LocalKinesis(state_dir=tmp_path / "state").start()
    assert {name: (tmp_path / "state" / name).read_bytes() for name in before} == before
