"""The tasks of a query's batches: how many a batch has, which shards each reads, and from where.

Only a batch's offset decides which records its tasks read, so a replay reads the same ones. The rest may differ between two
executions of a batch: which shards share a task, and whether a task may subscribe.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.batches.claims import Execution
from penstock.core.batches.offsets import StreamOffset
from penstock.core.batches.query_shards import QueryShards
from penstock.core.batches.shard_state import Settlement
from penstock.core.batches.task_plan import SubscriptionPermits, TaskSlots, plan_tasks
from penstock.ports.clock import Clock
from penstock.spark.driver.joining import JoinedQuery
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.shard_read import BatchPart


class PlannedBatch(Struct, frozen=True):
    """A batch of the query.

    Args:
        offset: The batch starts here in every shard; Spark has it as the batch's end.
        planned_ms: Moment of the plan, by the service's clock.
    """

    offset: StreamOffset
    planned_ms: int


class BatchTasks:
    """Divides the batches of one query into tasks. Called by one thread.

    Args:
        run: The name of this run of the driver.
    """

    def __init__(self, options: SourceOptions, clock: Clock, run: str) -> None:
        self._options = options
        self._clock = clock
        self._run = run
        self._slots = TaskSlots()
        self._subscription_permits = SubscriptionPermits()
        self._weights: dict[str, int] = {}  # bytes of the last batch, by shard
        self._task_counts: dict[int, int] = {}  # by batch number; only of the batch that was planned last

    def plan(
        self, batch: PlannedBatch, query: JoinedQuery, partitions_max: int | None
    ) -> list[list[BatchPart]]:
        """Return the tasks of a batch, each with the parts that it reads.

        Args:
            partitions_max: The most tasks of this batch; None for the options' limit.
        """
        parts = map(self._with_subscription_permit, self.parts(batch, query))
        by_shard = {part.shard_id: part for part in parts}
        self._subscription_permits.keep_only(query.shards.shard_ids)
        weights = {shard_id: self._weights.get(shard_id, 0) for shard_id in by_shard}
        task_count = self._task_count(len(weights), partitions_max or self._options.partitions_max)
        split = plan_tasks(weights, task_count)
        self._task_counts = {batch.offset.batch: len(split)}
        return [[by_shard[shard_id] for shard_id in task] for task in split]

    def parts(self, batch: PlannedBatch, query: JoinedQuery) -> Iterator[BatchPart]:
        """Yield the part of each shard that a batch reads."""
        offset, shards = batch.offset, query.shards
        for shard_id, share in offset.shares().items():
            start, state = offset.shards[shard_id], shards.states.get(shard_id)
            # After a restart a repeated batch may start at another position than the shard's state has.
            if state is not None and state.position != start:
                state = None
            yield BatchPart(
                shard_id=shard_id,
                execution=Execution(
                    offset.worker,
                    offset.batch,
                    self._run,
                    start,
                    shards.last_claim(shard_id),
                    offset.known_batches.planner_of(offset.batch),
                ),
                share=share,
                until_ms=offset.until_ms,
                planned_ms=batch.planned_ms,
                tip_ms=offset.tips.get(shard_id, None if state is None else state.tip_seen_ms),
                is_foreign=state is not None and state.is_foreign,
                retention_ms=query.retention_ms,
                stream=query.stream,
                deaggregates=offset.deaggregates,
                consumer_arn=query.consumer_arn,
            )

    def on_settled(self, batch: int, settlement: Settlement, shards: QueryShards) -> None:
        """Handle a batch that is done: its claims show the cluster's size and the weight of each shard."""
        task_count = self._task_counts.get(batch)
        if task_count is not None and settlement.processes:
            self._slots.on_batch_done(task_count, len(settlement.processes))
        self._weights = {shard_id: state.bytes_count for shard_id, state in shards.states.items()}

    def _with_subscription_permit(self, part: BatchPart) -> BatchPart:
        if part.consumer_arn is None:
            return part
        wait_s = self._subscription_permits.plan_delay_s(part.shard_id, self._clock.monotonic_s())
        return replace(part, subscribe_after_s=wait_s)

    def _task_count(self, shard_count: int, partitions_max: int | None) -> int:
        shards_per_task = self._options.shards_per_task
        if shards_per_task is None:
            count = self._slots.plan_count(shard_count)
        else:
            count = -(-shard_count // shards_per_task)
        return count if partitions_max is None else min(count, partitions_max)
