"""Turns the log of a real lease table into a trace that TLC compares with `model/Leases.tla`.

A log has every row as every write left it, and nothing else: who wrote, and what, follows from the change. Deliveries and
deadlines are not in it, so the model may deliver and let a deadline pass whenever a write needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from penstock.core.leases.lease import Lease, WorkerRun
from penstock_sim.model_trace import Event, Trace


def trace_of_log(
    name: str,
    log: Iterable[tuple[str, Lease | None]],
    java: Collection[str],
    parents: Mapping[str, list[str]],
) -> Trace:
    """Return a log as a trace. It has "any" as the worker of a late checkpoint, which any earlier reader may have written.

    Args:
        name: Of the history.
        log: The key and the row after each write; None for a row that was deleted.
        java: Workers of the KCL.
        parents: Of each shard, by its key.
    """
    changes = list(_changes(log))
    rows = [row for key, *both in changes for row in both if row is not None]
    workers = {owner for row in rows for owner in (row.owner, row.checkpoint_owner) if owner is not None}
    ordinals = {
        key: sorted({row.checkpoint for row in rows if row.key == key and row.checkpoint.is_record})
        for key in parents
    }
    records = 1 + max(map(len, ordinals.values()), default=0)

    def as_row(row: Lease | None, key: str) -> list[object]:
        if row is None:
            return [False, 0, "none", "none", 0, 0]
        known = ordinals[key]
        at = (
            records + 1
            if row.is_ended
            else known.index(row.checkpoint) + 1
            if row.checkpoint.is_record
            else 0
        )
        return [True, row.counter, row.owner or "none", row.checkpoint_owner or "none", at, 0]

    events: list[Event] = []
    runs = _Runs()
    for key, old, new in changes:
        if new is not None and as_row(old, key) == as_row(new, key):
            continue  # attributes that the model does not have, such as the children
        kind, worker = change_of(old, new)
        found = as_row(new, key)
        if java and kind == "Take" and old is not None and old.is_ended:
            # A leader of KCL 3 assigns leases that have ended, too, also to workers that never take one.
            events.append(["Given", "none", key, found])
            continue
        if worker in java and kind != "RequestHandover":
            kind = f"Java{kind}"
        if runs.has_begun_again(worker, new):
            events.append(["Exit", worker or "", "none"])  # the process before it has ended
        anyone = "any" if kind == "LateCheckpoint" else min(workers)
        events.append([kind, worker or anyone, key, "answered", found, found[4], False])
    others = sorted(workers - set(java))
    return Trace(
        name,
        others,
        sorted(workers & set(java)),
        dict(parents),
        records,
        sorted(workers & set(java)),
        [],
        events,
        is_log=True,
    )


def _changes(log: Iterable[tuple[str, Lease | None]]) -> Iterator[tuple[str, Lease | None, Lease | None]]:
    before: dict[str, Lease] = {}
    for key, row in log:
        yield key, before.get(key), row
        if row is None:
            before.pop(key, None)
        else:
            before[key] = row


class _Runs:
    """The latest process of each worker."""

    def __init__(self) -> None:
        self._latest: dict[str, WorkerRun] = {}

    def has_begun_again(self, worker: str | None, row: Lease | None) -> bool:
        """Return whether a row that a worker has written is the first one of a later process."""
        run = None if row is None else row.run
        if worker is None or run is None or not run.is_of(worker):
            return False
        earlier = self._latest.get(worker, run)
        self._latest[worker] = max(run, earlier)
        return run > earlier


def change_of(old: Lease | None, new: Lease | None) -> tuple[str, str | None]:  # noqa: PLR0911 - one table
    """Return the kind of the write that changed a row, and its worker; None if any worker may have sent it."""
    if new is None:
        return "Delete", None
    if old is None:
        return "Create", None
    if new.counter == old.counter:
        if new.owner != old.owner:
            return "RequestHandover", new.owner
        own = new.claim_of(new.reader or "")
        if own is not None and (own.end == new.checkpoint or own != old.claim_of(own.worker)):
            return "Promote", own.worker  # a claim moves the checkpoint, too, to the start of its batch
        return "LateCheckpoint", None
    if new.is_ended and not old.is_ended:
        return "End", old.reader
    if new.owner is not None and new.owner != old.owner:
        return "Take", new.owner
    if new.owner is None:
        return "Release", old.reader
    if old.checkpoint_owner is not None and new.checkpoint_owner is None:
        is_take = new.run != old.run
        return ("Take", new.owner) if is_take else ("Release", old.reader)
    return ("Renew" if new.checkpoint == old.checkpoint else "Checkpoint"), new.reader
