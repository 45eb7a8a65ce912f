"""The read of one shard, as the driver plans it and sends it to an executor."""

from __future__ import annotations

from msgspec import Struct

from penstock.core.batches.claims import Execution
from penstock.core.batches.offsets import Share
from penstock.core.hash_key import HashRange
from penstock.core.stream_identity import StreamIdentity


class ShardRead(Struct, frozen=True, kw_only=True):
    """The read of one shard. It has plain values only, since it travels to an executor.

    Args:
        stream: The stream of the plan.
        planned_ms: Moment of the plan, by the service's clock.
        deaggregates: Whether KPL aggregates are taken apart. Positions count user records either way.
        tip_ms: Moment at which nothing was left after the start, by the service's clock; None if not known.
        is_foreign: Whether the start is the checkpoint of a worker that does not record tip marks.
        hash_range: The shard's hash range; None if it is not known.
    """

    shard_id: str
    stream: StreamIdentity
    planned_ms: int
    retention_ms: int
    deaggregates: bool
    tip_ms: int | None = None
    is_foreign: bool = False
    hash_range: HashRange | None = None


class BatchPart(ShardRead, frozen=True, kw_only=True):
    """One shard's part of one batch of a query.

    Args:
        execution: The batch, and its start in the shard.
        share: The shard's part of the batch's limits.
        until_ms: Records that arrived at this moment or later stay for later batches; None: no such limit.
        consumer_arn: The registered consumer that may subscribe to the shard, or None.
        subscribe_after_s: Seconds from the start of the task in which the task does not subscribe.
    """

    execution: Execution
    share: Share
    until_ms: int | None = None
    consumer_arn: str | None = None
    subscribe_after_s: float = 0.0
