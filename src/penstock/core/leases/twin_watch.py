"""Detects two living processes under one worker id: a copied configuration, or a deployment that overlaps.

Each process is a run of its worker, and writes its run on every lease that it takes or renews. Its number is higher than the
numbers of the worker's runs that the table shows when it begins. So a restarted process takes its leases at once, without
checking whether the earlier process lives: if that one does, it finds its leases under a later run. It leaves them to that
run, and stops when it has seen the later run write twice.
"""

from __future__ import annotations

from msgspec import Struct

from penstock.core.leases.lease import Lease, WorkerRun
from penstock.core.leases.lease_view import LeaseView, OwnerState


class Twin(Struct, frozen=True):
    """Another living process of the same worker, which is the later one.

    Args:
        key: A lease that it renews.
        run: Its run.
        own_run: This process's run.
    """

    key: str
    run: WorkerRun
    own_run: WorkerRun


class TwinWatch:
    """Watches for another run of one worker. Not thread-safe.

    Args:
        me: The worker's id.
        run_name: The name of this run; empty for a worker that writes no runs.
        view: The coordinator's.
    """

    def __init__(self, me: str, run_name: str, view: LeaseView) -> None:
        self.me = me
        self.twin: Twin | None = None
        """The later run, once it is known to live."""
        self._view = view
        self._run_name = run_name
        self._run: WorkerRun | None = None
        self._number = 1
        self._later: dict[str, Lease] = {}  # rows of later runs, as they were seen first

    @property
    def run(self) -> WorkerRun | None:
        """This process's run; the first use fixes its number."""
        if self._run is None and self._run_name:
            self._run = WorkerRun(self._number, self._run_name)
        return self._run

    def on_row(self, row: Lease) -> None:
        """Handle a row that was read."""
        run = row.run
        if run is None or not self._run_name or not run.is_of(self.me):
            self._later.pop(row.key, None)
        elif self._run is None:
            self._number = max(self._number, run.number + 1)
        elif row.reader == self.me and run > self._run:
            self._on_later_run(row, run, self._run)
        else:
            self._later.pop(row.key, None)

    def _on_later_run(self, row: Lease, run: WorkerRun, own_run: WorkerRun) -> None:
        before = self._later.get(row.key)
        if before is None or before.run != run:
            self._later[row.key] = row
        elif row.counter > before.counter and self.twin is None:
            self.twin = Twin(row.key, run, own_run)

    def leaves_alone(self, row: Lease, now_s: float) -> bool:
        """Return whether a lease in this worker's name belongs to a later run that may live."""
        return row.key in self._later and self._view.owner_state(row.key, now_s) is OwnerState.ALIVE


def describe_twin(worker: str, table: str, twin: Twin) -> str:
    """Return the error message of a process that stops because of a later living process.

    Args:
        worker: The worker's id.
        table: The lease table.
        twin: The other process.
    """
    return (
        f"another process works under this worker's id, {worker}, and has taken over its leases in lease table {table} (lease "
        f"{twin.key}, run {twin.run}; this process is run {twin.own_run}). The id must be unique among the living workers of an "
        "application: the process that began last goes on, and this one stops. Give each process an id of its own (worker_id; "
        "workerId in Spark), or none"
    )
