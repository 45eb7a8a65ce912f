"""Items that threads pull: each is offered once, done or failed once, and after the close nothing is taken any more."""

import threading

import pytest

from penstock.runtime.thread_pull import IterationEnded, ThreadPull
from waiting import DEADLINE_S, wait_until


class Offering:
    """A thread that offers one item, and the result."""

    def __init__(self, pull, item):
        self.error = None
        self.thread = threading.Thread(target=self._offer, args=(pull, item), daemon=True)
        self.thread.start()

    def _offer(self, pull, item):
        try:
            pull.offer(item)
        except IterationEnded as error:
            self.error = error

    def result(self):
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        return self.error


def test_an_item_is_done_when_the_next_one_is_requested():
    pull, ended = ThreadPull(), threading.Event()
    a, b = Offering(pull, 1), Offering(pull, 2)
    items = pull.items(ended)
    assert {next(items), next(items)} == {1, 2}
    wait_until(lambda: a.thread.is_alive() + b.thread.is_alive() == 1)
    items.close()
    assert [isinstance(each, IterationEnded) for each in (a.result(), b.result())].count(True) == 1


def test_after_the_close_no_item_is_taken_and_every_one_that_waits_fails():
    pull, ended = ThreadPull(), threading.Event()
    items = pull.items(ended)
    taken = Offering(pull, "taken")
    next(items)
    waiting = Offering(pull, "waiting")
    wait_until(lambda: len(pull._unsettled) == 2)
    pull.close()
    assert isinstance(taken.result(), IterationEnded)
    assert isinstance(waiting.result(), IterationEnded)
    assert isinstance(Offering(pull, "later").result(), IterationEnded)
    assert list(items) == []
    assert list(pull.items(ended)) == []


def test_an_item_that_may_not_be_taken_any_more_is_left_out():
    pull = ThreadPull(lambda item: item != "lost")
    lost, kept = Offering(pull, "lost"), Offering(pull, "kept")
    items = pull.items(threading.Event())
    assert next(items) == "kept"
    items.close()
    assert [str(each.result()).partition(" before ")[0] for each in (lost, kept)] == [
        "the lease was lost",
        "the iteration ended",
    ]


def test_an_error_in_the_loops_body_fails_the_item():
    pull = ThreadPull()
    offering = Offering(pull, 1)

    def iterate():
        for item in pull.items(threading.Event()):
            item // 0

    with pytest.raises(ZeroDivisionError):
        iterate()
    assert isinstance(offering.result(), IterationEnded)
