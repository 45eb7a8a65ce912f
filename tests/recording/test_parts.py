"""The folder of a recording that is not finished."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from penstock.errors import OptionError
from penstock.recording.parts import create_parts, folder_of


def test_two_recordings_that_begin_at_once_are_one_and_an_error(tmp_path):
    path = tmp_path / "incident.penstock"
    folder_of(path).mkdir()
    with pytest.raises(OptionError, match="another process has begun a recording to"):
        create_parts(path, progress=None)
    with pytest.raises(OptionError, match="there is no folder"):
        create_parts(tmp_path / "missing" / "incident.penstock", progress=None)
