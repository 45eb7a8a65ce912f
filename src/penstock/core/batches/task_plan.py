"""The tasks of a batch: how many, which shards each reads, and when they may subscribe.

If no option sets the number, a batch has as many tasks as the cluster runs at once. Spark does not pass the number of cores
to a source in Python. But a claim names the process that made it, and Spark has a Python process for each running task. So a
batch with more tasks than processes shows how many tasks run at once. After a batch that had a process for each task, more
tasks are tried.

Busy shards get a task each, quiet ones share one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.core.limits import SUBSCRIBE_AGAIN_S

SHARDS_PER_TASK_MAX: Final = 32
_BATCHES_BETWEEN_TRIALS: Final = 16
"""Batches after which more tasks are tried: the cluster may have grown, or was busy before."""


class TaskSlots:
    """Estimate of the tasks that the cluster runs at once. Not thread-safe."""

    def __init__(self) -> None:
        self._slot_count = 1
        self._batches_until_trial = 0  # until more tasks are tried

    def plan_count(self, shard_count: int) -> int:
        """Return the number of tasks for a batch of this many shards: as many as the cluster seems to run at once.

        At least one task for each 32 shards; when more tasks are tried, at least the square root of the number of shards.
        """
        count = self._slot_count
        if self._batches_until_trial == 0:
            count = max(count, math.ceil(math.sqrt(shard_count)))
        return min(shard_count, max(count, -(-shard_count // SHARDS_PER_TASK_MAX)))

    def on_batch_done(self, task_count: int, process_count: int) -> None:
        """Handle a batch that is done: the number of processes (at least 1) that ran its tasks changes the estimate."""
        if process_count < task_count:
            self._slot_count, self._batches_until_trial = process_count, _BATCHES_BETWEEN_TRIALS
        elif task_count < self._slot_count:
            pass  # a small batch does not show how many tasks of a larger one would run at once
        elif self._batches_until_trial > 0:
            self._batches_until_trial -= 1
        else:
            self._slot_count = 2 * task_count


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
        load, shard_count, place = heapq.heappop(loads)
        tasks[place].append(shard)
        heapq.heappush(loads, (load + weights[shard], shard_count + 1, place))
    return [task for task in tasks if task]


# --- subscriptions ------------------------------------------------------------------------------------------

PERMIT_S: Final = SUBSCRIBE_AGAIN_S + 1.0
"""From one permission to the next. Tasks begin at different times after their plan, so a second is added."""


class _ShardPermit(Struct):
    planned_s: float
    """When the shard's last task was planned."""
    used_s: float
    """The latest moment at which a task can have used the shard's last permission."""


class SubscriptionPermits:
    """Permits tasks to subscribe to shards, for each shard at most once in about five seconds. Not thread-safe.

    The service refuses a second subscription within five seconds. Each worker process keeps to that for its own
    subscriptions, but Spark gives the next batch's task to any process. So the driver, which plans all tasks, decides. Tasks do
    not report whether they have subscribed, so each permission counts as used.
    """

    def __init__(self) -> None:
        self._shards: dict[str, _ShardPermit] = {}

    def plan_delay_s(self, shard_id: str, now_s: float) -> float:
        """Return how many seconds from now the shard's task of the next batch has to wait before it subscribes.

        That is 0, or `PERMIT_S` if another task may have subscribed within the last `PERMIT_S` seconds. A task that ends
        before the wait is over does not subscribe.
        """
        shard = self._shards.get(shard_id)
        if shard is None:
            self._shards[shard_id] = _ShardPermit(now_s, now_s)
            return 0.0
        had_to_wait = shard.planned_s != shard.used_s
        if had_to_wait and now_s - shard.planned_s >= PERMIT_S:
            # The last task had to wait, and may have lasted until its wait was over.
            shard.used_s = shard.planned_s + PERMIT_S
        shard.planned_s = now_s
        if now_s - shard.used_s < PERMIT_S:
            return PERMIT_S
        shard.used_s = now_s
        return 0.0

    def keep_only(self, shard_ids: frozenset[str]) -> None:
        """Drop the shards that the query does not hold any more."""
        for shard_id in self._shards.keys() - shard_ids:
            del self._shards[shard_id]
