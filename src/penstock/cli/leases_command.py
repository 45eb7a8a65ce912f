"""`penstock leases`: an application's lease table, its workers' shares, and resets of its checkpoints."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock import wiring
from penstock.cli.moments import MOMENT_FORMS, ServiceTime, moments_of, parse_position, print_moments
from penstock.cli.service_options import add_connection_arguments, options_of
from penstock.cli.terminal import Output, counted, print_line, safe_json, warn
from penstock.errors import NotFound, OptionError, PenstockError, ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.cli.lease_report import WatchedLease
    from penstock.core.leases.lease import Lease
    from penstock.core.position import Position
    from penstock.core.shard import Shard
    from penstock.ports.lease_table import LeaseScan, LeaseTable

_OBSERVE_S: Final = 4.0
# The default lease duration, as the KCL's failoverTimeMillis. The row of a KCL worker's lease does not tell the duration.
_LEASE_S: Final = 10.0
_BUCKET_LEASE_S: Final = 60.0  # default lease duration of a query with leases in a bucket
DESCRIPTION = (
    "Show an application's leases, the shares of its workers and who assigns them, or reset its checkpoints."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "application",
        metavar="APPLICATION",
        help="the lease table's name, s3://bucket/prefix or file:///folder",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--stream",
        metavar="STREAM",
        help="also show each shard's lag, the age of its oldest unread record; with --reset-to: list its shards",
    )
    parser.add_argument(
        "--observe",
        type=float,
        metavar="S",
        help="watch the counters for at most S seconds, to distinguish live owners from silent ones (default: 4; before "
        "a reset as long as the leases last, and no shorter)",
    )
    reset = parser.add_argument_group("resetting checkpoints (stop the workers first)")
    reset.add_argument(
        "--reset-to",
        metavar="POSITION",
        help=f"TRIM_HORIZON, LATEST or AT_TIMESTAMP:<moment>: {MOMENT_FORMS}",
    )
    reset.add_argument("--restore", type=Path, metavar="FILE", help="take a reset back, from its backup file")
    reset.add_argument(
        "--backup",
        type=Path,
        metavar="FILE",
        help="where the backup of a reset goes (default: a new file in this folder); alone: write a backup, reset nothing",
    )
    reset.add_argument(
        "--create",
        action="store_true",
        help="with --restore: create the table if it is missing, as beside a replay",
    )
    reset.add_argument("--force", action="store_true", help="also while workers are alive")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Show, reset or restore; return the exit status."""
    from penstock.cli.lease_report import live_owners, watch_leases

    _check_options(args)
    observe_s = _OBSERVE_S if args.observe is None else args.observe
    table = wiring.open_lease_table(args.application, options_of(args))
    if args.backup is not None and args.reset_to is None and args.restore is None:
        scan = table.scan()
        _warn_of_skipped_rows(scan)
        _back_up(args.backup, table, scan.leases)
        return 0
    if args.create:
        table.ensure_exists()
    try:
        watched_leases, scan = watch_leases(table, wiring.SystemClock(), observe_s)
    except NotFound as error:
        if args.restore is None:
            raise
        raise PenstockError(f"{error}; for a new application add --create") from error
    _warn_of_skipped_rows(scan)
    if args.reset_to is None and args.restore is None:
        return _show(args, watched_leases)
    if not args.force:
        watched_leases = watch_until_expiry(table, watched_leases, args.observe)
    live_workers = live_owners(watched_leases)
    if live_workers and not args.force:
        raise PenstockError(
            f"application {args.application} has live workers ({', '.join(live_workers)}): stop them first, or add --force"
        )
    leases = tuple(each.lease for each in watched_leases)
    if "://" in table.name:
        table.ensure_exists()  # refuses a bucket without conditional writes before anything is written
    if args.reset_to is not None:
        _reset(args, table, leases)
    else:
        _restore(args, table, leases)
    return 0


