"""The number of tasks of a batch if no option sets it: as many as the cluster runs at once.

Spark does not pass the number of cores to a source in Python. But a claim names the process that made it, and Spark has a
Python process for each running task. So a batch with more tasks than processes shows how many tasks run at once. After a
batch that had a process for each task, more tasks are tried.
"""

from __future__ import annotations

import math
from typing import Final

SHARDS_PER_TASK_MAX: Final = 32
_BATCHES_BETWEEN_TRIALS: Final = 16
"""Batches after which more tasks are tried: the cluster may have grown, or was busy before."""


class TaskSlots:
    """Estimate of the tasks that the cluster runs at once. Not thread-safe."""

    def __init__(self) -> None:
        self._slot_count = 1
        self._batches_until_trial = 0  # until more tasks are tried

    def plan_count(self, shard_count: int) -> int:
        """Return how many tasks to make for this many shards.

        At least one task per 32 shards; when more tasks are tried, at least the square root of the number of shards.
        """
        count = self._slot_count
        if self._batches_until_trial == 0:
            count = max(count, math.ceil(math.sqrt(shard_count)))
        return min(shard_count, max(count, -(-shard_count // SHARDS_PER_TASK_MAX)))

    def on_batch_done(self, task_count: int, process_count: int) -> None:
        """Handle a batch that is done.

        Args:
            task_count: Its tasks.
            process_count: The processes that have claimed in it, at least 1.
        """
        if process_count < task_count:
            self._slot_count, self._batches_until_trial = process_count, _BATCHES_BETWEEN_TRIALS
        elif task_count < self._slot_count:
            pass  # a small batch does not show how many tasks of a larger one would run at once
        elif self._batches_until_trial > 0:
            self._batches_until_trial -= 1
        else:
            self._slot_count = 2 * task_count
