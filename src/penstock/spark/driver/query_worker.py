"""The query as one worker of its application: the consumer's lease loop, in the process beside the driver.

The loop and its threads are the plain consumer's (`penstock.runtime.lease_loop`), so leases are renewed however long a
batch takes. The query worker does not read shards itself. It keeps the coordinator's commands until the planner, on Spark's
thread, takes them between two batches.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.core.batches.query_shards import QueryShards
from penstock.core.leases.coordinator import Coordinator
from penstock.core.leases.coordinator_effects import ExtendDelivery, StartReader, StopReader
from penstock.core.leases.coordinator_events import Event, ReaderStopped, ShardDrained, StopRequested
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions, cold_start_jitter_s
from penstock.core.leases.fleet_view import CoordinatorStats
from penstock.core.position import TRIM_HORIZON, Position
from penstock.core.starting import StartingPosition
from penstock.errors import PenstockError
from penstock.ports.metrics import Metrics
from penstock.runtime.lease_loop import LeaseLoop
from penstock.runtime.stream_name_check import StreamNameCheck
from penstock.runtime.worker_ports import WorkerPorts
from penstock.spark.driver.driver_ports import DriverPorts
from penstock.spark.options.spark_options import SourceOptions

_log: Final = logging.getLogger("penstock.spark")
STOP_S: Final = 10.0
"""Longest time in which a query that ends releases its leases."""
_RENEWAL_THREADS: Final = 4
_CALL_THREADS: Final = 8


class QueryWorker:
    """One query among the workers of its application.

    Args:
        worker: The query's worker id.
        options: The coordinator's, from `coordinator_options`.
        run_name: Distinguishes this driver process from others with the same worker id.
        stream: Name or ARN.
        metrics: Receives figures, under the same names as the consumer's.
        name_check: Checks that the name still refers to the stream; None checks nothing.
    """

    def __init__(
        self,
        worker: str,
        options: CoordinatorOptions,
        ports: DriverPorts,
        *,
        run_name: str,
        stream: str,
        metrics: Metrics,
        name_check: StreamNameCheck | None,
    ) -> None:
        self.worker = worker
        self._name_check = name_check
        self._clock = ports.clock
        self._tips_interval_s, self._tips_due_s = options.lease_duration_s / 6, float("-inf")
        self._changed = ports.threads.condition()  # notified of commands, of rest and of errors
        self._commands: deque[StartReader | StopReader] = deque()
        self._unreleased: set[tuple[str, int]] = set()  # shard and epoch, until the planner releases it
        self._is_at_rest = False
        self._crash_error: BaseException | None = None
        self._table_error: PenstockError | None = None  # why the lease table cannot be used
        self._pools = (
            ports.threads.pool("penstock-renew", _RENEWAL_THREADS),
            ports.threads.pool("penstock-lease", _CALL_THREADS),
        )
        self._loop = _TurnReportingLoop(
            Coordinator(worker, options, run_name),
            {"": stream},
            WorkerPorts(
                ports.kinesis,
                ports.lease_loop_table or ports.table,
                ports.clock,
                ports.chance,
                metrics,
                ports.kcl3,
            ),
            renewal_pool=self._pools[0],
            call_pool=self._pools[1],
            table_option="applicationName (or leaseTable)",
            condition=ports.threads.condition(),
            name_checks={} if name_check is None else {"": name_check},
        )
        self._loop.on_unusable_table = self._on_unusable_table
        self._loop.readers = self
        self._loop.after_turn = self._after_turn
        self._thread = ports.threads.drive("penstock-leases", self._loop, ports.clock, self._on_crash)

    # --- the planner's side -----------------------------------------------------------------------------

    def take_commands(self) -> Iterator[StartReader | StopReader]:
        """Yield the coordinator's commands since the last call. Each is removed when the caller requests the next one.

        So a command is yielded again if its handling was cut short because the process had to exit.

        Raises:
            StreamChanged: A listing was another stream's.
            PenstockError: The coordinator itself failed, which is a defect; the query must not go on without it.
        """
        while True:
            with self._changed:
                self._raise_failure()
                if not self._commands:
                    return
                command = self._commands[0]
            yield command
            with self._changed:
                self._commands.popleft()

    def post(self, events: Sequence[Event]) -> None:
        """Post the planner's events to the coordinator."""
        with self._changed:
            for event in events:
                self._is_at_rest = False
                if isinstance(event, ShardDrained | ReaderStopped):
                    self._unreleased.discard((event.key, event.epoch))
                self._loop.post(event)

    def post_tip_marks(self, shards: QueryShards) -> None:
        """Post the tip marks of idle shards to the coordinator, at most six times in a lease duration.

        A tip mark is a position and a moment at which no record followed it. The next renewals write it to the leases.
        """
        now_s = self._clock.monotonic_s()
        if now_s >= self._tips_due_s:
            self._tips_due_s = now_s + self._tips_interval_s
            self.post(shards.progress_of_idle_shards())

    def wait(self, timeout_s: float) -> None:
        """Wait until the coordinator has a command, or until the timeout."""
        self._wait_for(lambda: bool(self._commands), timeout_s)

    @property
    def stats(self) -> CoordinatorStats:
        """Return the figures of the leases, as of the last scan of the table."""
        return self._loop.stats

    @property
    def is_at_rest(self) -> bool:
        """Whether this query has every lease that it can have for now."""
        with self._changed:
            return self._is_at_rest

    def describe_unread_part(self) -> str | None:
        """Return why perhaps no live worker reads some part of the stream; None if live workers read all of it."""
        return self._loop.describe_unread_part()

    @property
    def problems(self) -> tuple[str, ...]:
        """The calls about leases that keep failing, each with its last error."""
        return self._loop.snapshot().failing_calls

    def wait_until_at_rest(self, timeout_s: float) -> bool:
        """Wait until this query has every lease that it can have for now; return False after the timeout."""
        return self._wait_for(lambda: self._is_at_rest, timeout_s)

    def await_leases(self, timeout_s: float) -> bool:
        """Wait until this query has every lease that it can have for now; after the timeout log a warning and return False."""
        is_at_rest = self.wait_until_at_rest(timeout_s)
        if not is_at_rest:
            why = "".join(f"; {problem}" for problem in self.problems)
            _log.warning(
                "worker %s has not got its leases within %g s; it goes on without%s",
                self.worker,
                timeout_s,
                why,
            )
        return is_at_rest

    def stop(self, timeout_s: float) -> bool:
        """Release this query's leases and end the thread; return False if that took longer than the timeout.

        The caller has already posted the release of each shard.
        """
        self._loop.post(StopRequested())
        self._thread.join(timeout_s)
        is_done = not self._thread.is_alive()
        self.abandon()
        return is_done

    def abandon(self) -> None:
        """End at once. The leases keep this worker's name until they expire, or until the worker returns."""
        self._loop.finish()
        for pool in self._pools:
            pool.close()

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition; return whether it is met.

        Raises:
            PenstockError: The query cannot go on. This ends the wait too.
        """
        with self._changed:
            is_met = self._changed.wait_for(
                lambda: condition() or self._crash_error is not None or self._table_error is not None,
                timeout_s,
            )
            self._raise_failure()
        return is_met

    def _raise_failure(self) -> None:
        if self._name_check is not None and self._name_check.change_error is not None:
            raise self._name_check.change_error
        if self._table_error is not None:
            raise self._table_error
        if self._crash_error is not None:
            raise PenstockError(
                f"the lease coordinator of worker {self.worker} failed, and the query must not go on without it: "
                f"{self._crash_error!r}"
            ) from self._crash_error

    # --- the coordinator's side (`penstock.runtime.lease_loop.Readers`), on its thread -------------------

    def start_reader(self, effect: StartReader) -> None:
        """Keep the command until the planner takes it, between two batches."""
        with self._changed:
            self._unreleased.add((effect.key, effect.epoch))
            self._commands.append(effect)
            self._changed.notify_all()

    def stop_reader(self, effect: StopReader) -> None:
        """Keep the command until the planner takes it."""
        with self._changed:
            self._commands.append(effect)
            self._changed.notify_all()

    def extend_delivery(self, effect: ExtendDelivery) -> None:
        """Do nothing: a task's claim is refused if another worker has the lease."""

    def on_checkpoint_written(self, key: str, epoch: int, position: Position) -> None:
        """Do nothing: the planner itself makes ends of claims checkpoints, and needs no news of them."""

    def live_readers(self) -> frozenset[tuple[str, int]]:
        """Return the key and epoch of each lease that the planner has not released."""
        with self._changed:
            return frozenset(self._unreleased)

    def _after_turn(self, *, is_at_rest: bool) -> None:
        with self._changed:
            is_at_rest = is_at_rest and not self._loop.has_events  # `post` holds this lock
            if is_at_rest != self._is_at_rest:
                self._is_at_rest = is_at_rest
                self._changed.notify_all()

    def _on_unusable_table(self, error: PenstockError) -> None:
        with self._changed:
            self._table_error = self._table_error or error
            self._changed.notify_all()

    def _on_crash(self, error: BaseException) -> None:
        with self._changed:
            self._crash_error = error
            self._changed.notify_all()


