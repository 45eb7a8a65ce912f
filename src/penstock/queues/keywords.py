"""Types of the keywords that queue consumers take, for type checkers: the fields of `QueueConsumerOptions`."""

from __future__ import annotations

from typing import TypedDict


class QueueConsumerKeywords(TypedDict, total=False):
    """Options of a `QueueConsumer` by keyword, as `QueueConsumerOptions` describes them."""

    worker_id: str | None
    concurrency: int
    batch_records_max: int | None
    visibility_timeout_s: int | None
    wait_time_s: int
    receives_max: int
    records_in_hand_max: int
    bytes_in_hand_max: int
    acknowledge_after_s: float
    backoff_min_s: float
    backoff_max_s: float
    handling_time_max_s: float
    remember: int
    shutdown_timeout_s: float
    metrics_interval_s: float
