"""Checks of a query: the stream's identity, other readers, missing leases. Most run before it joins, some at every batch."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from penstock.core.batches.claims import find_unknown_claims, last_claimed_batch, parse_note
from penstock.core.batches.offsets import StreamOffset
from penstock.core.batches.recreation import find_skipped_shards
from penstock.core.batches.rewind import plan_rewind
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.leases.lease_writes import Applied, Create
from penstock.core.leases.required_leases import first_listing_filter, unknown_names
from penstock.core.leases.row_checks import (
    SKIPPED_REPORTS_MAX,
    describe_foreign_table,
    find_foreign_lease,
    find_lease_of_other_mode,
)
from penstock.core.reading.service_clock import service_bound_ms
from penstock.core.shard import Shard
from penstock.core.starting import StartingPosition, check_not_in_future
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import AnotherDriver, ClaimConflict, NotFound, OptionError, PositionError
from penstock.ports.clock import Clock
from penstock.ports.kinesis import Kinesis, ShardFilter
from penstock.ports.lease_table import LeaseTable
from penstock.spark.options.spark_options import SourceOptions

_log: Final = logging.getLogger("penstock.spark")


def scan_leases(table: LeaseTable) -> dict[str, Lease]:
    """Read every lease; create a deleted table again, empty."""
    try:
        scan = table.scan()
    except NotFound:
        _log.warning("lease table %s was deleted; it is created again from the query's offset", table.name)
        table.ensure_exists()
        scan = table.scan()
    for row in scan.skipped_rows[:SKIPPED_REPORTS_MAX]:
        _log.warning("lease table %s: row %r is skipped: %s", table.name, row.key, row.reason)
    if len(scan.skipped_rows) > SKIPPED_REPORTS_MAX:
        more = len(scan.skipped_rows) - SKIPPED_REPORTS_MAX
        _log.warning("lease table %s: %d more rows that are not leases are skipped", table.name, more)
    return {lease.key: lease for lease in scan.leases}


def refuse_shared_default_name(
    table: LeaseTable, worker: str, options: SourceOptions, clock: Clock, *, has_joined: bool = False
) -> None:
    """Raise OptionError if another worker reads under the default application name.

    Wait until the other workers' leases have expired, at most one and a half times their duration. Also wait until
    leases that were just created or released have been unowned for their duration.

    Two queries that start at the same moment both find no lease before they join. So each checks again when it has its
    leases. The query with the lower worker id then waits twice as long, and goes on once the other one has ended.

    Args:
        has_joined: Whether this worker has its leases.
    """
    if not options.application_is_default:
        return
    began_s = clock.monotonic_s()
    view = LeaseView(options.lease_duration_s)
    readers: dict[str, str] = {}
    leaseless: set[str] = set()
    while True:
        rows, now_s = scan_leases(table), clock.monotonic_s()
        view.on_scan(rows.values(), now_s)
        wait_s = 1.5 * max(map(view.duration_s_of, rows.values()), default=options.lease_duration_s)
        # In two cases a reader without a lease still counts as alive. Shards 3 and 4 are merged: both leases end, and for a
        # moment shard 5 is unowned, but the worker that ended them is alive. And deleted rows are created again by the workers
        # that read them.
        leaseless |= {reader for key, reader in readers.items() if key not in rows or rows[key].is_ended}
        readers = {
            row.key: str(row.reader)
            for row, owner_state, _ in view.with_owner_states(now_s)
            if owner_state is OwnerState.ALIVE and row.reader != worker
        }
        others = leaseless | set(readers.values())
        may_be_taken = not has_joined and _has_lease_about_to_be_taken(view, now_s)
        if not others and (not may_be_taken or now_s > began_s + 2 * wait_s):
            return
        if has_joined and others and worker < min(others):
            wait_s *= 2
        if others and now_s > began_s + wait_s:
            raise OptionError(
                f"stream {options.stream}: {', '.join(sorted(others))} reads it under the default application name "
                f"{options.application}. Each start() is a query of its own, also if two begin with one load(). Call load() with an "
                "applicationName of its own to read the whole stream, or set the same applicationName in both queries to share the shards"
            )
        clock.sleep(min(1.0, options.lease_duration_s / 4))


def _has_lease_about_to_be_taken(view: LeaseView, now_s: float) -> bool:
    """Return whether another worker probably takes an unowned lease next, in one of two cases.

    The only shard has ended, and its child's lease was just created: its creator takes it. Or a third worker took the only
    lease from a live reader and has released it: the live reader takes it again.
    """
    return any(
        owner_state is OwnerState.UNOWNED
        and (row.counter == 0 or view.was_renewed(row.key))
        and unchanged_s < view.duration_s_of(row)
        and not view.waits_for_parents(row)
        for row, owner_state, unchanged_s in view.with_owner_states(now_s)
    )


def warn_of_ignored_start(table: LeaseTable, rows: Mapping[str, Lease], options: SourceOptions) -> None:
    """Warn that the starting position is ignored for shards that the application has read before."""
    read_keys = sorted(key for key, row in rows.items() if row.checkpoint.is_in_shard)
    if not read_keys or not options.starting_is_given:
        return
    _log.warning(
        "application %s has read %d shards before (%s%s in lease table %s): there the query goes on at the application's "
        "positions, and option startingPosition counts for the other shards only. To start over, take another applicationName or "
        "reset its leases (penstock leases %s --reset-to ...)",
        options.application,
        len(read_keys),
        ", ".join(read_keys[:3]),
        ", ..." if len(read_keys) > 3 else "",
        table.name,
        options.application,
    )


def check_named_shards(kinesis: Kinesis, options: SourceOptions) -> None:
    """Check that the stream has every shard that the starting position names, as `refuse_unknown_shards` does."""
    kind, moment_ms = first_listing_filter(options.starting)
    listing = kinesis.fetch_shards(options.stream, None if kind is None else ShardFilter(kind, moment_ms))
    refuse_unknown_shards(options.stream, listing.shards, options.starting, fails=options.fail_on_data_loss)


def refuse_future_start(kinesis: Kinesis, options: SourceOptions, clock: Clock) -> None:
    """Raise PositionError if a shard starts at a moment in the future.

    If it is in the future by this machine's clock, the service's clock decides.
    """
    given = "option startingPosition (startingTimestamp)"
    try:
        check_not_in_future(options.starting, clock.wall_ms(), given)
    except PositionError:
        listing = kinesis.fetch_shards(options.stream)
        check_not_in_future(options.starting, service_bound_ms(clock.wall_ms(), listing.server_ms), given)


def refuse_unknown_shards(
    stream: str,
    shards: Collection[Shard],
    starting: StartingPosition,
    *,
    fails: bool,
    option: str = "startingPosition",
) -> None:
    """Raise OptionError, or warn, if an option names shards that a listing does not have.

    Args:
        shards: The listing.
        starting: The option's value.
        fails: Whether unlisted names are an error; if not, they are a warning.
        option: The option's name, for the message.
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


