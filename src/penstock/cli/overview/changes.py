"""Describes the events between two snapshots of an application. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.overview.snapshot import Event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.overview.snapshot import ApplicationSnapshot, ShardRow


def changes_between(before: ApplicationSnapshot, after: ApplicationSnapshot) -> list[Event]:
    """Return the changes, in the order of the shards; none if one of the snapshots has no shards."""
    if not before.shards or not after.shards:
        return []
    return [Event(after.taken_ms, shard, text) for shard, text in _changes(before, after)]


def _changes(before: ApplicationSnapshot, after: ApplicationSnapshot) -> Iterator[tuple[str | None, str]]:
    """Yield each change with its shard; None if it is not of a shard."""
    old_rows = {row.shard: row for row in before.shards}
    new_rows = {row.shard: row for row in after.shards}
    for shard in sorted(old_rows.keys() | new_rows.keys()):
        if shard not in new_rows:
            yield (
                shard,
                "its finished lease was removed"
                if old_rows[shard].state == "ended"
                else "its lease was deleted",
            )
        elif shard not in old_rows or old_rows[shard].state == "no lease" != new_rows[shard].state:
            yield shard, _describe_beginning(new_rows[shard])
        else:
            for text in _shard_changes(old_rows[shard], new_rows[shard]):
                yield shard, text
    yield from _worker_changes(before, after)
    listed_ids = {shard.shard_id for shard in before.lineage}
    for each in after.lineage:
        if listed_ids and each.shard_id not in listed_ids:
            parents = " and ".join(each.parents)
            yield (
                each.shard_id,
                f"the stream has a new shard, from {parents}" if parents else ("the stream has a new shard"),
            )


def _describe_beginning(row: ShardRow) -> str:
    if row.state == "no lease":
        return "the shard has no lease"
    return f"its lease was made; {row.owner} reads it" if row.owner else "its lease was made"


def _shard_changes(old_row: ShardRow, new_row: ShardRow) -> Iterator[str]:
    if new_row.state == "ended":
        if old_row.state != "ended":
            yield "read to its end"
        return
    if new_row.next_owner is not None and old_row.next_owner != new_row.next_owner:
        yield f"{new_row.owner} hands it over to {new_row.next_owner}"
    if old_row.owner != new_row.owner:
        yield _describe_move(old_row.owner, new_row.owner)
    if new_row.state == "owner silent" != old_row.state:
        yield f"{new_row.owner} does not renew its lease"
    if new_row.stopped_reason is not None and old_row.stopped_reason != new_row.stopped_reason:
        yield f"{new_row.owner} has stopped reading it: {new_row.stopped_reason}"
    if old_row.stopped_reason is not None and new_row.stopped_reason is None:
        yield "it is read again"


def _describe_move(old_owner: str | None, new_owner: str | None) -> str:
    if old_owner is None:
        return f"{new_owner} reads it"
    return f"{old_owner} gave it back" if new_owner is None else f"went from {old_owner} to {new_owner}"


def _worker_changes(before: ApplicationSnapshot, after: ApplicationSnapshot) -> Iterator[tuple[None, str]]:
    old_workers, new_workers = ({row.worker for row in snapshot.workers} for snapshot in (before, after))
    for worker in sorted(new_workers - old_workers):
        yield None, f"worker {worker} has leases"
    for worker in sorted(old_workers - new_workers):
        yield None, f"worker {worker} has no lease any more"
