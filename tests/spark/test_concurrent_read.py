"""The shards of one task are read at the same time; a shard reads on after its rows are taken."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from penstock.core.batches.task_plan import SHARDS_PER_TASK_MAX
from penstock.runtime.threads import SYSTEM_THREADS
from penstock.spark.tasks.concurrent_read import PAGES_HELD_MAX, read_concurrently
from waiting import wait_until

DEADLINE_S = 60.0


class Shards:
    """Shards of a few rows each, that count their claims and held pages."""

    def __init__(self, *, rows=3):
        self.row_count = rows
        self.claimed = set()
        self.ended = set()
        self.begun = set()
        self.held = 0
        self.held_most = 0
        self.may_go_on = {}
        self.fails = {}
        self._lock = threading.Lock()

    def hold(self, shard):
        self.may_go_on[shard] = threading.Event()

    def read(self, shard, hold_page):
        self.begun.add(shard)
        try:
            for number in range(self.row_count):
                if shard in self.may_go_on:
                    assert self.may_go_on[shard].wait(DEADLINE_S)
                if self.fails.get(shard) == number:
                    raise LookupError(shard)
                with hold_page():
                    self._count(1)
                    try:
                        yield shard, number
                    finally:
                        self._count(-1)
            self.claimed.add(shard)
        finally:
            self.ended.add(shard)

    def _count(self, change):
        with self._lock:
            self.held += change
            self.held_most = max(self.held, self.held_most)


def test_the_rows_of_each_shard_come_in_order_and_every_shard_claims():
    shards, names = Shards(), range(3 * SHARDS_PER_TASK_MAX)
    found = list(read_concurrently(names, shards.read, SYSTEM_THREADS))
    assert sorted(found) == [(name, number) for name in names for number in range(3)]
    for name in names:
        assert [number for each, number in found if each == name] == [0, 1, 2]
    assert shards.claimed == set(names)


def test_a_shard_that_gives_no_answer_does_not_hold_up_the_others():
    shards = Shards()
    shards.hold("slow")
    found = []
    for row in read_concurrently(["slow", *range(20)], shards.read, SYSTEM_THREADS):
        found.append(row)
        if len(found) == 60:
            assert "slow" not in dict(found)
            shards.may_go_on["slow"].set()
    assert [name for name, _ in found[60:]] == ["slow"] * 3


def test_no_more_pages_are_held_than_the_task_has_room_for():
    shards = Shards()
    found = list(read_concurrently(range(SHARDS_PER_TASK_MAX), shards.read, SYSTEM_THREADS))
    assert len(found) == 3 * SHARDS_PER_TASK_MAX
    assert 1 <= shards.held_most <= PAGES_HELD_MAX
    assert shards.held == 0


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_shard_claims_only_when_all_of_its_rows_were_taken(names):
    shards = Shards(rows=1)
    with closing(read_concurrently(names, shards.read, SYSTEM_THREADS)) as rows:
        taken = [next(rows) for _ in names]
        last = taken[-1][0]
        assert last not in shards.claimed
    wait_until(lambda: shards.ended == set(names), "the shards to end")
    assert last not in shards.claimed
    assert shards.held == 0


def test_the_first_error_ends_the_task_and_the_others_do_not_claim():
    shards = Shards()
    shards.fails["b"] = 1
    shards.hold("a")
    with pytest.raises(LookupError, match="b"):
        list(read_concurrently(["a", "b"], shards.read, SYSTEM_THREADS))
    shards.may_go_on["a"].set()
    # A thread that had not started the other shard when the task ended does not start it.
    wait_until(lambda: shards.ended == shards.begun, "the shards to end")
    assert shards.claimed == set()


def test_an_error_of_the_only_shard_comes_as_it_is():
    shards = Shards()
    shards.fails["a"] = 0
    with pytest.raises(LookupError, match="a"):
        list(read_concurrently(["a"], shards.read, SYSTEM_THREADS))


def test_pages_of_shards_that_are_behind_count_twice():
    shards = Shards()
    list(read_concurrently(range(SHARDS_PER_TASK_MAX), shards.read, SYSTEM_THREADS, lambda _: True))
    assert 1 <= shards.held_most <= PAGES_HELD_MAX // 2
