"""The assignment of shards to Spark tasks: busy ones alone, quiet ones together."""

from __future__ import annotations

import heapq
from collections.abc import Mapping


def plan_tasks(weights: Mapping[str, int], task_count: int) -> list[list[str]]:
    """Assign shards to tasks: heaviest first, each to the task with the least weight so far.

    Args:
        weights: Shard id to the bytes of its last batch; equal weights if they are not known.
        task_count: How many tasks, at least 1 if there are shards.

    Returns:
        Shard ids by task; every shard once, no task empty. Equal arguments give equal results.
    """
    if task_count >= len(weights):
        return [[shard] for shard in sorted(weights)]
    tasks: list[list[str]] = [[] for _ in range(task_count)]
    # Of tasks with equal bytes, the one with fewer shards takes the next: an empty shard costs calls too.
    loads = [(0, 0, place) for place in range(task_count)]
    for shard in sorted(weights, key=lambda key: (-weights[key], key)):
        load, held, place = heapq.heappop(loads)
        tasks[place].append(shard)
        heapq.heappush(loads, (load + weights[shard], held + 1, place))
    return [task for task in tasks if task]