def warn_of_skipped_shards(
    options: SourceOptions, table: LeaseTable, rows: Mapping[str, Lease], offset: StreamOffset
) -> None:
    """Warn of shards that count as done although the query has not read their end, because their leases were deleted."""
    for key, position in find_skipped_shards(rows, offset).items():
        _log.warning(
            "stream %s: the lease of shard %s is gone from table %s, and the shards that follow it have theirs, so it counts as "
            "done. This query's checkpoint location has read it up to %s only: the rest was read by another worker, or by a run "
            "that this location has no record of (a copy was restored?). It is not read here; a batch read of the shard from "
            "there returns it (spark.read with startingPosition)",
            options.stream,
            key,
            table.name,
            position,
        )


def refuse_former_option(options: SourceOptions, lease_table: str) -> None:
    """Raise OptionError if the query has its leases in the table of an option that has no effect any more.

    Without the table, the query would no longer share the stream with the other workers there, and read their records, too.

    Args:
        lease_table: That of the query's offset; empty for a new query.
    """
    other = options.other_table
    if other is not None and other == lease_table != options.lease_table:
        raise OptionError(
            f"option kinesis.dynamodb.tableName={other} has no effect any more, and this query has its leases there. Set "
            f"leaseTable={other} to go on with this table; or remove the option: then the query copies its leases to table "
            f"{options.lease_table}, and no longer shares stream {options.stream} with other workers of {other}"
        )


def refuse_other_stream(
    kinesis: Kinesis, table: LeaseTable, name: str, stream: StreamIdentity, rows: Mapping[str, Lease]
) -> None:
    """Raise OptionError if the lease table belongs to another stream: shard ids are the same in every stream.

    Args:
        name: The stream's name or ARN, as in the options.
    """
    listed = None
    if any(row.stream is None for row in rows.values()):
        listed = {shard.shard_id: shard for shard in kinesis.fetch_shards(name).shards}
    foreign = find_lease_of_other_mode(rows.values(), reads_several=False)
    foreign = foreign or find_foreign_lease(rows.values(), stream, listed)
    if foreign is not None:
        raise OptionError(describe_foreign_table(table.name, name, foreign))


