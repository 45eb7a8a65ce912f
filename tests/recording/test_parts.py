"""The folder of a recording that is not finished."""

from __future__ import annotations

import msgspec
import pytest

pytest.importorskip("pyarrow")

from penstock.core.recording.metadata import RecordedSlice, RecordedStream
from penstock.errors import OptionError
from penstock.recording.parts import RecordingProgress, create_parts, folder_of


def test_two_recordings_that_begin_at_once_are_one_and_an_error(tmp_path):
    path = tmp_path / "incident.penstock"
    folder_of(path).mkdir()
    with pytest.raises(OptionError, match="another process has begun a recording to"):
        create_parts(path, progress=None)
    with pytest.raises(OptionError, match="there is no folder"):
        create_parts(tmp_path / "missing" / "incident.penstock", progress=None)


def test_a_recording_in_progress_keeps_its_format_over_versions():
    stream = RecordedStream("orders", "arn:aws:kinesis:eu-west-1:1:stream/orders", "ON_DEMAND", 24.0, 0)
    progress = RecordingProgress(
        options={"--key": None},
        stream=stream,
        recorded=RecordedSlice(0, 1),
        has_given_end=True,
        began_ms=2,
        secret="00",
        finished_shard_ids=["shardId-000000000000"],
    )
    document = msgspec.json.decode(msgspec.json.encode(progress))
    assert (document["asked"], document["has_end"]) == ({"--key": None}, True)
    assert document["done"] == ["shardId-000000000000"]
