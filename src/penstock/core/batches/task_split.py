"""Which shards share a Spark task: busy ones alone, quiet ones together."""

from __future__ import annotations

import heapq
from collections.abc import Mapping


def plan_tasks(weights: Mapping[str, int], task_count: int) -> list[list[str]]:
    """Deal shards out to tasks, heaviest first, each to the task that has least so far.

    Args:
        weights: Shard id to the bytes of its last batch; equal weights where nothing is known.
        task_count: How many tasks, at least 1 where there are shards.

    Returns:
        Shard ids by task; every shard once, no task empty. The same answer for the same question.
    """
    if task_count >= len(weights):
        return [[shard] for shard in sorted(weights)]
    tasks: list[list[str]] = [[] for _ in range(task_count)]
    # A task with equal bytes takes the next shard when it has fewer shards: a shard costs calls even when it is empty.
    loads = [(0, 0, place) for place in range(task_count)]
    for shard in sorted(weights, key=lambda key: (-weights[key], key)):
        load, held, place = heapq.heappop(loads)
        tasks[place].append(shard)
        heapq.heappush(loads, (load + weights[shard], held + 1, place))
    return [task for task in tasks if task]