def refuse_sharing_in_one_query(
    options: SourceOptions, worker: str, rows: Iterable[Lease], queries: Collection[str]
) -> None:
    """Raise OptionError if two sources of one query share the stream's shards: each would read a part of the records.

    Args:
        rows: The leases that were read.
        queries: Spark's ids of the queries that made this worker's claims.
    """
    for row in rows:
        for claim in row.claims:
            note = None if claim.worker == worker else parse_note(claim.note)
            if note is not None and note.query in queries:
                raise OptionError(
                    f"stream {options.stream}: this query reads it twice under the applicationName {options.application} "
                    f"(as {worker} and {claim.worker}), so each of the two sources gets a part of the shards only. Give each "
                    "load() an applicationName of its own, and the query a new checkpoint location"
                )


def refuse_living_driver(
    table: LeaseTable, worker: str, rows: Mapping[str, Lease], lease_duration_s: float, clock: Clock
) -> None:
    """Raise AnotherDriver if another driver renews the leases of this query within a lease duration.

    Called if the checkpoint location has no record of the leases' claims. Waits for one lease duration.
    """
    own_keys = {key for key, row in rows.items() if row.reader == worker}
    view = LeaseView(lease_duration_s)
    view.on_scan(rows.values(), clock.monotonic_s())
    deadline_s = clock.monotonic_s() + lease_duration_s
    while own_keys and clock.monotonic_s() < deadline_s:
        clock.sleep(min(1.0, lease_duration_s / 4))
        view.on_scan(scan_leases(table).values(), clock.monotonic_s())
        own_rows = (row for row in view if row.key in own_keys and row.reader == worker)
        renewed = next((row.key for row in own_rows if view.was_renewed(row.key)), None)
        if renewed is not None:
            raise AnotherDriver(
                f"lease {renewed} of {worker} in table {table.name} is being renewed, and this query's checkpoint location has "
                "no record of its claims: another query works from the same location, or from a copy of it. Stop one of the two"
            )


def rewind_leases(
    kinesis: Kinesis,
    table: LeaseTable,
    options: SourceOptions,
    offset: StreamOffset,
    worker: str,
    *,
    run: str,
) -> int:
    """Reset leases to the checkpoint location's positions, if the location has no record of their claims.

    Returns:
        The highest claimed batch that the location has no record of.

    Raises:
        ClaimConflict: Leases changed during the reset; start the query again.
    """
    rows = scan_leases(table)
    claimed = [row for row, _ in find_unknown_claims(rows.values(), worker, offset.known_batches)]
    last_unknown_batch = last_claimed_batch(claimed, worker)
    shards = {shard.shard_id: shard for shard in kinesis.fetch_shards(options.stream).shards}
    writes = plan_rewind(rows, offset, worker, shards, run)
    # The others create ended leases: shards that are done stay done.
    reset_keys = [
        key for key, write in writes.items() if not (isinstance(write, Create) and write.lease.is_ended)
    ]
    _log.warning(
        "the checkpoint location has no record of claims on the leases in table %s (it was restored from a copy, or a copy "
        "of it was used): it is at batch %d, and an unknown batch %d was claimed. Shards %s go back to the location's positions, "
        "and the records after them are read again",
        table.name,
        offset.batch,
        last_unknown_batch,
        ", ".join(sorted(reset_keys)) or "(none)",
    )
    claimed_keys = {row.key for row in claimed}
    missing_keys = {
        key for key, position in offset.shards.items() if key not in rows and not position.is_shard_end
    }
    unchanged = sorted((claimed_keys | missing_keys) - writes.keys())
    if unchanged:
        _log.warning(
            "shards %s are left as they are: other workers have them, or they have left the stream; records that this query read "
            "there from batch %d on are not read again",
            ", ".join(unchanged),
            offset.batch,
        )
    for key, write in writes.items():
        outcome = table.write(write)
        if not isinstance(outcome, Applied):
            raise ClaimConflict(
                f"lease {key} in table {table.name} changed while it was being reset to a restored checkpoint location "
                f"({outcome.reason.value}); start the query again"
            )
    return last_unknown_batch