class _TurnReportingLoop(LeaseLoop):
    """A lease loop that calls `after_turn` after each turn, with whether the coordinator is at rest."""

    after_turn: Callable[..., None]

    @property
    def stats(self) -> CoordinatorStats:
        return self._coordinator.stats

    def handle_events(self, events: list[Event], now_s: float) -> None:
        super().handle_events(events, now_s)
        self.after_turn(is_at_rest=self._coordinator.is_at_rest)


def coordinator_options(options: SourceOptions, *, is_new: bool, open_shard_count: int) -> CoordinatorOptions:
    """Return the coordinator's options for a query: those of a plain consumer, with the additions that Spark needs.

    Args:
        is_new: The query has never read anything. An older query starts unknown shards at their beginning, even if the
            whole lease table is missing.
        open_shard_count: The stream's, when the query started.
    """
    return CoordinatorOptions(
        lease_duration_s=options.lease_duration_s,
        policy=BalancePolicy(options.balance),
        max_leases=options.leases_max,
        leases_to_acquire=options.leases_to_acquire,
        keeps_claims=True,
        # A scan of a bucket or folder reads object by object.
        scans_for_free_leases="://" not in options.lease_table,
        start=options.starting if is_new else StartingPosition(default=TRIM_HORIZON),
        # A query waits for its first leases, and an application has few drivers: a short wait scatters them enough.
        cold_start_jitter_s=cold_start_jitter_s(min(1.0, options.lease_duration_s / 10), open_shard_count),
        shutdown_timeout_s=STOP_S / 2,
        # A batch may last for hours, and Spark itself shows a query that makes no progress.
        stall_after_s=86_400.0,
    )
