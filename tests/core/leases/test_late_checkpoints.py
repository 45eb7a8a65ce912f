"""What readers finished after they lost their leases: the furthest position is written, when there is room."""

import pytest

from penstock.core.leases.late_checkpoints import LateCheckpoints
from penstock.core.leases.lease import LateCheckpoint, Lease
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.pending_writes import PendingWrites
from penstock.core.position import LATEST, at_record


@pytest.fixture
def writes():
    return PendingWrites(in_flight_max=5)


@pytest.fixture
def words(writes):
    view = LeaseView(10.0)
    view.observe(Lease("s", counter=4, owner="thief", checkpoint=at_record("5")), 0.0)
    return LateCheckpoints(view, writes)


def written(words, writes, now_s):
    writes.begin(0.5)
    words.write(now_s)
    writes.pump(now_s)
    return [effect.write for effect in writes.effects]


@pytest.mark.parametrize("order", [("7", "9"), ("9", "7")])
def test_the_furthest_of_several_words_is_written_once(words, writes, order):
    for number in order:
        words.keep("s", at_record(number))
    assert written(words, writes, 1.0) == [LateCheckpoint("s", at_record("9"))]
    assert written(words, writes, 2.0) == []


def test_a_word_that_was_not_written_does_not_take_the_place_of_a_further_one(words, writes):
    words.keep("s", at_record("7"))
    (write,) = written(words, writes, 1.0)
    words.keep("s", at_record("9"))
    assert written(words, writes, 1.5) == []  # the first one has no answer yet
    writes.settle(1)
    words.keep_again(write, retry_s=3.0)
    assert written(words, writes, 2.9) == []
    assert written(words, writes, 3.0) == [LateCheckpoint("s", at_record("9"))]


@pytest.mark.parametrize("position", [None, LATEST, at_record("5")])
def test_what_is_not_ahead_of_the_checkpoint_is_no_word(words, writes, position):
    words.keep("s", position)
    assert written(words, writes, 1.0) == []


def test_a_word_is_forgotten_with_its_row(words, writes):
    words.keep("gone", at_record("9"))
    assert written(words, writes, 1.0) == []


def test_a_lease_that_comes_back_takes_the_word_with_it(words, writes):
    words.keep("s", at_record("9"))
    assert words.take("s") == at_record("9")
    assert written(words, writes, 1.0) == []
