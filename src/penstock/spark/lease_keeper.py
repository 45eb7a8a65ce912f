"""The query's leases, held by the driver's reader process and kept alive by a thread of their own.

The thread renews at a third of the lease duration, however long a batch takes. Tasks write their claims on the same
rows without touching the counter, so the two never disturb each other. A write of the driver on a held lease goes
through `write`, which knows the counter.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.core.lease import Applied, Lease, LeaseWrite, Outcome, Release, Renew, Take
from penstock.errors import NotFound, ServiceError
from penstock.ports.lease_table import LeaseTable

_log: Final = logging.getLogger("penstock.spark")
_THREADS_MAX: Final = 16
_RETRIES_MAX: Final = 3


class LeaseKeeper:
    """Holds leases for one worker id. Thread-safe.

    Args:
        table: The lease table.
        worker: The worker id.
        lease_duration_s: Others may take a lease that shows no life for this long.
    """

    def __init__(self, table: LeaseTable, worker: str, lease_duration_s: float) -> None:
        self._table = table
        self.worker = worker
        self._lease_duration_s = lease_duration_s
        self._held: dict[str, Lease] = {}
        self._seen: dict[str, tuple[int, str | None, float]] = {}
        self._lock = threading.RLock()
        self._row_locks: dict[str, threading.Lock] = {}
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=_THREADS_MAX, thread_name_prefix="penstock-lease")
        self._thread = threading.Thread(target=self._renew_forever, name="penstock-renew", daemon=True)
        self._thread.start()

    @property
    def held(self) -> dict[str, Lease]:
        """The leases that are this worker's now, as last read or written."""
        with self._lock:
            return dict(self._held)

    def stop(self, release: Iterable[str]) -> None:
        """Stop renewing; give up the named leases in one write each, so that others go on at once."""
        self._stopping.set()
        self._thread.join(timeout=self._lease_duration_s)
        for key, outcome in self._each(list(release), self._release):
            if not isinstance(outcome, Applied):
                _log.warning("lease %s could not be released (%s); it expires by itself", key, outcome)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _release(self, key: str) -> Outcome | ServiceError:
        return self.write(key, lambda counter: Release(key, counter, self.worker))

    # --- looking ------------------------------------------------------------------------------------------

    def observe(self, leases: Iterable[Lease], now_s: float) -> None:
        """Note when each lease last showed life, on this process's own monotonic clock."""
        seen = {}
        for lease in leases:
            before = self._seen.get(lease.key)
            changed = before is None or before[:2] != (lease.counter, lease.owner)
            since_s = now_s if changed or before is None else before[2]
            seen[lease.key] = (lease.counter, lease.owner, since_s)
        self._seen = seen

    def is_live_elsewhere(self, lease: Lease, now_s: float) -> bool:
        """Whether another worker owns the lease and has shown life within the lease duration."""
        if lease.reader is None or lease.reader == self.worker:
            return False
        return now_s - self._seen[lease.key][2] <= self._lease_duration_s

    # --- writing ------------------------------------------------------------------------------------------

    def acquire(self, leases: Iterable[Lease]) -> list[str]:
        """Become the owner of leases, all at once; an own one is renewed so that its pending claim stays.

        Returns:
            The keys that are held now. The others went to somebody else meanwhile.
        """
        wanted = {lease.key: lease for lease in leases}
        got = []
        for key, outcome in self._each(list(wanted), lambda key: self._acquire_one(wanted[key])):
            if isinstance(outcome, Applied) and outcome.lease is not None:
                with self._lock:
                    self._held[key] = outcome.lease
                got.append(key)
            elif isinstance(outcome, ServiceError):
                _log.warning("lease %s could not be acquired now, next round again: %s", key, outcome)
        return got

    def _acquire_one(self, lease: Lease) -> Outcome | ServiceError:
        if lease.reader == self.worker:
            return self._try(
                Renew(
                    lease.key,
                    lease.counter,
                    during_handover=lease.checkpoint_owner is not None,
                    worker=self.worker,
                )
            )
        return self._try(Take(lease.key, lease.counter, self.worker))

    def refresh(self, leases: Iterable[Lease]) -> list[str]:
        """Take over what a scan shows of the held leases (claims, checkpoints); drop those that are lost.

        Returns:
            Keys that are not this worker's any more.
        """
        rows = {lease.key: lease for lease in leases}
        lost = []
        with self._lock:
            for key, mine in list(self._held.items()):
                row = rows.get(key)
                if row is None or row.reader != self.worker:
                    del self._held[key]
                    lost.append(key)
                elif row.counter >= mine.counter:
                    self._held[key] = row
        return lost

    def write(self, key: str, build: Callable[[int], LeaseWrite]) -> Outcome | ServiceError:
        """Write on a held lease with the counter that stands there.

        Returns:
            The outcome, or the error when the table did not answer. A lease that turned out to be another
            worker's is dropped.
        """
        with self._row_lock(key):
            for _ in range(_RETRIES_MAX):
                with self._lock:
                    mine = self._held.get(key)
                if mine is None:
                    return NotFound(f"lease {key} is not held by {self.worker}", resource=key)
                outcome = self._try(build(mine.counter))
                if isinstance(outcome, Applied):
                    self._note(key, outcome.lease)
                    return outcome
                if isinstance(outcome, ServiceError) or not self._catch_up(key):
                    return outcome
            return outcome

    def _note(self, key: str, lease: Lease | None) -> None:
        with self._lock:
            if lease is None or lease.reader != self.worker:
                self._held.pop(key, None)
            else:
                self._held[key] = lease

    def _catch_up(self, key: str) -> bool:
        """Read a row whose counter was another one than expected; False when the lease is lost."""
        try:
            row = self._table.fetch(key)
        except ServiceError as error:
            _log.warning("lease %s could not be read back: %s", key, error)
            return False
        if row is None or row.reader != self.worker:
            self._note(key, None)
            _log.warning("lease %s was lost to %s", key, None if row is None else row.reader)
            return False
        self._note(key, row)
        return True

    def _try(self, write: LeaseWrite) -> Outcome | ServiceError:
        try:
            return self._table.write(write)
        except ServiceError as error:
            return error

    def _each(
        self, keys: list[str], act: Callable[[str], Outcome | ServiceError]
    ) -> list[tuple[str, Outcome | ServiceError]]:
        return list(zip(keys, self._pool.map(act, keys), strict=True))

    def _row_lock(self, key: str) -> threading.Lock:
        with self._lock:
            return self._row_locks.setdefault(key, threading.Lock())

    # --- renewing -----------------------------------------------------------------------------------------

    def _renew_forever(self) -> None:
        period_s = self._lease_duration_s / 3
        next_s = time.monotonic() + period_s
        while not self._stopping.wait(max(0.0, next_s - time.monotonic())):
            next_s = time.monotonic() + period_s
            keys = list(self.held)
            try:
                results = self._each(keys, self._renew)
            except RuntimeError:  # the pool is shut down: the interpreter is on its way out
                return
            for key, outcome in results:
                if isinstance(outcome, ServiceError):
                    _log.warning(
                        "lease %s could not be renewed now, next try in %.1f s: %s", key, period_s, outcome
                    )

    def _renew(self, key: str) -> Outcome | ServiceError:
        with self._lock:
            mine = self._held.get(key)
        handing_over = mine is not None and mine.checkpoint_owner is not None
        return self.write(
            key, lambda counter: Renew(key, counter, during_handover=handing_over, worker=self.worker)
        )
