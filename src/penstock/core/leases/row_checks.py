"""Checks of the rows that one worker reads: its leases must be of its streams, and of this process.

Lease keys are shard ids, which are the same in every stream. Rows that Penstock wrote have the stream's ARN and creation time
and are checked whenever they are read. Rows that do not, as Java KCL workers write them, are set aside until they were compared
with a listing of the stream's shards: none of them is taken before. The same listing has the service's time, which a LATEST
without a moment gets when its lease is taken. In a table of several streams, rows of streams that this worker does not read are
ignored: other workers of the application may read them.

Two processes may live under one worker id: a copied configuration, or a deployment that overlaps. Each process is a run of its
worker, and writes its run on every lease that it takes or renews. Its number is higher than the numbers of the worker's runs
that the table shows when it begins. So a restarted process takes its leases at once, without checking whether the earlier
process lives: if that one does, it finds its leases under a later run. It leaves them to that run, and stops when it has seen
the later run write twice.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from typing import Final

from penstock.core.leases.coordinator_effects import ForeignLease, LaterRun, Level, Topic, Turn
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.lease import Lease, WorkerRun, stream_id_of
from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.leases.lease_writes import Take
from penstock.core.position import LATEST
from penstock.core.shard import Shard
from penstock.core.stream_identity import StreamIdentity

# --- rows of other streams ---------------------------------------------------------------------------------


def find_lease_of_other_mode(rows: Iterable[Lease], *, reads_several: bool) -> ForeignLease | None:
    """Return a lease of a one-stream application if this one reads several streams, or the reverse; None if there is none."""
    for row in rows:
        if bool(stream_id_of(row.key)) != reads_several:
            why = "one stream" if reads_several else "several streams in one table"
            return ForeignLease(row.key, f"is of an application that reads {why}", is_of_other_mode=True)
    return None


def find_foreign_lease(
    rows: Iterable[Lease], stream: StreamIdentity, listed: Mapping[str, Shard] | None = None
) -> ForeignLease | None:
    """Return a row that belongs to another stream, or None.

    Args:
        stream: The stream to which the rows should belong.
        listed: The shards of `stream` by id: rows that name no stream are compared with them. None compares nothing.
    """
    for row in rows:
        if row.stream is not None:
            if row.stream != stream:
                return ForeignLease(row.key, _describe_other_stream(row.stream, stream))
            continue
        shard = None if listed is None else listed.get(row.key)
        why = None if shard is None else why_foreign(row, shard)
        if why is not None:
            return ForeignLease(row.key, why)
    return None


def why_foreign(row: Lease, shard: Shard) -> str | None:
    """Return why a row cannot be the lease of a listed shard with the same id; None if it can."""
    if row.hash_range is not None and row.hash_range != shard.hash_range:
        return (
            f"it covers the hash keys {row.hash_range.start}..{row.hash_range.end}, and the stream's shard "
            f"{shard.hash_range.start}..{shard.hash_range.end}"
        )
    if row.parents and shard.parents and row.parents != frozenset(shard.parents):
        parents, listed_parents = sorted(row.parents), sorted(shard.parents)
        return f"its parents are {', '.join(parents)}, and the stream's {', '.join(listed_parents)}"
    return None


def _describe_other_stream(found: StreamIdentity, stream: StreamIdentity) -> str:
    if found.arn == stream.arn:
        return (
            f"it was created for a stream of the same name that was created at {found.created_ms} ms, and this one was "
            f"created at {stream.created_ms} ms: the stream was deleted and created again"
        )
    return f"it was created for the stream {found.arn}"


def describe_foreign_table(
    table: str, stream: str, foreign: ForeignLease, option: str = "applicationName (or leaseTable)"
) -> str:
    """Return the error message for a lease table of another stream, with the remedy.

    Args:
        stream: Name or ARN of the stream to read.
        option: The caller's option that names the table.
    """
    if foreign.is_of_other_mode:
        return (
            f"lease table {table} cannot be used for stream {stream}: row {foreign.key} {foreign.why}. Leases of one stream "
            f"and of several cannot share a table, as in the KCL: choose another {option}, or delete the table if that "
            "application is gone"
        )
    return (
        f"lease table {table} is not one of stream {stream}: row {foreign.key} belongs to another stream ({foreign.why}). "
        "Shard ids are the same in every stream, so two streams cannot share an application: choose another "
        f"{option} for this stream, or delete the table if the other stream is gone"
    )


class StreamCheck:
    """One worker's check that the rows that it reads are of its streams. Not thread-safe.

    Args:
        options: They name the streams that are read; without any, there is no check.
    """

    def __init__(self, options: CoordinatorOptions, view: LeaseView) -> None:
        self._options = options
        self.view = view
        self.foreign_lease: ForeignLease | None = None
        """The first row of another stream that was seen, or None."""
        self._compared_keys: set[str] = set()  # of the rows that were compared with a listing
        # By stream: the service's time in milliseconds, and when it was received.
        self._clocks: dict[str, tuple[int, float]] = {}

    def keep_own_streams(self, leases: tuple[Lease, ...]) -> tuple[Lease, ...]:
        """Return the rows of streams that this worker reads; all rows unless it reads several streams.

        Set `foreign_lease` if a row is of an application that reads several streams while this one reads one, or the reverse.
        """
        if not self._options.names_streams:
            return leases
        reads_several = bool(self._options.streams)
        self.foreign_lease = self.foreign_lease or find_lease_of_other_mode(
            leases, reads_several=reads_several
        )
        if not reads_several:
            return leases
        return tuple(lease for lease in leases if self._options.stream_of(lease.key) is not None)

    def on_scan(
        self, leases: Collection[Lease], *, held: Container[str] = (), is_whole_table: bool = True
    ) -> list[str]:
        """Check the rows of a scan: set those aside that may be of another stream, so that this worker does not take them.

        Args:
            leases: The rows, of streams that this worker reads.
            held: Leases of this worker. They are not set aside: it has taken them after this check.
            is_whole_table: Whether these are all rows. If not, other rows that were set aside remain so.

        Returns:
            The ids of the streams whose shards must be listed, to compare the rows with them.
        """
        if not self._options.names_streams:
            return []
        for rows in self._rows_by_stream(leases).values():
            self._check_for_foreign_lease(rows)
        aside = {lease.key for lease in leases if not self._is_checked(lease)}
        if is_whole_table:
            self._compared_keys.intersection_update(lease.key for lease in leases)
        else:
            aside |= self.view.rows_set_aside.difference(lease.key for lease in leases)
        aside = {key for key in aside if key not in held}
        self.view.set_rows_aside(aside)
        return sorted({self._options.stream_id_of(key) for key in aside})

    def _rows_by_stream(self, leases: Iterable[Lease]) -> dict[str, list[Lease]]:
        if not self._options.streams:
            return {"": list(leases)}
        rows: dict[str, list[Lease]] = {}
        for lease in leases:
            rows.setdefault(self._options.stream_id_of(lease.key), []).append(lease)
        return rows

    def _check_for_foreign_lease(self, rows: list[Lease], listed: dict[str, Shard] | None = None) -> None:
        stream = self._options.stream_of(rows[0].key) if rows else None
        if stream is not None:
            self.foreign_lease = self.foreign_lease or find_foreign_lease(rows, stream, listed)

    def _is_checked(self, lease: Lease) -> bool:
        # A LATEST without a moment needs the service's time, which comes with a listing.
        has_time = lease.checkpoint != LATEST or self._options.stream_id_of(lease.key) in self._clocks
        return has_time and (lease.stream is not None or lease.key in self._compared_keys)

    def compare_rows(self, stream_id: str, shards: Iterable[Shard], moment_ms: int, now_s: float) -> None:
        """Compare the rows of a stream with every shard that it lists.

        Args:
            stream_id: The stream; empty if the table has one stream.
            moment_ms: The service's clock at its answer.
        """
        self._clocks[stream_id] = (moment_ms, now_s)
        listed = {shard.shard_id: shard for shard in shards}
        self._check_for_foreign_lease(self._rows_by_stream(self.view).get(stream_id, []), listed)
        compared = {key for key in self.view.rows_set_aside if self._options.stream_id_of(key) == stream_id}
        self._compared_keys |= compared
        self.view.set_rows_aside(self.view.rows_set_aside - compared)

    def stream_to_write(self, row: Lease) -> StreamIdentity | None:
        """Return the stream that a renewal writes on a row; None if the row names one already."""
        return self._options.stream_of(row.key) if row.stream is None else None

    def complete_take(self, write: Take, now_s: float) -> Take:
        """Return a take with the stream of its key, and with the present moment if the row has LATEST without one."""
        stream = self._options.stream_of(write.key)
        if stream is None:
            return write
        row = self.view.get(write.key)
        clock = self._clocks.get(self._options.stream_id_of(write.key))
        pin_ms = None
        if clock is not None and row is not None and row.checkpoint == LATEST:
            listed_ms, listed_s = clock
            pin_ms = listed_ms + int((now_s - listed_s) * 1000)
        return Take(write.key, write.counter, write.worker, pin_ms, stream)


# --- a later process of the same worker ---------------------------------------------------------------------


class LaterRuns:
    """Watches for later runs of one worker: processes that began later under its id. Not thread-safe.

    Args:
        run_name: The name of this run; empty for a worker that writes no runs.
    """

    def __init__(self, me: str, run_name: str, view: LeaseView) -> None:
        self.me = me
        self.later_run: LaterRun | None = None
        """The first later run that this process has seen write; None before that."""
        self._view = view
        self._run_name = run_name
        self._run: WorkerRun | None = None  # this process's run: fixed before the first write
        self._next_number = 1  # one above the highest run of this worker that was read
        self._rows_of_later_runs: dict[str, Lease] = {}  # each as it was first read with that run

    @property
    def run(self) -> WorkerRun | None:
        """This process's run; the first use fixes its number. None if this worker writes no runs."""
        if self._run is None and self._run_name:
            self._run = WorkerRun(self._next_number, self._run_name)
        return self._run

    def on_row(self, row: Lease) -> None:
        """Handle a row that was read."""
        run = row.run
        if run is None or not self._run_name or not run.is_of(self.me):
            self._rows_of_later_runs.pop(row.key, None)
        elif self._run is None:  # this run has no number yet
            self._next_number = max(self._next_number, run.number + 1)
        elif row.reader == self.me and run > self._run:
            self._on_later_run(row, run, self._run)
        else:
            self._rows_of_later_runs.pop(row.key, None)

    def _on_later_run(self, row: Lease, run: WorkerRun, own_run: WorkerRun) -> None:
        """Handle a row with a later run: that run lives if it has renewed the lease since the row was read first."""
        before = self._rows_of_later_runs.get(row.key)
        if before is None or before.run != run:
            self._rows_of_later_runs[row.key] = row
        elif row.counter > before.counter and self.later_run is None:
            self.later_run = LaterRun(row.key, run, own_run)

    def may_hold(self, row: Lease, now_s: float) -> bool:
        """Return whether a later run of this worker may hold a lease: its row names that run, and has not expired."""
        return (
            row.key in self._rows_of_later_runs and self._view.owner_state(row.key, now_s) is OwnerState.ALIVE
        )


