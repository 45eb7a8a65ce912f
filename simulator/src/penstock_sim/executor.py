"""A simulated executor: it runs tasks of Spark queries by the production's code, and does not end with their drivers."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from operator import add
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.core.batches.claims import Execution, ReadNothing, judge_refused_claim, plan_read
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Claim, LeaseWrite, Outcome, Refused
from penstock.errors import PenstockError
from penstock.runtime.hash_ranges import HashRanges
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.concurrent_read import HoldPage, read_concurrently
from penstock.spark.tasks.iterator_cache import IteratorCache
from penstock.spark.tasks.kept_subscriptions import KeptSubscriptions
from penstock.spark.tasks.pushed_reading import PushedReading
from penstock.spark.tasks.shard_opening import ReadingProcess, read_shard
from penstock.spark.tasks.shard_read import BatchPart
from penstock_sim.blocking_ports import SimClock, SimKinesis, SimLeaseTable
from penstock_sim.environment import Environment
from penstock_sim.events import queries
from penstock_sim.fan_out import SimFanOut
from penstock_sim.plan import STREAM_NAME
from penstock_sim.process import SimProcess
from penstock_sim.spark_processes import SparkExecutor, TaskAttempt
from penstock_sim.virtual_threads import VirtualThreads

if TYPE_CHECKING:
    import pyarrow as pa


class ShardRows(Struct, frozen=True):
    """The records that an attempt emitted of one shard; `is_whole` if it read to the end of the batch."""

    numbers: tuple[int, ...]
    is_whole: bool


class ReadAttempt(TaskAttempt, eq=False, kw_only=True):
    """One attempt of one task of a batch."""

    query: str  # Spark's id of the query
    options: SourceOptions
    tasks: list[BatchPart]
    row_count_max: int | None  # the action takes no more rows, or None


class SimExecutor(SparkExecutor[ReadAttempt]):
    """One process that runs tasks."""

    def __init__(self, world: Environment, name: str) -> None:
        super().__init__(world, name)
        self._kinesis = SimKinesis(self, "task ", world.stream)
        self._iterators = IteratorCache()
        self._subscriptions = KeptSubscriptions(VirtualThreads(self), self.later)

    def record_failed(self, attempt: ReadAttempt, error: PenstockError) -> None:
        self.world.record(
            queries.ReadTaskFailed(attempt.driver.who, self.who, type(error).__name__, str(error))
        )

    def record_ended(self, attempt: ReadAttempt) -> None:
        for task in attempt.tasks:
            batch = task.execution.batch
            self.world.record(queries.ReadTaskEnded(attempt.driver.who, self.who, batch, task.shard_id))

    def execute(self, attempt: ReadAttempt) -> dict[str, ShardRows]:
        """Read the shards of a task; return the rows that the action took of each."""
        world, batch = self.world, attempt.tasks[0].execution.batch
        for task in attempt.tasks:
            world.record(queries.ReadTaskStarted(attempt.driver.who, self.who, batch, task.shard_id))
        is_slow = world.has_fault("slow_task")
        numbers: dict[str, list[int]] = {task.shard_id: [] for task in attempt.tasks}
        row_count = 0
        is_whole = True
        clock = SimClock(self)

        def read(task: BatchPart, hold_page: HoldPage) -> Generator[Any, None, None]:
            kinesis, iterators, options = self._kinesis, self._iterators, attempt.options
            pushed_reading = self._pushed_reading(task, options)
            return read_task(
                kinesis,
                iterators,
                options,
                task,
                attempt.query,
                hold_page=hold_page,
                pushed_reading=pushed_reading,
            )

        with closing(read_concurrently(attempt.tasks, read, VirtualThreads(self))) as rows:
            for page in rows:
                key = page.column("shardId")[0].as_py()
                numbers[key] += self._numbers_of(key, page, attempt.options)
                row_count += page.num_rows
                if attempt.row_count_max is not None and row_count >= attempt.row_count_max:
                    is_whole = False
                    break
                clock.sleep(world.chance.uniform(1.0, 25.0) if is_slow and not world.is_healed else 0.01)
        for key, given in numbers.items():
            kind = queries.BatchRead if is_whole else queries.BatchReadInPart
            world.record(kind(attempt.driver.who, batch, key, tuple(given)))
        return {key: ShardRows(tuple(given), is_whole) for key, given in numbers.items()}

    def _pushed_reading(self, task: BatchPart, options: SourceOptions) -> PushedReading | None:
        if task.consumer_arn is None:
            return None
        return PushedReading(
            self._subscriptions,
            SimFanOut(self._kinesis),
            (STREAM_NAME, task.consumer_arn, task.shard_id),
            subscribes_always=options.consumer_type == "fan-out",
            after_s=task.subscribe_after_s,
            clock=SimClock(self),
            chance=self.world.chance,
            threads=VirtualThreads(self),
        )

    def _numbers_of(self, key: str, page: pa.RecordBatch, options: SourceOptions) -> Iterator[int]:
        """Return the number of each user record, also of those in an aggregate that is emitted whole."""
        sequences = map(int, page.column("sequenceNumber").to_pylist())
        if options.deaggregate:
            return map(add, sequences, page.column("subSequenceNumber").to_pylist())
        stream = self.world.stream
        return (number for first in sequences for number in range(first, first + stream.count_in(key, first)))


def read_task(
    kinesis: SimKinesis,
    iterators: IteratorCache,
    options: SourceOptions,
    task: BatchPart,
    query: str | None,
    *,
    hold_page: HoldPage = nullcontext,
    pushed_reading: PushedReading | None = None,
) -> Generator[Any, None, None]:
    """Read one shard of a batch as the production does, in any process."""
    process = kinesis.process
    clock = SimClock(process)
    ranges = HashRanges(kinesis, STREAM_NAME, clock.monotonic_s)
    reading = ReadingProcess(kinesis, ranges, clock, process.world.chance, process.who, iterators=iterators)
    table = _TaskTable(process, task.execution)
    return read_shard(
        task, options, reading, table=table, query=query, hold_page=hold_page, pushed_reading=pushed_reading
    )


class _TaskTable(SimLeaseTable):
    """Counts the states in which a task finds its lease, by the task's own rules."""

    def __init__(self, process: SimProcess, execution: Execution) -> None:
        super().__init__(process, "task ")
        self._met = process.world.met
        self._execution = execution
        self._refused: Claim | None = None

    def fetch(self, key: str) -> Lease | None:
        lease = super().fetch(key)
        if self._refused is not None:
            refused = self._refused
            meaning, _ = judge_refused_claim(lease, self._execution, refused.claim.end)
            self._met[f"refused claim: {meaning.name}"] += 1
            self._refused = None
        else:
            plan = plan_read(lease, self._execution)
            reason = f" {plan.reason.name}" if isinstance(plan, ReadNothing) else ""
            self._met[f"task: {type(plan).__name__}{reason}"] += 1
        return lease

    def write(self, write: LeaseWrite) -> Outcome:
        outcome = super().write(write)
        if isinstance(write, Claim) and isinstance(outcome, Refused):
            self._refused = write
        return outcome
