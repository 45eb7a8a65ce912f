"""One observer's view of hand-overs: which workers answer requests, which do not, and which hand-overs are overdue.

During a hand-over the lease names two workers: the reader (`checkpoint_owner`) and the requester, which is the next owner
(`owner`). A moving counter proves that the reader lives, not the requester. So the lease counts for the requester only
until the hand-over time is over.

A Java KCL 2.x worker ignores hand-overs: it renews through the whole hand-over time, and when it takes a lease it leaves the
reader's field unchanged. Either shows that requests to it are useless. So do its renewals that leave a row without the
attributes that Penstock and KCL 3 write with a renewal (the stream, the throughput). A worker that was seen to request, to
release, to claim, or to write a throughput or a tip mark supports hand-overs and is always asked, however slow it is.

Source:
    KCL 2.x renews and takes by the counter alone; `checkpointOwner` is a field of KCL 3.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from typing import Final

from penstock.core.leases.lease import Lease

_RENEWALS_WITHOUT_ATTRIBUTES_MIN: Final = 2
"""After this many renewals without Penstock's attributes a reader counts as a KCL 2.x worker; Penstock's first one names the stream."""
_ASKED_AGAIN_AFTER_TIMES: Final = 20
"""A worker that ignored a request is asked again after this many hand-over times: it may have been upgraded."""


class Handovers:
    """The hand-overs of one table as one observer sees them. Not thread-safe.

    Args:
        bound_s: A hand-over that this observer has seen for longer is overdue.
        names_streams: Whether Penstock's renewals name the stream: a KCL 2.x worker shows itself by renewals without it.
    """

    def __init__(self, bound_s: float, *, names_streams: bool = False) -> None:
        self.bound_s = bound_s
        self.names_streams = names_streams
        # By lease: number of its reader's renewals that wrote none of Penstock's attributes.
        self._renewals_without_attributes: dict[str, int] = {}
        # By lease: when its present hand-over was first seen.
        self._handover_seen_s: dict[str, float] = {}
        # Keys of leases whose `checkpoint_owner` a take by a KCL 2.x worker left unchanged.
        self._taken_by_kcl2: set[str] = set()
        self._supporting_workers: set[str] = set()
        # By worker that is not known to support hand-overs: when it was last seen to ignore a request.
        self._request_ignored_s: dict[str, float] = {}

    def on_row(self, before: Lease | None, row: Lease, now_s: float) -> None:
        """Handle a row that was read: it may show whether a worker supports hand-overs, and when a hand-over began or ended.

        Args:
            before: The row as it was read last, or None.
        """
        key = row.key
        reader = row.reader
        if reader is not None and (
            row.claim_of(reader) is not None or _shows_penstock_attribute(before, row)
        ):
            self._on_supporting_worker(reader)
        if self.names_streams:
            self._count_renewals_without_attributes(before, row, now_s)
        owners = (row.owner, row.checkpoint_owner)
        if before is not None and (before.owner, before.checkpoint_owner) == owners:
            return
        # Another owner or reader: a new hand-over, or none.
        self._taken_by_kcl2.discard(key)
        if before is not None:
            self._on_owners_changed(before, row, now_s)
        if row.checkpoint_owner is None:
            self._handover_seen_s.pop(key, None)
        else:
            self._handover_seen_s[key] = now_s

    def _count_renewals_without_attributes(self, before: Lease | None, row: Lease, now_s: float) -> None:
        """Count renewals that leave a row without Penstock's attributes: after two of them its reader ignores hand-overs."""
        reader = row.reader
        has_attributes = row.stream is not None or row.throughput_kbps is not None
        if reader is None or before is None or before.reader != reader or row.is_ended or has_attributes:
            self._renewals_without_attributes.pop(row.key, None)
            return
        count = self._renewals_without_attributes.get(row.key, 0) + max(0, row.counter - before.counter)
        self._renewals_without_attributes[row.key] = count
        if count >= _RENEWALS_WITHOUT_ATTRIBUTES_MIN and reader not in self._request_ignored_s:
            self._on_ignoring_worker(reader, now_s)

    def _on_owners_changed(self, before: Lease, row: Lease, now_s: float) -> None:
        """Handle a change of `owner` or `checkpoint_owner`: a request, a take by KCL 2.x, or the answer to a request."""
        reader = before.checkpoint_owner
        if reader is None:
            if row.checkpoint_owner == before.owner and row.owner is not None:
                self._on_supporting_worker(row.owner)  # it has requested a hand-over, so it supports them
        elif row.checkpoint_owner == reader:
            if row.owner is not None and row.counter != before.counter:
                # A take that leaves the reader's field: only a KCL 2.x worker, which ignores the field, writes that.
                self._taken_by_kcl2.add(row.key)
                self._on_ignoring_worker(row.owner, now_s)
        elif (row.owner, row.checkpoint_owner) == (before.owner, None) and _is_release(before, row):
            self._on_supporting_worker(reader)

    def _on_supporting_worker(self, worker: str) -> None:
        self._supporting_workers.add(worker)
        self._request_ignored_s.pop(worker, None)

    def _on_ignoring_worker(self, worker: str, now_s: float) -> None:
        if worker not in self._supporting_workers:
            self._request_ignored_s[worker] = now_s

    def forget(self, key: str) -> None:
        """Forget a lease that does not exist any more."""
        self._handover_seen_s.pop(key, None)
        self._renewals_without_attributes.pop(key, None)
        self._taken_by_kcl2.discard(key)

    def forget_unnamed_workers(self, leases: Iterable[Lease]) -> None:
        """Forget workers that no lease names."""
        named = {name for lease in leases for name in (lease.owner, lease.checkpoint_owner)}
        self._supporting_workers &= named
        self._request_ignored_s = {
            worker: at_s for worker, at_s in self._request_ignored_s.items() if worker in named
        }

    def is_overdue(self, lease: Lease, now_s: float) -> bool:
        """Return whether a lease's hand-over will not be answered: it lasts too long, or the next owner is a KCL 2.x worker.

        The KCL 2.x worker has taken the lease already, and has left the reader's field. False without a hand-over.
        """
        if lease.checkpoint_owner is None:
            return False
        return (
            lease.key in self._taken_by_kcl2
            or now_s - self._handover_seen_s.get(lease.key, now_s) >= self.bound_s
        )

    def owner_of_overdue(self, lease: Lease, living_workers: Container[str]) -> str:
        """Return the worker that the balance counts as the owner of a lease with an overdue hand-over.

        That is `owner`, if it is known to live or is a KCL 2.x worker that has taken the lease; else `checkpoint_owner`.

        Args:
            living_workers: Workers whose other leases show that they live.
        """
        assert lease.checkpoint_owner is not None, "a lease without a hand-over"
        if lease.owner is not None and (lease.key in self._taken_by_kcl2 or lease.owner in living_workers):
            return lease.owner
        return lease.checkpoint_owner

    def next_overdue_s(self, now_s: float) -> float:
        """Return the next moment at which a hand-over becomes overdue; infinity without one."""
        moments = (since_s + self.bound_s for since_s in self._handover_seen_s.values())
        return min((moment_s for moment_s in moments if moment_s > now_s), default=math.inf)

    def on_request_unanswered(self, lease: Lease, now_s: float) -> None:
        """Handle a lease whose reader has renewed it through a whole hand-over time."""
        if lease.key not in self._taken_by_kcl2 and lease.checkpoint_owner is not None:
            self._on_ignoring_worker(lease.checkpoint_owner, now_s)

    def ignores_handovers(self, worker: str | None, now_s: float) -> bool:
        """Return whether a worker was seen to ignore a hand-over request, and it is too early to ask it again."""
        if worker is None or worker not in self._request_ignored_s:
            return False
        return now_s - self._request_ignored_s[worker] < _ASKED_AGAIN_AFTER_TIMES * self.bound_s


def _is_release(before: Lease, row: Lease) -> bool:
    # A release adds 1 to the owner switches. A take by the requester does not, since the row names it as the owner already. A
    # checkpoint sets them to 0, so a release that is followed by a checkpoint looks like a take, and proves nothing.
    return row.owner_switches > 0 and (
        row.owner_switches != before.owner_switches or row.checkpoint != before.checkpoint
    )


def _shows_penstock_attribute(before: Lease | None, row: Lease) -> bool:
    """Return whether the same reader as before has written an attribute that no KCL 2.x worker writes."""
    if before is None or before.reader != row.reader:
        return False
    tips = [None if each.mark is None else each.mark.tip_ms for each in (before, row)]
    is_new_tip = tips[1] is not None and tips[0] != tips[1]
    is_new_rate = row.throughput_kbps is not None and row.throughput_kbps != before.throughput_kbps
    return is_new_tip or is_new_rate