def describe_later_run(worker: str, table: str, later_run: LaterRun) -> str:
    """Return the error message of a process that stops because of a later living process."""
    return (
        f"another process works under this worker's id, {worker}, and has taken over its leases in lease table {table} (lease "
        f"{later_run.key}, run {later_run.run}; this process is run {later_run.own_run}). The id must be unique among the living workers of an "
        "application: the process that began last goes on, and this one stops. Give each process an id of its own (worker_id; "
        "workerId in Spark), or none. A Spark query keeps its id in its checkpoint location: let one run of it end before the next begins"
    )


# --- damaged rows --------------------------------------------------------------------------------------------

SKIPPED_REPORTS_MAX: Final = 20
"""The most rows that are reported one by one: a prefix of a bucket may hold thousands of other objects."""


class DamagedRows:
    """Reports each damaged lease once, and the first `SKIPPED_REPORTS_MAX` rows that are not leases. Not thread-safe."""

    def __init__(self, view: LeaseView, turn: Turn) -> None:
        self.view = view
        self._turn = turn
        self._reported: set[tuple[str, str]] = set()
        self._skipped_count = 0

    def report_new_rows(self, shard_ids: Iterable[str] = ()) -> None:
        """Report the damaged rows of the last scan that were not reported before.

        Args:
            shard_ids: Shards of a listing. An unreadable row is a damaged lease if its key is one of these, or if it was a
                readable lease before. Other unreadable rows are reported as rows that are not leases.
        """
        listed = set(shard_ids)
        for key, why in self.view.damaged_rows.items():
            if key in self.view or key in listed:
                self._report_damaged(key, why)
            elif self._skipped_count <= SKIPPED_REPORTS_MAX and self._mark_reported(key, why):
                self._report_skipped(key, why)
        for key in sorted(self.view.circular_leases):
            if self._mark_reported(key, "circular"):
                row = self.view.get(key)
                parents = "" if row is None else ", ".join(sorted(row.parents))
                self._turn.report(
                    Topic.ROW_DAMAGED,
                    Level.ERROR,
                    f"lease {key} descends from itself by its parentShardId ({parents}): its row is damaged. The "
                    "shard is read without waiting for these parents; repair parentShardId",
                    key,
                    "circular",
                )

    def _report_skipped(self, key: str, why: str) -> None:
        self._skipped_count += 1
        is_last = self._skipped_count > SKIPPED_REPORTS_MAX  # `report_new_rows` reports no further ones
        message = f"row {key!r} of the lease table is left alone: {why}"
        if is_last:
            message = f"more than {SKIPPED_REPORTS_MAX} rows of the lease table are not leases. Further ones are left alone without a report"
        self._turn.report(Topic.ROW_SKIPPED, Level.WARNING, message, None if is_last else key)

    def _report_damaged(self, key: str, why: str) -> None:
        if self._mark_reported(key, f"damaged {why}"):
            self._turn.report(
                Topic.ROW_DAMAGED,
                Level.ERROR,
                f"the row of lease {key} is in the lease table and cannot be read as a lease: {why}. No worker can take or "
                "renew it, so the shard is not read until the row is repaired; if it is deleted, it is created again and the "
                "shard is read from its beginning",
                key,
                "unreadable",
            )

    def _mark_reported(self, key: str, why: str) -> bool:
        """Return whether the row was not reported before for this reason."""
        is_new = (key, why) not in self._reported
        self._reported.add((key, why))
        return is_new
