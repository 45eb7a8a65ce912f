"""A worker's health: `Consumer.health()`, and `/health` and `/ready` on the metrics port."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from penstock.runtime.lease_loop import LeaseSnapshot

_ROUNDS_OVERDUE: Final = 3

ShardState: TypeAlias = Literal["reading", "paused", "stalled", "waiting", "leaving", "stopped"]
"""`waiting`: the shard waits for its parents or for an earlier call of the handler; `leaving`: it ends or is released."""


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """One shard whose lease the worker holds.

    Args:
        shard_id: The shard.
        state: State of the shard.
        lag_ms: The age of the oldest record that is not done; 0 when there is none; None when not known.
        stopped_reason: Why the shard stopped; None if it has not stopped.
        read_failure: The error with which the shard's reads keep failing, of a stalled shard also that they are throttled; None if
            they do not fail.
    """

    shard_id: str
    state: ShardState
    lag_ms: int | None = None
    stopped_reason: str | None = None
    read_failure: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """A worker at one moment.

    Args:
        is_healthy: Whether it runs, reaches its lease table and moves every shard that it holds.
        is_ready: Whether it takes its share of the work: it runs, sees and writes the lease table, and reads its shards.
        problems: The reasons why it is not healthy; also leases whose rows no worker can read, which leave it healthy.
        stream: Name or ARN.
        application: Names the lease table.
        worker_id: The worker's name in the lease table.
        shards: The shards whose leases it holds.
        renewal_age_s: Time since the last renewal of the lease that was not renewed for longest; None without leases.
        table_scan_age_s: Time since the last complete scan of the lease table; None before the first one.
    """

    is_healthy: bool
    is_ready: bool
    problems: tuple[str, ...]
    stream: str
    application: str
    worker_id: str
    shards: tuple[ShardHealth, ...] = ()
    renewal_age_s: float | None = None
    table_scan_age_s: float | None = None

    @property
    def stopped(self) -> dict[str, str]:
        """The shards that have stopped, and why."""
        return {
            shard.shard_id: shard.stopped_reason or "" for shard in self.shards if shard.state == "stopped"
        }

    @property
    def lag_ms(self) -> int | None:
        """The largest lag of a shard; None when none is known."""
        return max((shard.lag_ms for shard in self.shards if shard.lag_ms is not None), default=None)

    def to_document(self) -> dict[str, Any]:
        """Return the health as values that JSON can express."""
        return {**dataclasses.asdict(self), "lag_ms": self.lag_ms}


def judge_health(
    *,
    stream: str,
    application: str,
    worker_id: str,
    failure: BaseException | None,
    has_ended: bool,
    is_stopping: bool,
    shards: Sequence[ShardHealth],
    leases: LeaseSnapshot,
    started_s: float,
    now_s: float,
    lease_duration_s: float,
) -> Health:
    """Return the health of a worker that was started.

    Args:
        failure: The error that has ended the worker, or is ending it; None if there is none.
        lease_duration_s: A renewal that is older than this is overdue.
    """
    renewed_s = min((lease.renewed_s for lease in leases.held_leases), default=None)
    renewal_age_s = None if renewed_s is None or has_ended else round(now_s - renewed_s, 3)
    scanned_s = leases.table_scanned_s
    table_scan_age_s = None if scanned_s is None else round(now_s - scanned_s, 3)
    table_scan_due_s = _ROUNDS_OVERDUE * leases.round_s + lease_duration_s
    problems: list[str] = []
    if failure is not None:
        problems.append(f"the worker failed: {failure}")
    elif has_ended:
        problems.append("the worker has stopped")
    problems += _problems_of(shards)
    if not has_ended:
        problems += leases.failing_calls
        if renewal_age_s is not None and renewal_age_s >= lease_duration_s:
            problems.append(f"a lease was not renewed for {renewal_age_s:.0f} s")
        unread_s = now_s - started_s if table_scan_age_s is None else table_scan_age_s
        if unread_s > table_scan_due_s and not is_stopping:
            problems.append(f"the lease table could not be read for {unread_s:.0f} s")
    is_working = not (has_ended or is_stopping or failure is not None)
    return Health(
        is_healthy=not problems,
        is_ready=is_working
        and not leases.failing_calls
        and all(shard.read_failure is None for shard in shards)
        and table_scan_age_s is not None
        and table_scan_age_s <= table_scan_due_s,
        # A damaged row leaves the worker healthy: all workers see the same row, and the whole fleet would be restarted.
        problems=(*problems, *(() if has_ended else leases.damaged_leases)),
        stream=stream,
        application=application,
        worker_id=worker_id,
        shards=tuple(shards),
        renewal_age_s=renewal_age_s,
        table_scan_age_s=table_scan_age_s,
    )


def health_before_start(stream: str, application: str, worker_id: str) -> Health:
    """Return the health of a worker that does not run yet."""
    return Health(
        is_healthy=False,
        is_ready=False,
        problems=("the consumer was not started",),
        stream=stream,
        application=application,
        worker_id=worker_id,
    )


def _problems_of(shards: Sequence[ShardHealth]) -> list[str]:
    problems: list[str] = []
    for shard in shards:
        if shard.state == "stopped":
            problems.append(f"shard {shard.shard_id} has stopped: {shard.stopped_reason}")
        elif shard.state == "stalled":
            problems.append(f"shard {shard.shard_id} is behind and does not move")
        if shard.read_failure is not None:
            problems.append(f"shard {shard.shard_id} cannot be read: {shard.read_failure}")
    return problems
