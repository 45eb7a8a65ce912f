"""Detects leases of another stream: lease keys are shard ids, which are the same in every stream.

Rows that Penstock wrote have the stream's ARN and creation time. For rows that only KCL workers wrote, the hash range and the
parents are compared with the listing, if both are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from penstock.core.leases.lease import Lease, stream_id_of
from penstock.core.shard import Shard
from penstock.core.stream_identity import StreamIdentity


class ForeignLease(Struct, frozen=True):
    """A row of a lease table that belongs to another stream.

    Args:
        key: The row's key.
        why: The evidence, as a clause for a message.
        is_of_other_mode: The row is of an application that reads several streams while this one reads one, or the other way
            round.
    """

    key: str
    why: str
    is_of_other_mode: bool = False


def find_other_mode(rows: Iterable[Lease], *, are_several: bool) -> ForeignLease | None:
    """Return a row of a one-stream table if several streams are read, or the other way round; None if all rows fit.

    Args:
        rows: The lease table.
        are_several: Whether several streams are read.
    """
    for row in rows:
        if bool(stream_id_of(row.key)) != are_several:
            why = "one stream" if are_several else "several streams in one table"
            return ForeignLease(row.key, f"is of an application that reads {why}", is_of_other_mode=True)
    return None


def find_foreign_lease(
    rows: Iterable[Lease], stream: StreamIdentity, listed: Mapping[str, Shard] | None = None
) -> ForeignLease | None:
    """Return a row that belongs to another stream, or None.

    Args:
        rows: The lease table.
        stream: The stream that is to be read.
        listed: Its shards by id, for rows that do not name their stream; None compares nothing.
    """
    for row in rows:
        if row.stream is not None:
            if row.stream != stream:
                return ForeignLease(row.key, _other_stream(row.stream, stream))
            continue
        shard = None if listed is None else listed.get(row.key)
        if shard is None:
            continue
        if row.hash_range is not None and row.hash_range != shard.hash_range:
            return ForeignLease(
                row.key,
                f"it covers the hash keys {row.hash_range.start}..{row.hash_range.end}, and the stream's shard "
                f"{shard.hash_range.start}..{shard.hash_range.end}",
            )
        if row.parents and shard.parents and row.parents != frozenset(shard.parents):
            parents, listed_parents = sorted(row.parents), sorted(shard.parents)
            return ForeignLease(
                row.key, f"its parents are {', '.join(parents)}, and the stream's {', '.join(listed_parents)}"
            )
    return None


def _other_stream(found: StreamIdentity, stream: StreamIdentity) -> str:
    if found.arn == stream.arn:
        return (
            f"it was made for a stream of the same name that was created at {found.created_ms} ms, and this one was "
            f"created at {stream.created_ms} ms: the stream was deleted and made again"
        )
    return f"it was made for the stream {found.arn}"


def describe_foreign_table(
    table: str, stream: str, foreign: ForeignLease, option: str = "applicationName (or leaseTable)"
) -> str:
    """Return the error message for a lease table of another stream, with the remedy.

    Args:
        table: The lease table's name.
        stream: Name or ARN of the stream that is to be read.
        foreign: A row of the other stream.
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
