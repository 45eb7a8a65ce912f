"""`penstock dashboard`: the view of `penstock top` in a browser, with the lineage of shards and lag over time."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock import wiring
from penstock.cli.exit_on_signals import CLEAN_STOP, exit_on_signals
from penstock.cli.overview.arguments import COST, add_watch_arguments, check_watch_arguments
from penstock.cli.service_options import options_of
from penstock.errors import OptionError

if TYPE_CHECKING:
    import argparse


DESCRIPTION = (
    "Serve a dashboard of applications: trouble first, the lineage of shards, lag over time, workers, events."
)
_TOKEN_VARIABLE: Final = "PENSTOCK_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]{16,}")
_CHECK_EVERY_S: Final = 1.0
_STREAM_WAIT_S: Final = 2.0  # after this time the page is sent without figures, and reloads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = COST
    parser.add_argument("--port", type=int, default=0, help="TCP port (default: 0, a free one)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1); any other than this machine's own needs a token",
    )
    parser.add_argument(
        "--token",
        metavar="TEXT",
        help=f"answer only requests with this token, of at least 16 letters, digits, '.', '_', '~' and '-'; also {_TOKEN_VARIABLE}, "
        "which no list of processes shows",
    )
    parser.add_argument(
        "--show-records",
        action="store_true",
        help="show keys and payloads of the records that a shard's application reads next; otherwise only how many bytes each has",
    )
    add_watch_arguments(parser, interval_s=10.0)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM.

    Raises:
        SystemExit: At either signal, with status 0.
    """
    from penstock.cli.overview.dashboard_server import DashboardPages, DashboardServer, Gate
    from penstock.cli.overview.lag_history import LagHistory
    from penstock.cli.overview.next_records import NextRecordReader
    from penstock.cli.overview.watch_thread import WatchThread, open_fleet_watcher, open_stream_reader

    check_watch_arguments(args)
    token = args.token if args.token is not None else os.environ.get(_TOKEN_VARIABLE) or None
    check_token(args.host, token)
    history = LagHistory()
    watcher = open_fleet_watcher(args, silent_after_s=30.0)
    with (
        exit_on_signals(CLEAN_STOP),
        WatchThread(watcher, args.interval, history.add) as snapshots,
    ):
        kinesis, clock = wiring.open_kinesis(options_of(args)), wiring.SystemClock()
        streams = open_stream_reader(args)
        pages = DashboardPages(
            newest_snapshot=snapshots.newest_snapshot,
            history=history,
            lag_limit_s=args.lag_warn,
            interval_s=args.interval,
            fetch_stream_snapshot=partial(streams.take_snapshot, wait_s=_STREAM_WAIT_S),
            fetch_next_records=NextRecordReader(kinesis, clock).fetch,
            shows_records=args.show_records,
        )
        with DashboardServer(pages, Gate(token), args.host, args.port) as server:
            host = f"[{args.host}]" if ":" in args.host else args.host
            print(f"http://{host}:{server.port}/{'' if token is None else '?token=...'}", flush=True)
            while True:
                snapshots.wait_until_failed(_CHECK_EVERY_S)


def check_token(host: str, token: str | None) -> None:
    """Check the token of a dashboard.

    Args:
        token: The token that every client must send; None is allowed only on a loopback address.

    Raises:
        OptionError: The token is missing, too short, or has characters that a cookie cannot hold.
    """
    from penstock.cli.overview.dashboard_server import is_loopback

    if token is None and not is_loopback(host):
        raise OptionError(
            f"--host {host} is reached from other machines: give a --token, or set {_TOKEN_VARIABLE}"
        )
    if token is not None and _TOKEN.fullmatch(token) is None:
        raise OptionError(
            "--token: expected at least 16 characters, each a letter, a digit, '.', '_', '~' or '-'"
        )
