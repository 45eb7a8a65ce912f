"""The number of tasks of a batch, from the processes that claimed in earlier ones."""

from __future__ import annotations

import pytest

from penstock.core.batches.task_plan import TaskSlots


def run(slots, core_count, shard_count):
    """Run one batch on a cluster; return how many tasks it had."""
    task_count = slots.plan_count(shard_count)
    slots.on_batch_done(task_count, min(task_count, core_count))
    return task_count


@pytest.mark.parametrize(
    ("shard_count", "task_count"),
    [(0, 0), (1, 1), (2, 2), (4, 2), (16, 4), (100, 10), (500, 23), (5000, 157)],
)
def test_the_first_batch_has_a_few_tasks_that_read_many_shards(shard_count, task_count):
    assert TaskSlots().plan_count(shard_count) == task_count


@pytest.mark.parametrize(
    ("core_count", "shard_count", "task_counts"),
    [
        (2, 4, [2, 4, 2, 2, 2]),
        (8, 64, [8, 16, 8, 8, 8]),
        (64, 64, [8, 16, 32, 64, 64, 64]),
        (2, 500, [23, 16, 16, 16]),
        (1, 9, [3, 1, 1]),
    ],
)
def test_later_batches_have_as_many_tasks_as_the_cluster_runs_at_once(core_count, shard_count, task_counts):
    slots = TaskSlots()
    assert [run(slots, core_count, shard_count) for _ in task_counts] == task_counts


def test_a_cluster_that_has_grown_is_noticed():
    slots = TaskSlots()
    assert [run(slots, 2, 64) for _ in range(3)] == [8, 2, 2]
    counts = [run(slots, 64, 64) for _ in range(30)]
    assert counts[0] == 2
    assert counts[-1] == 64


def test_small_batches_change_nothing_for_large_ones():
    slots = TaskSlots()
    while run(slots, 16, 64) != 16:
        pass
    run(slots, 16, 64)
    assert [run(slots, 16, 1) for _ in range(100)] == [1] * 100
    assert slots.plan_count(64) == 16
