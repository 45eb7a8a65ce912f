"""The kit finds each broken promise, and only that one, in sources made to break it."""

from __future__ import annotations

import pytest

from lines_source import BREAKS, LEFT, Lines, SimpleLinesSource, broken_source
from penstock.testing import StreamSourceChecks, check_stream_source
from penstock.testing.stream_source.promises import PROMISES

IN_PROCESSES = {"stop leaves nothing", "any process"}
"""They start a process, which takes a second: tried on the source that keeps all, and on those that break them."""


@pytest.fixture(autouse=True)
def threads_that_end():
    yield
    LEFT.set()
    LEFT.clear()


class TestASourceThatKeepsAll(StreamSourceChecks):
    @pytest.fixture
    def source(self, tmp_path):
        return Lines(tmp_path)


class SimpleLines(Lines):
    def limited(self, rows):
        return None


class TestASimpleReaderThatKeepsAll(StreamSourceChecks):
    @pytest.fixture
    def source(self, tmp_path):
        return SimpleLines(tmp_path, SimpleLinesSource)


def test_a_query_that_does_not_start_is_a_mistake_of_the_test_and_no_verdict(tmp_path):
    class WrongPlace(Lines):
        def options(self):
            return {"path": str(self.path), "prefix": "a"}

    with pytest.raises(Exception, match="unknown options") as raised:
        check_stream_source(lambda: WrongPlace(tmp_path))
    assert type(raised.value).__name__ == "NotStarted"


def test_each_promise_has_a_source_that_breaks_it():
    assert set(BREAKS) == {each.name for each in PROMISES}


@pytest.mark.parametrize("promise", BREAKS)
def test_a_broken_promise_is_found_and_no_other(promise, tmp_path):
    tried = {each.name for each in PROMISES} - IN_PROCESSES | {promise}
    verdicts = check_stream_source(lambda: Lines(tmp_path, broken_source(promise)), tried)
    assert list(verdicts.broken) == [promise], verdicts
    assert set(verdicts.held) | set(verdicts.not_tried) == tried - {promise}
