"""The children of a finished shard: which leases may be created, and which may be taken.

The order at a shard's end: first every child's lease exists, then SHARD_END and the release in one write, then the children
are taken. A crash in between loses nothing: the parent's next reader reaches the same end.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_view import LeaseView
from penstock.core.shard import ChildShard


def missing_parents(child: Lease, finished: str, view: LeaseView) -> set[str]:
    """Return the other parents of a child whose leases should be in the table and are not.

    Args:
        child: The child's lease.
        finished: The parent that is done, whose lease is held.
        view: The last known rows of the table.
    """
    return {
        parent
        for parent in child.parents
        if parent != finished and parent not in view and parent not in view.vanished
    }


def free_children(children: Iterable[ChildShard], view: LeaseView, held: Container[str]) -> Iterator[Lease]:
    """Yield the leases of a finished shard's children that are free and may be read now."""
    for child in children:
        row = view.get(child.shard_id)
        if row is None or row.reader is not None or row.is_ended or row.key in held:
            continue
        if not view.waits_for_parents(row):
            yield row
