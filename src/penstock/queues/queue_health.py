"""Health of a queue's consumer: `QueueConsumer.health()`, and `/health` and `/ready` on the metrics port."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """State of a queue's consumer at one moment.

    Args:
        is_healthy: Whether it runs, its receives are answered, its acknowledgements and changes of visibility are accepted, and its
            handler's calls return within `handling_time_max_s`.
        is_ready: Whether it receives records: it runs, is not stopping, and its last receive was answered.
        problems: Why it is not healthy; empty if it is.
        queue: Name of the queue.
        queue_arn: ARN of the queue.
        worker_id: Id of this consumer.
        in_hand: Number of received Kinesis records that are not yet acknowledged, returned, or visible to other consumers again.
        in_handler: Number of handler calls under way.
        in_flight: Number of the queue's records that are invisible because of this consumer: in hand, or returned with a back-off.
            A queue has at most 120,000.
        oldest_unacknowledged_s: Seconds since the oldest record in hand was received; None if none is in hand.
        receives_open: Number of receives under way.
        last_answer_age_s: Seconds since a receive was last answered; None before the first answer.
    """

    is_healthy: bool
    is_ready: bool
    problems: tuple[str, ...]
    queue: str
    queue_arn: str
    worker_id: str
    in_hand: int = 0
    in_handler: int = 0
    in_flight: int = 0
    oldest_unacknowledged_s: float | None = None
    receives_open: int = 0
    last_answer_age_s: float | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the fields as types of JSON."""
        return dataclasses.asdict(self)
