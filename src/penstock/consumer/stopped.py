"""The shards that a worker stopped reading after a failure, for its reports and its health."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from penstock.consumer.shard_run import ShardRun
from penstock.core.leases.held_lease_phases import HeldLeaseStatus
from penstock.errors import HandlerFailed, PenstockError, ShardsStopped
from penstock.runtime.thread_pull import IterationEnded

_NAMED_MAX = 5


def describe_shard_failure(shard_id: str, failure: BaseException) -> str:
    """Return the failure as a text that names the shard."""
    text = str(failure)
    return text if shard_id in text else f"shard {shard_id}: {text}"


def without_ended_iteration(failures: Mapping[str, PenstockError]) -> dict[str, PenstockError]:
    """Return the failures, without those of shards that stopped because an iteration over the consumer has ended."""
    return {
        shard_id: failure
        for shard_id, failure in failures.items()
        if not isinstance(failure.__cause__, IterationEnded)
    }


class StoppedShards:
    """Collects the shards that a worker stopped reading after a failure. Safe to use from several threads and in a signal handler."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._runs: dict[str, ShardRun] = {}
        self._is_frozen = False

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, run: ShardRun) -> None:
        """Add a stopped shard."""
        with self._lock:
            self._runs[run.key] = run

    def drop(self, shard_id: str) -> None:
        """Remove a shard that is read again."""
        with self._lock:
            self._runs.pop(shard_id, None)

    def forget_released(self, held_leases: Collection[HeldLeaseStatus]) -> None:
        """Forget shards whose leases this worker does not hold any more."""
        places = {(lease.key, lease.epoch) for lease in held_leases}
        with self._lock:
            if not self._is_frozen:
                self._runs = {key: run for key, run in self._runs.items() if (run.key, run.epoch) in places}

    def freeze(self) -> None:
        """Keep all stopped shards from now on, although the worker releases their leases: it reports them at its end."""
        self._is_frozen = True

    def runs(self) -> list[ShardRun]:
        """Return the run of each stopped shard."""
        with self._lock:
            return list(self._runs.values())

    @property
    def failures(self) -> dict[str, PenstockError]:
        """Why each shard stopped."""
        return {run.key: run.failure or HandlerFailed(f"shard {run.key} has stopped") for run in self.runs()}

    def make_error(self, stream: str, worker_id: str) -> ShardsStopped | None:
        """Return the error of a worker whose shards have all stopped; None if each stopped because an iteration has ended."""
        failures = without_ended_iteration(self.failures)
        if not failures:
            return None
        first, *others = sorted(failures)
        also = ""
        if others:
            more = f" and {len(others) - _NAMED_MAX} more" if len(others) > _NAMED_MAX else ""
            also = f" Stopped as well: {', '.join(others[:_NAMED_MAX])}{more}."
        error = ShardsStopped(
            f"stream {stream}: every shard that worker {worker_id} held has stopped. {describe_shard_failure(first, failures[first])}."
            f"{also} Start it again once that is mended; with on_all_stopped='stay' it stays and keeps its leases",
            failures,
        )
        error.__cause__ = failures[first]
        return error
