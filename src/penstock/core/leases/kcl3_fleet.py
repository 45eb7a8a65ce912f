"""The rows that KCL 3 keeps beside the leases: they show whether a Java leader assigns the leases.

A native KCL 3 fleet has a leader that assigns every lease, by metrics that the workers report. Beside it a worker moves no
lease by itself. The kind of fleet follows from these rows.

Source:
    KCL 3.5.1: the states of `Migration3.0`, the lock `Leader`, and the rows of worker metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Final, assert_never

from msgspec import Struct, field

REPORT_INTERVAL_S: Final = 30.0
"""The interval at which KCL 3 workers report their metrics."""
METRICS_AGE_MAX_S: Final = 2 * REPORT_INTERVAL_S
"""A worker whose metrics are older has stopped."""
CPU: Final = "C"
"""The name of the processor metric in the rows."""
SAMPLES_MAX: Final = 10
FAILED_SAMPLE: Final = -1.0
"""The leader assigns nothing to a worker whose last sample is this."""
_NATIVE: Final = frozenset({"CLIENT_VERSION_3X", "CLIENT_VERSION_3X_WITH_ROLLBACK"})
_UPGRADING: Final = "CLIENT_VERSION_UPGRADE_FROM_2X"
_PLAIN_2X: Final = frozenset({"CLIENT_VERSION_INIT", "CLIENT_VERSION_2X"})


class LeaderLock(Struct, frozen=True):
    """The lock of the worker that assigns leases.

    Args:
        record_version: Changes with every renewal of the lock.
        lease_s: The lock is free if it was not renewed for this long.
        is_released: Whether its owner has given it up.
    """

    owner: str
    record_version: str
    lease_s: float
    is_released: bool = False


class WorkerStats(Struct, frozen=True):
    """The metrics that one worker reports.

    Args:
        reported_s: When the worker wrote them, in seconds since the epoch.
        samples: The last values of each metric by its short name, oldest first; empty if throughput alone counts.
        limits: The limit of each metric, above which a worker is overloaded.
    """

    worker: str
    reported_s: int
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    is_penstock: bool = False

    def is_fresh(self, wall_s: float) -> bool:
        """Return whether the leader counts this worker as alive."""
        return wall_s - self.reported_s <= METRICS_AGE_MAX_S


class Kcl3Rows(Struct, frozen=True):
    """The rows that KCL 3 keeps beside the leases of an application.

    Args:
        version: The state of the fleet's migration (`cv` of the row `Migration3.0`), or None without that row.
        workers: The metrics of the requested workers.
        has_index: Whether leases can be found by their owner.
        server_ms: The service's clock at its answer, in milliseconds since the epoch, or None if the answer has none.
    """

    version: str | None = None
    leader: LeaderLock | None = None
    workers: tuple[WorkerStats, ...] = ()
    has_index: bool = False
    server_ms: int | None = None

    def stats_of(self, worker: str) -> WorkerStats | None:
        """Return the metrics of a worker, or None."""
        return next((stats for stats in self.workers if stats.worker == worker), None)


class FleetMode(Enum):
    """Whether a KCL 3 leader or the workers decide about the leases. The value is the text for the log."""

    OWN = "the workers share the leases by Penstock's own balance: there is no native KCL 3 worker"
    UPGRADING = (
        "KCL 3 workers in 2.x-compatible mode: every worker takes its own share, and reports its metrics so that the "
        "fleet can go on to 3.x"
    )
    LED = "a native KCL 3 fleet: its leader assigns every lease"
    LEADERLESS = "a native KCL 3 fleet without a leader just now: free leases are taken, and nothing else moves until there is one"


class FleetRefusal(Enum):
    """Why a worker cannot work beside the KCL 3 workers of its table."""

    UNKNOWN_VERSION = "unknown version"
    UNREADABLE = "unreadable"
    UNREPORTED = "unreported"


def describe_refusal(why: FleetRefusal, table: str, detail: str) -> str:
    """Return the error message for a refusal, with the remedy.

    Args:
        detail: The unknown state, or the service's message.
    """
    match why:
        case FleetRefusal.UNKNOWN_VERSION:
            known = ", ".join(sorted({*_NATIVE, *_PLAIN_2X, _UPGRADING}))
            return (
                f"the Java workers of lease table {table} are in a state that this version of Penstock does not know "
                f"(row Migration3.0 has cv={detail}; known: {known}), so it is unsafe to take leases "
                "beside them: update Penstock, or give it an application of its own"
            )
        case FleetRefusal.UNREADABLE:
            return (
                f"KCL 3 workers have used lease table {table}, and whether a leader assigns its leases cannot be read "
                f"({detail}): allow dynamodb:GetItem on {table} and on the tables {table}-CoordinatorState and "
                f"{table}-WorkerMetricStats, or give this worker an application of its own"
            )
        case FleetRefusal.UNREPORTED:
            return (
                f"lease table {table} belongs to a native KCL 3 fleet, and this worker may not report its metrics "
                f"({detail}), so the fleet's leader would assign it nothing and could not balance what it holds: allow "
                f"dynamodb:UpdateItem and dynamodb:DeleteItem on {table} and on the table {table}-WorkerMetricStats, "
                "or give this worker an application of its own"
            )
        case _:
            assert_never(why)


def is_known_version(version: str | None) -> bool:
    """Return whether this version of Penstock knows a state of the migration (None: there is none)."""
    return version is None or version in _NATIVE or version in _PLAIN_2X or version == _UPGRADING


def wants_reports(version: str | None) -> bool:
    """Return whether the workers of a fleet in this state of the migration report their metrics."""
    return version in _NATIVE or version == _UPGRADING


class FleetModeDetector:
    """Detects from successive reads whether a KCL 3 leader or the workers decide about the leases. Not thread-safe."""

    def __init__(self, me: str) -> None:
        self.me = me
        self._lock: LeaderLock | None = None
        self._changed_s = 0.0  # when the lock was last seen to change
        self._has_changed = False  # whether that was a renewal: not the first sight of the lock
        # By worker: `reported_s`, and when that was first seen.
        self._reports: dict[str, tuple[int, float]] = {}

    def detect(self, rows: Kcl3Rows, now_s: float, wall_s: float) -> FleetMode:
        """Return the fleet's mode.

        Args:
            now_s: Monotonic seconds, for the lock: it is free if this worker has not seen it change for `lease_s`.
            wall_s: Seconds since the epoch, for the metrics.
        """
        self._on_lock(rows.leader, now_s)
        self._on_reports(rows.workers, now_s)
        if rows.version == _UPGRADING:
            return FleetMode.UPGRADING
        if rows.version not in _NATIVE:
            return FleetMode.OWN
        if self._has_leader(rows, now_s, wall_s):
            return FleetMode.LED
        is_java_here = any(
            self._is_alive(stats, now_s, wall_s) for stats in rows.workers if not stats.is_penstock
        )
        return FleetMode.LEADERLESS if is_java_here else FleetMode.OWN

    @property
    def leader_due_s(self) -> float | None:
        """When the lock will be free unless it changes before, on the clock of `detect`; None without a lock."""
        return None if self._lock is None else self._changed_s + self._lock.lease_s

    def _on_lock(self, lock: LeaderLock | None, now_s: float) -> None:
        before, self._lock = self._lock, lock
        if lock is None or before is None or before.record_version != lock.record_version:
            self._changed_s = now_s
            self._has_changed = lock is not None and before is not None

    def _on_reports(self, workers: Sequence[WorkerStats], now_s: float) -> None:
        """Keep the time in each worker's report, and the moment at which this observer first saw that time."""
        before, self._reports = self._reports, {}
        for stats in workers:
            report = before.get(stats.worker)
            if report is None or report[0] != stats.reported_s:
                report = (stats.reported_s, now_s)
            self._reports[stats.worker] = report

    def _is_alive(self, stats: WorkerStats, now_s: float, wall_s: float) -> bool:
        # A stopped worker whose clock was fast leaves a report that looks fresh for too long, but does not change.
        _, since_s = self._reports[stats.worker]
        return stats.is_fresh(wall_s) and now_s - since_s <= METRICS_AGE_MAX_S

    def _has_leader(self, rows: Kcl3Rows, now_s: float, wall_s: float) -> bool:
        lock = self._lock
        if lock is None or lock.is_released or now_s - self._changed_s >= lock.lease_s:
            return False
        stats = rows.stats_of(lock.owner)
        # A lock that was abandoned long ago looks like a new one at first; its owner's metrics decide.
        return self._has_changed or (stats is not None and stats.is_fresh(wall_s))


