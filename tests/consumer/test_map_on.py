"""Calls on a pool: results come in order, and an error when its turn comes."""

from __future__ import annotations

import threading

import pytest

from penstock.runtime.threads import SYSTEM_THREADS, map_on


@pytest.fixture
def pool():
    made = SYSTEM_THREADS.pool("test", 2)
    yield made
    made.close()


def test_results_come_in_the_order_of_the_items(pool):
    second_is_done = threading.Event()

    def call(item):
        if item == 1:
            assert second_is_done.wait(10)
        second_is_done.set()
        return item * 10

    assert list(map_on(pool, SYSTEM_THREADS.condition(), call, [1, 2, 3])) == [10, 20, 30]


def test_an_error_is_raised_when_its_turn_comes(pool):
    def call(item):
        if item == 2:
            raise ValueError("two")
        return item

    results = map_on(pool, SYSTEM_THREADS.condition(), call, [1, 2, 3])
    assert next(results) == 1
    with pytest.raises(ValueError, match="two"):
        next(results)


def test_no_items_need_no_thread(pool):
    assert list(map_on(pool, SYSTEM_THREADS.condition(), str, [])) == []
