"""Calls of the lease loop: each gives exactly one event of the coordinator, however it ends."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TypeAlias, assert_never

from penstock.core.leases.coordinator_effects import (
    FetchFleet,
    FindOwnLeases,
    LeaveFleet,
    ListShards,
    ReportWorker,
)
from penstock.core.leases.coordinator_events import (
    CallFailed,
    FleetEvent,
    FleetFetched,
    FleetLeft,
    LeaseCall,
    ListingDone,
    OwnLeasesFound,
    Problem,
    WorkerReported,
)
from penstock.core.leases.kcl3_fleet import SAMPLES_MAX, stats_to_report
from penstock.core.leases.lease import keyed_shard
from penstock.core.reading.service_clock import ServiceClock
from penstock.core.safe_text import describe_error
from penstock.errors import (
    NotFound,
    OptionError,
    ServiceError,
    StreamChanged,
    Throttled,
    Unavailable,
    UnknownOutcome,
    UnknownRefusal,
)
from penstock.ports.clock import Clock
from penstock.ports.kcl3_tables import Kcl3Tables
from penstock.ports.kinesis import Kinesis, ShardFilter
from penstock.ports.lease_table import LeaseTable
from penstock.runtime.cpu_meter import CpuMeter
from penstock.runtime.stream_name_check import StreamNameCheck

log = logging.getLogger("penstock.leases")


def problem_of(error: Exception, problem_if_missing: Problem = Problem.TABLE_MISSING) -> Problem:
    """Return the problem of a call that raised an error.

    Args:
        problem_if_missing: The problem for `NotFound`: a missing table or a missing stream.
    """
    if isinstance(error, Throttled):
        return Problem.THROTTLED
    if isinstance(error, NotFound):
        return problem_if_missing
    if isinstance(error, Unavailable | UnknownOutcome | UnknownRefusal):
        return Problem.UNAVAILABLE
    if isinstance(error, ServiceError | StreamChanged | OptionError):
        return Problem.REFUSED
    log.error("a call failed in an unexpected way", exc_info=error)
    return Problem.UNAVAILABLE


def list_shards(
    effect: ListShards,
    name: str,
    kinesis: Kinesis,
    name_check: StreamNameCheck | None,
    wall_ms: Callable[[], int],
) -> ListingDone | CallFailed:
    """List the shards of one stream under their lease keys; return the result or the problem as an event.

    Args:
        name: Name or ARN.
        name_check: Checks whether the name still means this stream; None: no check.
        wall_ms: The local time, if the service's answer has none.
    """
    shard_filter = (
        None if effect.filter_type is None else ShardFilter(effect.filter_type, effect.timestamp_ms)
    )
    try:
        listing = kinesis.fetch_shards(name, shard_filter)
        if name_check is not None:
            name_check.check()  # or another stream's shards would get this one's leases
    except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
        problem = problem_of(error, problem_if_missing=Problem.STREAM_MISSING)
        return CallFailed(LeaseCall.LIST, problem, describe_error(error), stream_id=effect.stream_id)
    moment_ms = wall_ms() if listing.server_ms is None else listing.server_ms
    shards = tuple(keyed_shard(effect.stream_id, shard) for shard in listing.shards)
    return ListingDone(effect.purpose, shards, moment_ms, effect.stream_id)


FleetEffect: TypeAlias = FetchFleet | ReportWorker | LeaveFleet | FindOwnLeases


class Kcl3Calls:
    """Makes one worker's calls about the rows of KCL 3. The coordinator has at most one call of each kind in flight.

    Args:
        kcl3: The rows that KCL 3 workers keep beside the leases.
    """

    def __init__(self, worker: str, table: LeaseTable, kcl3: Kcl3Tables, clock: Clock) -> None:
        self._worker = worker
        self._table = table
        self._kcl3 = kcl3
        self._clock = clock
        self._service_clock = ServiceClock()  # the times in the rows of all workers are compared with it
        self._cpu = CpuMeter(clock.monotonic_s)
        self._cpu_means: deque[float] = deque(maxlen=SAMPLES_MAX)

    def answer(self, effect: FleetEffect) -> FleetEvent:
        """Make the call and return its result as an event."""
        match effect:
            case FetchFleet():
                return self._fetch(effect)
            case ReportWorker():
                return self._report(effect)
            case LeaveFleet():
                return self._withdraw_metrics()
            case FindOwnLeases():
                return self._find_own(effect)
            case _:
                assert_never(effect)

    def _fetch(self, effect: FetchFleet) -> FleetEvent:
        try:
            rows = self._kcl3.fetch(effect.workers)
        except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
            return CallFailed(LeaseCall.FETCH_FLEET, problem_of(error), describe_error(error))
        return FleetFetched(rows, self._service_clock.on_answer(self._clock.wall_ms(), rows.server_ms) / 1000)

    def _report(self, effect: ReportWorker) -> FleetEvent:
        mean = self._cpu.measure()
        if mean is not None:
            self._cpu_means.append(mean)
        cpu = list(self._cpu_means) if effect.measures_cpu and self._cpu_means else None
        wall_s = self._service_clock.now_ms(self._clock.wall_ms()) / 1000
        stats = stats_to_report(self._worker, wall_s, cpu, is_full=effect.is_full)
        try:
            self._kcl3.report(stats)
        except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
            return CallFailed(LeaseCall.REPORT, problem_of(error), describe_error(error))
        return WorkerReported()

    def _withdraw_metrics(self) -> FleetEvent:
        try:
            self._kcl3.withdraw(self._worker)
        except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
            log.warning(
                "the metrics of worker %s could not be deleted, so leases may be assigned to it for another minute: %s",
                self._worker,
                describe_error(error),
            )
        return FleetLeft()

    def _find_own(self, effect: FindOwnLeases) -> FleetEvent:
        try:
            keys = self._kcl3.find_keys_of(self._worker) - effect.known_keys
            leases = self._table.fetch_many(keys).leases if keys else ()
        except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
            return CallFailed(LeaseCall.FIND_OWN, problem_of(error), describe_error(error))
        return OwnLeasesFound(leases)
