"""A pool of threads: no task waits behind one that hangs, and results are in order."""

from __future__ import annotations

import threading

import pytest

from few_threads import leave_threads
from penstock.runtime.threads import SYSTEM_THREADS, map_on_pool


@pytest.fixture
def pool():
    made = SYSTEM_THREADS.pool("test", 2)
    yield made
    made.close()


def test_results_come_in_the_order_of_the_items(pool):
    second_is_done = threading.Event()

    def call(item):
        if item == 1:
            assert second_is_done.wait(60)
        second_is_done.set()
        return item * 10

    assert list(map_on_pool(pool, SYSTEM_THREADS.condition(), call, [1, 2, 3])) == [10, 20, 30]


def test_an_error_is_raised_when_its_turn_comes(pool):
    def call(item):
        if item == 2:
            raise ValueError("two")
        return item

    results = map_on_pool(pool, SYSTEM_THREADS.condition(), call, [1, 2, 3])
    assert next(results) == 1
    with pytest.raises(ValueError, match="two"):
        next(results)


def test_no_items_need_no_thread(pool):
    assert list(map_on_pool(pool, SYSTEM_THREADS.condition(), str, [])) == []


def test_no_task_waits_behind_one_that_hangs():
    for _ in range(300):  # which of the two threads is first is chance
        made = SYSTEM_THREADS.pool("test", 2)
        let, is_run = threading.Event(), threading.Event()
        try:
            made.submit(let.wait)
            made.submit(is_run.set)
            assert is_run.wait(60)
        finally:
            let.set()
            made.close()


def test_a_pool_has_no_more_threads_than_it_may(pool):
    let, running, condition = threading.Event(), set(), threading.Condition()

    def run():
        with condition:
            running.add(threading.get_ident())
            condition.notify_all()
        let.wait()

    try:
        for _ in range(5):
            pool.submit(run)
        with condition:
            assert condition.wait_for(lambda: len(running) == 2, 60)
    finally:
        let.set()
    assert list(map_on_pool(pool, SYSTEM_THREADS.condition(), lambda item: item, [1, 2])) == [1, 2]
    assert len(running) == 2


def test_a_pool_goes_on_with_the_threads_that_it_has(monkeypatch, caplog):
    leave_threads(monkeypatch, 1)
    made = SYSTEM_THREADS.pool("penstock-few", 3)
    assert list(map_on_pool(made, SYSTEM_THREADS.condition(), str, range(50))) == [
        str(item) for item in range(50)
    ]
    made.close()
    assert caplog.messages == ["penstock-few goes on with 1 of 3 threads: can't start new thread"]


def test_a_task_that_no_thread_would_take_is_refused(monkeypatch):
    made = SYSTEM_THREADS.pool("penstock-few", 3)
    with monkeypatch.context() as limited:
        leave_threads(limited, 0)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            made.submit(pytest.fail)
    assert list(map_on_pool(made, SYSTEM_THREADS.condition(), str, [1])) == ["1"]
    made.close()