def _check_options(args: argparse.Namespace) -> None:
    if args.reset_to is not None and args.restore is not None:
        raise OptionError("give --reset-to or --restore, not both")
    if args.create and args.restore is None:
        raise OptionError("--create is for --restore FILE")
    if args.observe is not None and args.observe < 0:
        raise OptionError(f"--observe {args.observe}: expected 0 or more")


def watch_until_expiry(
    table: LeaseTable, watched_leases: list[WatchedLease], observe_s: float | None = None
) -> list[WatchedLease]:
    """Return the watched leases. If none shows a renewal, watch them again first, for as long as the longest lease lasts.

    Args:
        observe_s: The duration of `--observe`; None if it is not given.

    Raises:
        OptionError: `observe_s` is shorter than the leases last, so a worker without a renewal may be alive.
    """
    from penstock.cli.lease_report import live_owners, watch_leases

    owned = [
        each.lease for each in watched_leases if each.lease.reader is not None and not each.lease.is_ended
    ]
    usual_s = _BUCKET_LEASE_S if table.name.startswith("s3://") else _LEASE_S
    longest_s = max((max(usual_s, lease.term_s) for lease in owned), default=0.0)
    if longest_s <= (observe_s or 0.0) or live_owners(watched_leases):
        return watched_leases
    if observe_s is not None:
        raise OptionError(
            f"--observe {observe_s:g}: the leases of {table.name} last {longest_s:g} s, so a worker that was not seen to renew in a "
            f"shorter time may be alive; give --observe {longest_s:g} or leave it out, or add --force"
        )
    warn(
        f"penstock leases: no worker was seen to renew; watching for {longest_s:.0f} s, as long as the leases last"
    )
    return watch_leases(table, wiring.SystemClock(), longest_s)[0]


# --- writing --------------------------------------------------------------------------------------------


def _reset(args: argparse.Namespace, table: Any, leases: tuple[Lease, ...]) -> None:
    """Write a backup of all leases. Then set the leases of `--stream`, or all if it is not given, to a position."""
    from penstock.cli.lease_backup import apply_reset
    from penstock.cli.lease_report import choose_stream
    from penstock.core.leases.lease_reset import plan_reset
    from penstock.core.position import Sentinel
    from penstock.core.starting import check_not_in_future, pin_latest

    start = parse_position(args.reset_to, "--reset-to")
    if start.by_shard:
        raise OptionError("--reset-to takes one position for all shards")
    if start.default.sentinel is Sentinel.AT_TIMESTAMP and args.stream is None:
        raise OptionError(
            "--reset-to AT_TIMESTAMP needs --stream: the table does not say which shards were open at the moment"
        )
    now = datetime.now(UTC)
    moments = moments_of(start)
    print_moments("leases", "reset to", moments)
    position = pin_latest(start.default, int(now.timestamp() * 1000))
    chosen_leases, stream_id = leases, ""
    if args.stream is not None:
        stream_id, chosen_leases = choose_stream(leases, args.stream)
    if moments:
        now_ms = ServiceTime(wiring.open_kinesis(options_of(args)), _stream_of(args, stream_id))
        check_not_in_future(start, now_ms(), f"--reset-to {args.reset_to}")
    plan = plan_reset(chosen_leases, position, *_fetch_lineage(args, stream_id, position))
    file_name = re.sub(r"[^\w.-]", "_", args.application)
    path = args.backup or Path(f"{file_name}-leases-{now.strftime('%Y%m%dT%H%M%SZ')}.json")
    _back_up(path, table, leases)
    apply_reset(table, leases, plan)
    report = [f"{counted(len(plan.targets) + len(plan.created_leases), 'lease')} set to {args.reset_to}"]
    if plan.removed_keys:
        report.append(f"{len(plan.removed_keys)} of shards that ended before it removed")
    if plan.kept_keys:
        report.append(
            f"{len(plan.kept_keys)} finished ones kept (give --stream to read finished shards again)"
        )
    print_line(f"{', '.join(report)}; take it back with --restore {path}")


