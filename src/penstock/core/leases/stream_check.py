"""Keeps one worker away from the leases of another stream, and knows the service's clock for it.

Rows that name their stream are judged whenever they are seen. Rows that do not, as Java KCL workers write them, are set
aside until a listing of the stream's shards has come to compare them with: nothing is taken before. The same listing
tells the service's time, by which a LATEST without a moment gets one when its lease is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from penstock.core.leases.foreign_lease import ForeignLease, find_foreign_lease
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.lease_writes import Take
from penstock.core.position import LATEST
from penstock.core.shard import Shard
from penstock.core.stream_identity import StreamIdentity


class StreamCheck:
    """One worker's check of the rows that it sees. Not thread-safe.

    Args:
        stream: The stream that is read; None compares nothing.
        view: The coordinator's.
    """

    def __init__(self, stream: StreamIdentity | None, view: LeaseView) -> None:
        self.stream = stream
        self.view = view
        self.foreign: ForeignLease | None = None
        """A row of another stream, once one was seen."""
        self._compared: set[str] = set()
        self._clock: tuple[int, float] | None = None  # the service's milliseconds, and when they were told

    def look(self, leases: Collection[Lease], *, is_whole: bool = True) -> bool:
        """Look at the rows of a scan; True when a listing is wanted to compare some of them with.

        Args:
            leases: The rows.
            is_whole: Whether these are all.
        """
        if self.stream is None:
            return False
        self.foreign = self.foreign or find_foreign_lease(leases, self.stream)
        aside = {lease.key for lease in leases if not self._is_known(lease)}
        if is_whole:
            self._compared.intersection_update(lease.key for lease in leases)
        else:
            aside |= self.view.set_aside.difference(lease.key for lease in leases)
        self.view.set_rows_aside(aside)
        return bool(aside)

    def _is_known(self, lease: Lease) -> bool:
        is_timed = lease.checkpoint != LATEST or self._clock is not None
        return is_timed and (lease.stream is not None or lease.key in self._compared)

    def compare(self, shards: Iterable[Shard], moment_ms: int, now_s: float) -> None:
        """Compare the rows with every shard that the stream lists.

        Args:
            shards: The whole listing.
            moment_ms: The service's clock at its answer.
            now_s: Monotonic seconds.
        """
        self._clock = (moment_ms, now_s)
        if self.stream is None:
            return
        listed = {shard.shard_id: shard for shard in shards}
        self.foreign = self.foreign or find_foreign_lease(self.view, self.stream, listed)
        self._compared |= self.view.set_aside
        self.view.set_rows_aside(())

    def stream_to_note(self, row: Lease) -> StreamIdentity | None:
        """Return the stream for a row that does not name one, which a renewal may tell; else None."""
        return self.stream if row.stream is None else None

    def for_this_stream(self, write: Take, now_s: float) -> Take:
        """Return a take that asks for this stream, and gives a bare LATEST the moment at which it is taken."""
        if self.stream is None:
            return write
        row = self.view.get(write.key)
        pin_ms = None
        if self._clock is not None and row is not None and row.checkpoint == LATEST:
            told_ms, told_s = self._clock
            pin_ms = told_ms + int((now_s - told_s) * 1000)
        return Take(write.key, write.counter, write.worker, pin_ms, self.stream)
