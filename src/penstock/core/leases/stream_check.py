"""Keeps one worker away from the leases of other streams.

Rows that name their stream are checked whenever they are seen. Rows that do not, as Java KCL workers write them, are set
aside until they were compared with a listing of the stream's shards: none of them is taken before. The same listing has the
service's time, which a LATEST without a moment gets when its lease is taken.

In a table of several streams, rows of streams that this worker does not read are ignored: other workers of the application
may read them.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from typing import Final

from penstock.core.leases.coordinator_effects import Level, Topic, Turn
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.foreign_lease import ForeignLease, find_foreign_lease, find_other_mode
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.lease_writes import Take
from penstock.core.position import LATEST
from penstock.core.shard import Shard
from penstock.core.stream_identity import StreamIdentity


class StreamCheck:
    """One worker's check of the rows that it sees. Not thread-safe.

    Args:
        options: They name the streams that are read; without any, there is no check.
        view: The coordinator's.
    """

    def __init__(self, options: CoordinatorOptions, view: LeaseView) -> None:
        self._options = options
        self.view = view
        self.foreign: ForeignLease | None = None
        """The first row of another stream that was seen, or None."""
        self._compared: set[str] = set()  # keys of rows that were compared with a listing
        # By stream: the service's time in milliseconds, and when it was received.
        self._clocks: dict[str, tuple[int, float]] = {}

    def keep_own(self, leases: tuple[Lease, ...]) -> tuple[Lease, ...]:
        """Return the rows of streams that this worker reads; all rows unless it reads several streams.

        Set `foreign` if a row is of the other mode: of a table of several streams instead of one, or the reverse.
        """
        if not self._options.names_streams:
            return leases
        are_several = bool(self._options.streams)
        self.foreign = self.foreign or find_other_mode(leases, are_several=are_several)
        if not are_several:
            return leases
        return tuple(lease for lease in leases if self._options.stream_of(lease.key) is not None)

    def on_scan(
        self, leases: Collection[Lease], *, held: Container[str] = (), is_whole: bool = True
    ) -> list[str]:
        """Check the rows of a scan; return the ids of the streams that must be listed to compare rows with their shards.

        Args:
            leases: The rows, of streams that this worker reads.
            held: Leases of this worker, which are not set aside.
            is_whole: Whether these are all rows.
        """
        if not self._options.names_streams:
            return []
        for rows in self._by_stream(leases).values():
            self._find_foreign(rows)
        aside = {lease.key for lease in leases if not self._is_known(lease)}
        if is_whole:
            self._compared.intersection_update(lease.key for lease in leases)
        else:
            aside |= self.view.set_aside.difference(lease.key for lease in leases)
        aside = {key for key in aside if key not in held}
        self.view.set_rows_aside(aside)
        return sorted({self._options.stream_id_of(key) for key in aside})

    def _by_stream(self, leases: Iterable[Lease]) -> dict[str, list[Lease]]:
        if not self._options.streams:
            return {"": list(leases)}
        rows: dict[str, list[Lease]] = {}
        for lease in leases:
            rows.setdefault(self._options.stream_id_of(lease.key), []).append(lease)
        return rows

    def _find_foreign(self, rows: list[Lease], listed: dict[str, Shard] | None = None) -> None:
        stream = self._options.stream_of(rows[0].key) if rows else None
        if stream is not None:
            self.foreign = self.foreign or find_foreign_lease(rows, stream, listed)

    def _is_known(self, lease: Lease) -> bool:
        is_timed = lease.checkpoint != LATEST or self._options.stream_id_of(lease.key) in self._clocks
        return is_timed and (lease.stream is not None or lease.key in self._compared)

    def compare(self, stream_id: str, shards: Iterable[Shard], moment_ms: int, now_s: float) -> None:
        """Compare the rows of a stream with every shard that it lists.

        Args:
            stream_id: The stream; empty if the table has one stream.
            shards: The whole listing.
            moment_ms: The service's clock at its answer.
            now_s: Monotonic seconds.
        """
        self._clocks[stream_id] = (moment_ms, now_s)
        listed = {shard.shard_id: shard for shard in shards}
        self._find_foreign(self._by_stream(self.view).get(stream_id, []), listed)
        settled = {key for key in self.view.set_aside if self._options.stream_id_of(key) == stream_id}
        self._compared |= settled
        self.view.set_rows_aside(self.view.set_aside - settled)

    def stream_to_write(self, row: Lease) -> StreamIdentity | None:
        """Return the stream that a renewal writes on a row without one; else None."""
        return self._options.stream_of(row.key) if row.stream is None else None

    def for_this_stream(self, write: Take, now_s: float) -> Take:
        """Return a take with its key's stream, and with the moment of the take for a bare LATEST."""
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


SKIPPED_REPORTS_MAX: Final = 20
"""The most rows that are reported one by one: a prefix of a bucket may hold thousands of other objects."""


class DamagedRows:
    """Reports each damaged lease once, and the first `SKIPPED_REPORTS_MAX` rows that are not leases.

    Args:
        view: The coordinator's.
        turn: Where reports go.
    """

    def __init__(self, view: LeaseView, turn: Turn) -> None:
        self.view = view
        self._turn = turn
        self._reported: set[tuple[str, str]] = set()
        self._skipped_count = 0

    def report_new(self, shard_ids: Iterable[str] = ()) -> None:
        """Report the damaged rows of the last scan that were not reported before.

        Args:
            shard_ids: Shards of a listing. An unreadable row is a damaged lease if its key is one of these, or if it was a
                readable lease before. Other unreadable rows are reported as rows that are not leases.
        """
        listed = set(shard_ids)
        for key, why in self.view.damaged.items():
            if key in self.view or key in listed:
                self._report_damaged(key, why)
            elif self._skipped_count <= SKIPPED_REPORTS_MAX and self._is_new(key, why):
                self._report_skipped(key, why)
        for key in sorted(self.view.circular):
            if self._is_new(key, "circular"):
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
        if self._skipped_count <= SKIPPED_REPORTS_MAX:
            message = f"row {key!r} of the lease table is left alone: {why}"
            self._turn.report(Topic.ROW_SKIPPED, Level.WARNING, message, key)
            return
        # `report_new` skips further rows once this report has been made.
        self._turn.report(
            Topic.ROW_SKIPPED,
            Level.WARNING,
            f"more than {SKIPPED_REPORTS_MAX} rows of the lease table are not leases. Further ones are left alone without a report",
        )

    def _report_damaged(self, key: str, why: str) -> None:
        if self._is_new(key, f"damaged {why}"):
            self._turn.report(
                Topic.ROW_DAMAGED,
                Level.ERROR,
                f"the row of lease {key} is in the lease table and cannot be read as a lease: {why}. No worker can take or "
                "renew it, so the shard is not read until the row is repaired; if it is deleted, it is created again and the "
                "shard is read from its beginning",
                key,
                "unreadable",
            )

    def _is_new(self, key: str, why: str) -> bool:
        is_new = (key, why) not in self._reported
        self._reported.add((key, why))
        return is_new