def _back_up(path: Path, table: LeaseTable, leases: Sequence[Lease]) -> None:
    from penstock.cli.lease_backup import write_backup

    write_backup(path, table.name, datetime.now(UTC).isoformat(), leases)
    print_line(f"backup of {counted(len(leases), 'lease')}: {path}")


def _warn_of_skipped_rows(scan: LeaseScan) -> None:
    for row in scan.skipped_rows:
        warn(f"row {row.key} is left out: {row.reason}")


def _fetch_lineage(
    args: argparse.Namespace, stream_id: str, position: Position
) -> tuple[tuple[Shard, ...] | None, frozenset[str]]:
    """Return the shards of `--stream`, None if it is not given; and the ids of the shards open at the position's moment."""
    from penstock.core.leases.lease import keyed_shard
    from penstock.core.position import Sentinel
    from penstock.ports.kinesis import ShardFilter

    if args.stream is None:
        return None, frozenset()
    kinesis = wiring.open_kinesis(options_of(args))
    stream = _stream_of(args, stream_id)

    def fetch(shard_filter: ShardFilter | None = None) -> tuple[Shard, ...]:
        listed = kinesis.fetch_shards(stream, shard_filter).shards
        return tuple(keyed_shard(stream_id, shard) for shard in listed)

    shards = fetch()
    if position.sentinel is Sentinel.TRIM_HORIZON:
        return shards, frozenset()
    if position.sentinel is Sentinel.LATEST:
        return shards, frozenset(shard.shard_id for shard in shards if shard.is_open)
    at = ShardFilter("AT_TIMESTAMP", position.timestamp_ms)
    return shards, frozenset(shard.shard_id for shard in fetch(at))


def _stream_of(args: argparse.Namespace, stream_id: str) -> str:
    """Return the name or ARN of the stream that `--stream` names; the option may also be the prefix of its lease keys."""
    from penstock.core.leases.lease import stream_name_of

    named: str = args.stream
    return stream_name_of(stream_id) if named == stream_id else named


def _restore(args: argparse.Namespace, table: Any, leases: tuple[Lease, ...]) -> None:
    from penstock.cli.lease_backup import apply_reset, read_backup
    from penstock.core.leases.lease_reset import plan_restore

    backup = read_backup(args.restore, table.name if leases else None)
    written = apply_reset(table, leases, plan_restore(leases, backup))
    print_line(f"{counted(written, 'lease')} restored from {args.restore}")


# --- showing --------------------------------------------------------------------------------------------


def _show(args: argparse.Namespace, watched_leases: list[WatchedLease]) -> int:
    """Print the leases; return 1 if the named stream cannot be read, since then the lags are missing."""
    from penstock.cli.lease_report import count_leases_by, zone_name

    lags: dict[str, int | None] = {}
    status = 0
    try:
        if args.stream is not None:
            lags = _fetch_lags(args, watched_leases)
    except ServiceError as error:
        warn(f"penstock leases: no lag is known: {error}")
        status = 1
    document = {
        "application": args.application,
        "leases": _lease_documents(watched_leases, lags),
        "workers": count_leases_by(watched_leases, str),
        "zones": count_leases_by(watched_leases, zone_name),
        "fleet": _fetch_fleet(args),
    }
    if args.json:
        print(safe_json(document, indent=2))
    else:
        _print_report(document, has_lag=bool(lags))
    return status


def _lease_documents(
    watched_leases: list[WatchedLease], lags: Mapping[str, int | None]
) -> list[dict[str, Any]]:
    from penstock.cli.lease_report import find_circular_leases, state_of

    leases = {each.lease.key: each.lease for each in watched_leases}
    circular_leases = find_circular_leases(leases)
    return [
        {
            "shard": each.lease.key,
            "state": state_of(each, leases, circular_leases=circular_leases),
            "owner": each.lease.reader,
            "next_owner": each.lease.next_owner,
            "counter": each.lease.counter,
            "counter_age_s": round(each.unmoved_s, 1),
            "has_moved": each.has_moved,
            "checkpoint": str(each.lease.checkpoint),
            "millis_behind_latest": lags.get(each.lease.key),
            "stopped_reason": each.lease.stopped_reason,
        }
        for each in watched_leases
    ]


