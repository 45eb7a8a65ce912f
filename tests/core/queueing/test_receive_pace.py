"""How many receives are open, by what the answers held."""

from penstock.core.backoff import Backoff
from penstock.core.queueing.receive_pace import ReceivePace


def pace(open_max=8):
    return ReceivePace(open_max, Backoff(1.0, 8.0))


def plan(of, room, now_s=0.0, *, is_starving=True, target=100):
    return of.plan(room, is_starving=is_starving, target_count=target, now_s=now_s)


def test_an_idle_queue_has_one_receive_open():
    of = pace()
    assert plan(of, 100) == [(0, 10)]
    assert plan(of, 100) == []
    of.on_answered(0, 0, 20.0, 20.0)
    assert plan(of, 100, 20.0) == [(1, 10)]


def test_full_answers_open_more_and_empty_ones_close_them():
    of = pace(open_max=4)
    plan(of, 100)
    of.on_answered(0, 10, 0.01, 0.0)
    assert plan(of, 100) == [(1, 10), (2, 10)]
    of.on_answered(1, 10, 0.01, 0.0)
    of.on_answered(2, 10, 0.01, 0.0)
    assert of.open_target == 4
    begun = plan(of, 35)
    assert [limit for _, limit in begun] == [10, 10, 10]
    for number, _ in begun:
        of.on_answered(number, 0, 20.0, 20.0)
    assert of.open_target == 1


def test_a_small_receive_begins_only_for_a_handler_without_work():
    assert plan(pace(), 3, is_starving=False) == []
    assert plan(pace(), 3) == [(0, 3)]
    assert plan(pace(), 1, is_starving=False, target=1) == [(0, 1)]
    assert plan(pace(), 0) == []


def test_refused_receives_pause():
    of = pace()
    plan(of, 100)
    of.on_failed(0, 0.0, 0.5)
    assert plan(of, 100, 0.4) == []
    assert plan(of, 100, 0.5) == [(1, 10)]
    of.on_failed(1, 0.5, 0.5)
    assert of.resumes_s == 1.5


def test_an_empty_answer_without_a_wait_is_not_followed_at_once():
    of = pace()
    plan(of, 100)
    of.on_answered(0, 0, 0.001, 0.0)
    assert plan(of, 100, 0.4) == []
    assert plan(of, 100, 0.5) == [(1, 10)]
