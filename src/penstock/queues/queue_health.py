"""Health of a queue's consumer: `QueueConsumer.health()`, and `/health` and `/ready` on the metrics port."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """A queue's consumer at one moment.

    Args:
        is_healthy: Whether it runs, its receives are answered, and its acknowledgements are accepted.
        is_ready: Whether it takes its share of the work: it runs, is not stopping, and its last receive was answered.
        problems: Why it is not healthy; empty when it is.
        queue: Name of the queue.
        queue_arn: Its ARN.
        worker_id: Of this consumer.
        in_hand: Kinesis records that are received and not ended.
        in_handler: Calls of the handler under way.
        in_flight: Records of the queue that are invisible because of this consumer: in hand, or given back with a back-off. A queue
            has at most 120,000.
        oldest_unacknowledged_s: Since the oldest record in hand was received; None when there is none.
        receives_open: Receives under way.
        last_answer_age_s: Since a receive was last answered; None before the first answer.
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
        """Return it as JSON's types."""
        return dataclasses.asdict(self)
