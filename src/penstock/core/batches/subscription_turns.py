"""When a task of a query may subscribe to a shard: no sooner than five seconds after the last subscription of any task.

The service refuses a second subscription within five seconds. Each worker process keeps to that for its own subscriptions,
but Spark gives the next batch's task to any process. So the driver, which plans all tasks, decides. It does not learn from a
task whether it has subscribed, and counts each permission as used.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.core.limits import SUBSCRIBE_AGAIN_S

TURN_S: Final = SUBSCRIBE_AGAIN_S + 1.0
"""From one permission to the next. Tasks begin at different times after their plan, so a second is added."""


class _Shard(Struct):
    planned_s: float
    """When its last task was planned."""
    used_s: float
    """When its last permission was used, at the latest."""


class SubscriptionTurns:
    """The permissions of one query's tasks. Not thread-safe."""

    def __init__(self) -> None:
        self._shards: dict[str, _Shard] = {}

    def plan(self, shard_id: str, now_s: float) -> float:
        """Return the seconds from now after which the shard's task of the next batch may subscribe.

        A task that runs for longer than a turn may subscribe even if the batch began without permission.

        Args:
            shard_id: The shard.
            now_s: Monotonic seconds.
        """
        shard = self._shards.get(shard_id)
        if shard is None:
            self._shards[shard_id] = _Shard(now_s, now_s)
            return 0.0
        if shard.planned_s != shard.used_s and now_s - shard.planned_s >= TURN_S:
            shard.used_s = shard.planned_s + TURN_S
        shard.planned_s = now_s
        if now_s - shard.used_s < TURN_S:
            return TURN_S
        shard.used_s = now_s
        return 0.0

    def keep_only(self, shard_ids: frozenset[str]) -> None:
        """Drop the shards that the query does not hold any more."""
        for shard_id in self._shards.keys() - shard_ids:
            del self._shards[shard_id]
