"""The kit finds each broken promise, and only that one, in sources made to break it."""

from __future__ import annotations

import pytest

from lines_source import BREAKS, LEFT, Lines, NoRows, SimpleLinesSource, broken_source, source_of
from penstock.testing import StreamSourceChecks, check_stream_source
from penstock.testing.stream_source.promises import LIMIT, ONCE, PROMISES
from penstock.testing.stream_source.spark_calls import passes_start

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
    if promise == "availableNow ends" and not passes_start():
        pytest.skip("Spark 4.0 and 4.1 ask the source nothing for availableNow")
    tried = {each.name for each in PROMISES} - IN_PROCESSES | {promise}
    verdicts = check_stream_source(lambda: Lines(tmp_path, broken_source(promise)), tried)
    assert list(verdicts.broken) == [promise], verdicts
    assert set(verdicts.held) | set(verdicts.not_tried) == tried - {promise}


class ChecksWithAGap(StreamSourceChecks):
    known_broken = {"every record once": "one page only", "read limits": "none yet"}  # noqa: RUF012


def test_a_promise_that_is_known_to_be_broken_has_to_fail(tmp_path):
    with pytest.raises(pytest.xfail.Exception, match="one page only"):
        ChecksWithAGap().test_promise(Lines(tmp_path, broken_source("every record once")), ONCE)
    with pytest.raises(pytest.fail.Exception, match="'read limits' is held now: take it out of known_broken"):
        ChecksWithAGap().test_promise(Lines(tmp_path), LIMIT)


def test_a_failure_has_the_promise_the_calls_and_their_effect(tmp_path):
    verdicts = check_stream_source(lambda: Lines(tmp_path, broken_source("read limits")), {"read limits"})
    assert verdicts.broken["read limits"] == (
        f"\n  promise: {LIMIT.text}\n  seen:    a limit of 2 rows, batches of [6]\n  Spark:   {LIMIT.consequence}"
    )


def test_an_error_of_the_source_is_named_with_the_call_that_raised_it(tmp_path):
    verdicts = check_stream_source(lambda: Lines(tmp_path, broken_source("two drivers")), {"two drivers"})
    assert "seen:    latestOffset: ConnectionError: no session\n" in verdicts.broken["two drivers"]


def test_batches_without_rows_are_no_proof_that_they_agree(tmp_path):
    compared = {"identical replay", "speculation", "any process"}
    verdicts = check_stream_source(
        lambda: Lines(tmp_path, source_of(NoRows)), {*compared, "every record once"}
    )
    assert verdicts.not_tried.keys() == compared
    assert verdicts.broken.keys() == {"every record once"}
