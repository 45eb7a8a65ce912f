"""What readers have done after their leases were gone: the furthest word is written, when there is room."""

import pytest

from penstock.core.leases.late_checkpoints import LastWords
from penstock.core.leases.lease import LateCheckpoint, Lease
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.pending_writes import Outbox
from penstock.core.position import LATEST, at_record


@pytest.fixture
def outbox():
    return Outbox(in_flight_max=5)


@pytest.fixture
def words(outbox):
    view = LeaseView(10.0)
    view.observe(Lease("s", counter=4, owner="thief", checkpoint=at_record("5")), 0.0)
    return LastWords(view, outbox)


def written(words, outbox, now_s):
    outbox.begin(0.5)
    words.write(now_s)
    outbox.pump(now_s)
    return [effect.write for effect in outbox.effects]


@pytest.mark.parametrize("order", [("7", "9"), ("9", "7")])
def test_the_furthest_of_several_words_is_written_once(words, outbox, order):
    for number in order:
        words.keep("s", at_record(number))
    assert written(words, outbox, 1.0) == [LateCheckpoint("s", at_record("9"))]
    assert written(words, outbox, 2.0) == []


def test_a_word_that_was_not_written_does_not_take_the_place_of_a_further_one(words, outbox):
    words.keep("s", at_record("7"))
    (write,) = written(words, outbox, 1.0)
    words.keep("s", at_record("9"))
    assert written(words, outbox, 1.5) == []  # the first one has no answer yet
    outbox.settle(1)
    words.keep_again(write, retry_s=3.0)
    assert written(words, outbox, 2.9) == []
    assert written(words, outbox, 3.0) == [LateCheckpoint("s", at_record("9"))]


@pytest.mark.parametrize("position", [None, LATEST, at_record("5")])
def test_what_is_not_ahead_of_the_checkpoint_is_no_word(words, outbox, position):
    words.keep("s", position)
    assert written(words, outbox, 1.0) == []


def test_a_word_is_forgotten_with_its_row(words, outbox):
    words.keep("gone", at_record("9"))
    assert written(words, outbox, 1.0) == []


def test_a_lease_that_comes_back_takes_the_word_with_it(words, outbox):
    words.keep("s", at_record("9"))
    assert words.take("s") == at_record("9")
    assert written(words, outbox, 1.0) == []
