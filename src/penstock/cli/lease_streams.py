"""Finds the streams of a table's leases: one, or several that share the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.leases.lease import stream_id_of, stream_name_of
from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.leases.lease import Lease


def streams_of(leases: Sequence[Lease], named: str | None) -> dict[str, str]:
    """Return the name or ARN of each stream that has leases, by the prefix of its lease keys.

    Args:
        leases: Of one table.
        named: Name or ARN to use if no lease names the stream; None leaves this stream out. Not used if several streams
            share the table, since their lease keys have the names.
    """
    found: dict[str, str] = {}
    for lease in leases:
        stream_id = stream_id_of(lease.key)
        if lease.stream is not None:
            found.setdefault(stream_id, lease.stream.arn)
    for stream_id in {stream_id_of(lease.key) for lease in leases} - found.keys():
        name = stream_name_of(stream_id) or named
        if name is not None:
            found[stream_id] = name
    return found


def choose_stream(leases: Sequence[Lease], named: str) -> tuple[str, tuple[Lease, ...]]:
    """Return the named stream's prefix of lease keys, and its leases.

    Args:
        leases: Of one table.
        named: Name, ARN, or `account:stream:epoch`.

    Raises:
        OptionError: `named` matches none of the table's streams, or more than one.
    """
    streams = streams_of(leases, named)
    if not streams:
        return "", ()
    fitting = [
        stream_id
        for stream_id, stream in streams.items()
        if named in (stream_id, stream, stream.rpartition("/")[2])
    ]
    if len(fitting) != 1:
        known = ", ".join(sorted(stream_id or stream for stream_id, stream in streams.items()))
        raise OptionError(
            f"--stream {named}: the table has leases of {known}; name one of them"
            + (" with account and epoch" if fitting else "")
        )
    return fitting[0], tuple(lease for lease in leases if stream_id_of(lease.key) == fitting[0])
