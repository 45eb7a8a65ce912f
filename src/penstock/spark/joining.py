"""What a query looks at once, before it joins its application: the stream it is, who reads there, what is missing."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Final

from penstock.core.lease import Create, Lease, starting_lease
from penstock.core.named_start import unknown_names
from penstock.core.offsets import StreamOffset
from penstock.core.query_shards import plan_recreation
from penstock.core.shard import Shard, StreamSummary
from penstock.core.shard_sync import first_filter
from penstock.core.starting import StartingPosition
from penstock.errors import NotFound, OptionError, StreamChanged
from penstock.ports.kinesis import Kinesis, ShardFilter
from penstock.ports.lease_table import LeaseTable
from penstock.spark.options import SourceOptions

_log: Final = logging.getLogger("penstock.spark")


def check_stream(stream: str, summary: StreamSummary, known: StreamOffset) -> None:
    """Refuse to go on from a checkpoint that was written for another stream.

    Raises:
        StreamChanged: The stream was deleted and made again, or the option names another one.
    """
    if known.stream_arn and (known.stream_arn, known.stream_created_ms) != (summary.arn, summary.created_ms):
        raise StreamChanged(
            f"stream {stream} is not the one that the checkpoint was written for ({known.stream_arn}, created "
            f"{known.stream_created_ms}; now {summary.arn}, created {summary.created_ms}): it was deleted and created "
            "again, or the option names another stream. Start with a new checkpoint location and a new applicationName"
        )


def scan_leases(table: LeaseTable) -> dict[str, Lease]:
    """Read every lease; a table that was deleted is made again, empty."""
    try:
        scan = table.scan()
    except NotFound:
        _log.warning("lease table %s was deleted; it is made again from the query's offset", table.name)
        table.ensure_exists()
        scan = table.scan()
    for row in scan.skipped:
        _log.warning("lease table %s: row %r is skipped: %s", table.name, row.key, row.reason)
    return {lease.key: lease for lease in scan.leases}


def refuse_hidden_sharing(table: LeaseTable, worker: str, options: SourceOptions) -> None:
    """Make sure that nobody else reads under an application name that nobody chose.

    Waits until other workers' leases show that nobody is behind them, at most one and a half lease durations.

    Raises:
        OptionError: Somebody lives there.
    """
    if not options.application_is_default:
        return
    deadline_s = time.monotonic() + 1.5 * options.lease_duration_s
    seen: dict[str, tuple[int, str | None, float]] = {}
    while True:
        rows, now_s = scan_leases(table), time.monotonic()
        others = set()
        for key, row in rows.items():
            mark = (row.counter, row.owner)
            since_s = seen[key][2] if key in seen and seen[key][:2] == mark else now_s
            seen[key] = (*mark, since_s)
            if row.reader not in (None, worker) and now_s - since_s <= options.lease_duration_s:
                others.add(str(row.reader))
        if not others:
            return
        if now_s > deadline_s:
            raise OptionError(
                f"stream {options.stream}: {', '.join(sorted(others))} reads it under the default application name "
                f"{options.application}. Give this query an applicationName of its own to read the whole stream, or set "
                "the same applicationName in both to share the shards"
            )
        time.sleep(min(1.0, options.lease_duration_s / 4))


def check_named_shards(kinesis: Kinesis, options: SourceOptions) -> None:
    """Make sure that the stream has the shards that the starting position names.

    Raises:
        OptionError: One is not listed, and failOnDataLoss is on.
    """
    kind, moment_ms = first_filter(options.starting)
    listing = kinesis.fetch_shards(options.stream, None if kind is None else ShardFilter(kind, moment_ms))
    refuse_unknown_shards(options.stream, listing.shards, options.starting, fails=options.fail_on_data_loss)


def refuse_unknown_shards(
    stream: str,
    shards: Collection[Shard],
    starting: StartingPosition,
    *,
    fails: bool,
    option: str = "startingPosition",
) -> None:
    """Stop (or warn) where an option names shards that a listing does not have.

    Raises:
        OptionError: There are some, and `fails` is set.
    """
    unknown = unknown_names(shards, starting)
    if not unknown:
        return
    text = (
        f"option {option}: stream {stream} does not list {', '.join(unknown[:5])}{' ...' if len(unknown) > 5 else ''}: "
        "misspelt, or gone from the stream with every record in it (retention)"
    )
    if fails:
        raise OptionError(f"{text}. Leave these names out, or set option failOnDataLoss=false")
    _log.warning("%s; going on without (failOnDataLoss=false)", text)


def recreate_missing(
    kinesis: Kinesis, table: LeaseTable, stream: str, rows: Mapping[str, Lease], start: StreamOffset
) -> bool:
    """Bring back leases that the offset knows and the table does not, where the offset says; True if there were any."""
    if not plan_recreation(rows, start, {}):
        return False
    shards = {shard.shard_id: shard for shard in kinesis.fetch_shards(stream).shards}
    lineage = {key: shard.parents for key, shard in shards.items()}
    for key, position in plan_recreation(rows, start, lineage).items():
        shard = shards.get(key)
        if shard is None:
            _log.warning("shard %s left the stream (retention) and its lease was cleaned up", key)
            continue
        _log.warning("the lease of shard %s was deleted from table %s: it is made again at %s, and the records of the last batch are given out once more", key, table.name, position)  # fmt: skip
        table.write(Create(starting_lease(key, position, shard.parents, shard.hash_range)))
    return True
