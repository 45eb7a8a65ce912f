"""The lease loop's calls about KCL 3 workers: each gives exactly one event, however it ends."""

from __future__ import annotations

import logging
from collections import deque
from typing import TypeAlias, assert_never

from penstock.core.leases.coordinator_effects import FetchFleet, FindOwnLeases, LeaveFleet, ReportWorker
from penstock.core.leases.coordinator_events import (
    FleetEvent,
    FleetFetched,
    FleetFetchFailed,
    FleetLeft,
    OwnLeasesFound,
    OwnLeasesNotFound,
    WorkerReported,
)
from penstock.core.leases.kcl3_fleet import SAMPLES_MAX, stats_to_report
from penstock.ports.clock import Clock
from penstock.ports.kcl3_tables import Kcl3Tables
from penstock.ports.lease_table import LeaseTable
from penstock.runtime.call_problems import detail_of, problem_of
from penstock.runtime.cpu_meter import CpuMeter

log = logging.getLogger("penstock.leases")

FleetEffect: TypeAlias = FetchFleet | ReportWorker | LeaveFleet | FindOwnLeases


class Kcl3Calls:
    """One worker's calls. The coordinator has at most one of each kind in flight.

    Args:
        worker: The worker's id.
        table: The application's leases.
        kcl3: The rows that KCL 3 workers keep beside them.
        clock: Time.
    """

    def __init__(self, worker: str, table: LeaseTable, kcl3: Kcl3Tables, clock: Clock) -> None:
        self._worker = worker
        self._table = table
        self._kcl3 = kcl3
        self._clock = clock
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
                return self._leave()
            case FindOwnLeases():
                return self._find_own(effect)
            case _:
                assert_never(effect)

    def _fetch(self, effect: FetchFleet) -> FleetEvent:
        try:
            rows = self._kcl3.fetch(effect.workers)
        except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
            return FleetFetchFailed(problem_of(error), detail_of(error))
        return FleetFetched(rows, self._clock.wall_ms() / 1000)

    def _report(self, effect: ReportWorker) -> FleetEvent:
        mean = self._cpu.measure()
        if mean is not None:
            self._cpu_means.append(mean)
        cpu = list(self._cpu_means) if effect.measures_cpu and self._cpu_means else None
        stats = stats_to_report(self._worker, self._clock.wall_ms() / 1000, cpu, is_full=effect.is_full)
        try:
            self._kcl3.report(stats)
        except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
            return WorkerReported(problem_of(error), detail_of(error))
        return WorkerReported()

    def _leave(self) -> FleetEvent:
        try:
            self._kcl3.withdraw(self._worker)
        except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
            log.warning(
                "the metrics of worker %s could not be deleted, so leases may be assigned to it for another minute: %s",
                self._worker,
                detail_of(error),
            )
        return FleetLeft()

    def _find_own(self, effect: FindOwnLeases) -> FleetEvent:
        try:
            keys = self._kcl3.find_keys_of(self._worker) - effect.known
            leases = self._table.fetch_many(keys).leases if keys else ()
        except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
            return OwnLeasesNotFound(problem_of(error), detail_of(error))
        return OwnLeasesFound(leases)
