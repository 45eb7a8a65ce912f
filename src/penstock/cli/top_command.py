"""`penstock top`: applications, their shards and their problems, live in the terminal."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from penstock.cli.overview.arguments import COST, add_watch_arguments, check_watch_arguments
from penstock.cli.terminal import Output, is_dumb_terminal, safe_json, warn
from penstock.errors import PenstockError

if TYPE_CHECKING:
    import argparse

    from penstock.cli.overview.snapshot import ApplicationSnapshot, Snapshot

DESCRIPTION = "Watch applications live: shards, owners, lag, hand-overs and problems, trouble first; and the region's queues."
_KEYS = "Keys: arrows or j and k select, enter opens an application or a shard, s an application's stream, escape goes back, q or Ctrl-C ends."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{DESCRIPTION} {_KEYS}"
    parser.epilog = COST
    parser.add_argument(
        "--once",
        action="store_true",
        help="print one snapshot as text and end, as always where no terminal is",
    )
    parser.add_argument("--json", action="store_true", help="print one snapshot as JSON and end")
    add_watch_arguments(parser, interval_s=5.0)


def run(args: argparse.Namespace) -> int:
    """Watch, or print one snapshot; return the exit status."""
    from penstock.cli.overview.snapshot import document_of
    from penstock.cli.overview.watch_thread import WatchThread, open_fleet_watcher, open_stream_reader

    check_watch_arguments(args)
    is_live = sys.stdin.isatty() and sys.stdout.isatty() and not is_dumb_terminal()
    if args.once or args.json or not is_live:
        snapshot = open_fleet_watcher(args, silent_after_s=4.0).take_single_snapshot()
        if args.json:
            print(safe_json(document_of(snapshot), indent=2))
        else:
            print_snapshot(snapshot)
        return int(any(each.is_unreadable for each in snapshot.applications))
    if importlib.util.find_spec("rich") is None:
        raise PenstockError(
            "the live view needs the package rich, which is not installed: pip install 'penstock[cli]'; --once and --json "
            "work without it"
        )
    from penstock.cli.overview.live_view import run_live
    from penstock.cli.overview.screen import Page, Selection

    selection = Selection(Page.SHARDS, args.applications[0]) if len(args.applications) == 1 else Selection()
    with WatchThread(open_fleet_watcher(args, silent_after_s=30.0), args.interval) as snapshots:
        run_live(snapshots, selection, open_stream_reader(args).take_snapshot)
    return 0


def print_snapshot(snapshot: Snapshot) -> None:
    """Print a snapshot as text."""
    from penstock.cli.overview.cells import APPLICATION_COLUMNS, RIGHT, application_cells

    output = Output()
    for problem in snapshot.problems:
        warn(problem)
    if not snapshot.applications and not snapshot.queues.rows:
        output.line("no lease table was found: name an application, or check the region")
    elif len(snapshot.applications) > 1:
        output.table(APPLICATION_COLUMNS, [application_cells(each) for each in snapshot.applications], RIGHT)
    for each in snapshot.applications:
        if len(snapshot.applications) > 1:
            output.line("")
        _print_application(output, each)
    _print_queues(output, snapshot)


def _print_queues(output: Output, snapshot: Snapshot) -> None:
    from penstock.cli.overview.cells import QUEUE_COLUMNS, RIGHT, queue_cells

    queues = snapshot.queues
    if queues.rows:
        if snapshot.applications:
            output.line("")
        output.table(QUEUE_COLUMNS, [queue_cells(row, snapshot.taken_ms) for row in queues.rows], RIGHT)
    for problem in queues.problems:
        output.line(problem, style="dim")


def _print_application(output: Output, snapshot: ApplicationSnapshot) -> None:
    from penstock.cli.overview.cells import (
        RIGHT,
        SHARD_COLUMNS,
        duration,
        shard_cells,
        stream_name,
        summary_of,
    )

    for problem in snapshot.problems:
        warn(f"{snapshot.application}: {problem}")
    output.line(
        f"{snapshot.application}: stream {stream_name(snapshot.stream)}, {summary_of(snapshot)}, "
        f"lag {duration(snapshot.lag_ms)}",
        style="bold",
    )
    unfinished = [shard_cells(row) for row in snapshot.shards if row.state != "ended"]
    if unfinished:
        output.table(SHARD_COLUMNS, unfinished, RIGHT)
        output.bars(
            "leases per worker",
            {row.worker: row.lease_count for row in snapshot.workers},
            "no worker owns a lease",
        )
    elif not snapshot.shards and not snapshot.problems:
        output.line("no leases yet")