def _print_report(document: Mapping[str, Any], *, has_lag: bool) -> None:
    output = Output()
    rows = document["leases"]
    if not rows:
        output.line(f"application {document['application']} has no leases yet")
        return
    _print_table(output, rows, has_lag=has_lag)
    for row in rows:
        if row["stopped_reason"] is not None:
            output.line(
                f"{row['shard']} has stopped: {row['stopped_reason']} (more in the log of {row['owner']})",
                style="bold red",
            )
    output.bars("leases per worker", document["workers"], "no worker owns a lease")
    if set(document["zones"]) - {"-"}:
        output.bars("leases per zone", document["zones"])
    if document["fleet"] is not None:
        _print_fleet(output, document["fleet"])


def _fetch_fleet(args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the state of a fleet with KCL 3 workers; None if it has no rows, or its rows cannot be read."""
    from penstock.cli.lease_report import describe_fleet
    from penstock.core.reading.service_clock import service_now_ms

    tables = wiring.open_kcl3_tables(args.application, options_of(args))
    try:
        rows = None if tables is None else tables.fetch(None)
    except ServiceError as error:
        warn(f"penstock leases: the rows of KCL 3 workers beside the leases cannot be read: {error}")
        return None
    if rows is None or rows.version is None:
        return None
    return describe_fleet(rows, service_now_ms(wiring.SystemClock().wall_ms(), rows.server_ms) / 1000)


def _print_fleet(output: Output, fleet: dict[str, Any]) -> None:
    output.line("")
    output.line(f"fleet of KCL 3 workers ({fleet['state']})", style="bold")
    output.line(fleet["mode_text"])
    output.line(f"leader: {fleet['leader'] or '-'}")
    table = [
        [
            report["worker"],
            report["library"],
            f"{report['age_s']:.0f} s" + ("" if report["is_fresh"] else " (gone)"),
            ", ".join(f"{name} {value:g}" for name, value in report["metrics"].items()) or "throughput only",
        ]
        for report in fleet["reports"]
    ]
    output.table(("worker", "library", "reported", "metrics"), table, right=("reported",))


def _print_table(output: Output, rows: list[dict[str, Any]], has_lag: bool) -> None:
    from penstock.cli.overview.cells import owner_cell, short_checkpoint

    table = []
    for row in rows:
        age = f"{row['counter_age_s']:.1f} s" if row["has_moved"] else f">{row['counter_age_s']:.1f} s"
        cells = [
            row["shard"],
            row["state"],
            owner_cell(row["owner"], row["next_owner"]),
            str(row["counter"]),
            age,
            short_checkpoint(row["checkpoint"]),
        ]
        if has_lag:
            lag = row["millis_behind_latest"]
            cells.append("-" if lag is None else f"{lag / 1000:.1f} s")
        table.append(cells)
    names = ("shard", "state", "owner", "counter", "age", "checkpoint", *(("lag",) if has_lag else ()))
    output.table(names, table, right=("counter", "age", "lag"))


def _fetch_lags(args: argparse.Namespace, watched_leases: list[WatchedLease]) -> dict[str, int | None]:
    """Return the lag of each shard of `--stream` in milliseconds; None if it is unknown."""
    from penstock.cli.lease_report import choose_stream
    from penstock.runtime.shard_lags import measure_lags

    kinesis = wiring.open_kinesis(options_of(args))
    stream_id, leases = choose_stream([each.lease for each in watched_leases], args.stream)
    stream = _stream_of(args, stream_id)
    kinesis.fetch_summary(stream)  # one error about the stream instead of one for every shard
    measured_lags = measure_lags(kinesis, {stream_id: stream}, leases, wiring.SystemClock())
    for lag in measured_lags:
        if lag.lag_ms is None:
            warn(f"lag of {lag.key} is unknown: {lag.why_unknown}")
    return {lag.key: lag.lag_ms for lag in measured_lags}
