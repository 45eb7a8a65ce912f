"""How many tasks a batch gets where no option says it: as many as the cluster runs at once.

Spark does not tell a source in Python how many cores there are. But a claim names the process that made it, and Spark has a
Python process for each task that runs. So a batch with more tasks than processes shows how many run at once, and after one
that had a process for each task more are tried.
"""

from __future__ import annotations

import math
from typing import Final

SHARDS_PER_TASK_MAX: Final = 32
_KNOWN_FOR_BATCHES: Final = 16
"""Then more tasks are tried: the cluster may have grown, or had been busy."""


class TaskSlots:
    """What is known of the cluster. Not thread-safe."""

    def __init__(self) -> None:
        self._slot_count = 1
        self._known_for = 0  # batches for which more tasks are not tried

    def plan_count(self, shard_count: int) -> int:
        """Return how many tasks to make for so many shards."""
        count = self._slot_count
        if self._known_for == 0:
            count = max(count, math.ceil(math.sqrt(shard_count)))
        return min(shard_count, max(count, -(-shard_count // SHARDS_PER_TASK_MAX)))

    def learn(self, task_count: int, process_count: int) -> None:
        """Learn from a batch that is done.

        Args:
            task_count: Its tasks.
            process_count: The processes that have claimed in it, at least 1.
        """
        if process_count < task_count:
            self._slot_count, self._known_for = process_count, _KNOWN_FOR_BATCHES
        elif task_count < self._slot_count:
            pass  # a small batch says nothing of a larger one
        elif self._known_for > 0:
            self._known_for -= 1
        else:
            self._slot_count = 2 * task_count
