"""What a row of calls of `pause` and `resume` comes to."""

import pytest

from penstock.core.reading.paused_shards import PausedShards

PAUSE, RESUME = True, False


@pytest.mark.parametrize(
    ("calls", "paused"),
    [
        pytest.param([], "", id="nothing is paused at first"),
        pytest.param([(PAUSE, "")], "abc", id="without names all are"),
        pytest.param([(PAUSE, "a")], "a", id="or those that are named"),
        pytest.param([(PAUSE, "a"), (PAUSE, "ab")], "ab", id="twice is once"),
        pytest.param([(PAUSE, "ab"), (RESUME, "b")], "a", id="one goes on"),
        pytest.param([(PAUSE, ""), (RESUME, "b")], "ac", id="all but one"),
        pytest.param(
            [(PAUSE, ""), (RESUME, "bc"), (PAUSE, "c")], "ac", id="all but one, after a change of mind"
        ),
        pytest.param([(PAUSE, "a"), (RESUME, "")], "", id="all go on"),
        pytest.param([(PAUSE, ""), (RESUME, "b"), (PAUSE, "")], "abc", id="all, whatever was said before"),
        pytest.param([(RESUME, "a")], "", id="who goes on already goes on"),
    ],
)
def test_the_last_call_for_a_shard_or_for_all_counts(calls, paused):
    found = PausedShards()
    for is_paused, names in calls:
        found.set_paused(tuple(names), is_paused=is_paused)
    assert "".join(name for name in "abc" if name in found) == paused