def metrics_to_report(rows: Kcl3Rows, wall_s: float) -> frozenset[str]:
    """Return the names of the metrics that the Java workers report: the leader compares workers by the metrics common to all."""
    return frozenset(
        name
        for stats in rows.workers
        if stats.is_fresh(wall_s) and not stats.is_penstock
        for name in stats.samples
    )


def stats_to_report(
    worker: str, wall_s: float, cpu: Sequence[float] | None, *, is_full: bool = False
) -> WorkerStats:
    """Return the metrics that a worker reports.

    Args:
        cpu: Means of its processor use in percent, oldest first; None if the leader compares throughput alone.
        is_full: The worker has no room for further leases. It reports a failed sample, since the leader then assigns it none.
    """
    samples = () if cpu is None else tuple(round(value, 6) for value in cpu)
    if is_full:
        samples = (*samples, FAILED_SAMPLE)
    if cpu is None and not is_full:
        return WorkerStats(worker, int(wall_s), is_penstock=True)
    return WorkerStats(worker, int(wall_s), {CPU: samples[-SAMPLES_MAX:]}, {CPU: 100}, is_penstock=True)


def owners_without_metrics(rows: Kcl3Rows, owners: Collection[str], wall_s: float) -> list[str]:
    """Return those of some live owners that report no metrics, sorted: a leader can neither balance nor replace them."""
    fresh = {stats.worker for stats in rows.workers if stats.is_fresh(wall_s)}
    return sorted(set(owners) - fresh)
