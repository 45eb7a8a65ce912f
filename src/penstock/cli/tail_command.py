"""`penstock tail`: print a stream's records as they come, without leases and without a trace."""

from __future__ import annotations

import argparse
import re
import sys
import time
from typing import TYPE_CHECKING, Final

from penstock.cli.record_filter import add_filter_arguments, filter_of
from penstock.cli.record_lines import add_format_arguments, format_of
from penstock.cli.service_options import add_connection_arguments, open_fan_out, open_kinesis
from penstock.cli.terminal import warn
from penstock.errors import OptionError, PositionError, ShardsStopped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.cli.service_options import Subparsers
    from penstock.consumer import Consumer
    from penstock.core.position import Position
    from penstock.core.starting import StartingPosition

DESCRIPTION = "Print a stream's records as they come: no leases, no checkpoints, resharding followed."
_AGE: Final = re.compile(r"(\d+)\s*([smhd])")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add_parser(subparsers: Subparsers) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser("tail", help=DESCRIPTION, description=DESCRIPTION)
    parser.add_argument("stream", metavar="STREAM", help="name or ARN")
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from",
        dest="start",
        metavar="POSITION",
        help="TRIM_HORIZON, LATEST or AT_TIMESTAMP <ISO 8601> (default: LATEST; with --until-end TRIM_HORIZON)",
    )
    start.add_argument(
        "--since", metavar="AGE", help="from so long ago: 30s, 10m, 2h, 1d; or from a moment, as ISO 8601"
    )
    parser.add_argument(
        "-e", "--until-end", action="store_true", help="read what is there when it begins, and end"
    )
    parser.add_argument("--count", type=int, metavar="N", help="end after N records")
    parser.add_argument(
        "--fan-out",
        metavar="NAME",
        help="have the records pushed to this registered consumer (enhanced fan-out), and take no part of the shards' five "
        "reads a second; it is registered if it is not there, and stays",
    )
    add_format_arguments(parser)
    add_filter_arguments(parser)
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print until SIGINT, SIGTERM, the count or the end that was asked for; return the exit status.

    Raises:
        ShardsStopped: A shard stopped before that, so not everything is printed that was asked for.
    """
    from penstock.cli.caught_up import when_caught_up
    from penstock.cli.only_shards import only_shards
    from penstock.cli.output_reader import while_output_is_read
    from penstock.cli.record_lines import RecordPrinter
    from penstock.consumer import Consumer, ConsumerOptions, ConsumerPorts
    from penstock.runtime.memory_lease_table import MemoryLeaseTable

    _check(args)
    options = ConsumerOptions(
        worker_id="tail",
        starting_position=_start_of(args),
        on_data_loss="warn",
        lease_duration_s=60.0,
        round_interval_s=0.5,  # the table is a dictionary: looking is free, and children start at once
        cold_start_jitter_s=0.0,
        idle_time_between_reads_s=0.5,
        retrieval="polling" if args.fan_out is None else "fan-out",
        consumer_name=args.fan_out,
    )
    wanted = filter_of(args)
    printer = RecordPrinter(format_of(args), args.count, wanted)
    fan_out = None if args.fan_out is None else open_fan_out(args)
    table = MemoryLeaseTable(f"tail of {args.stream}")
    kinesis = open_kinesis(args)
    if wanted.shard_ids is not None:
        kinesis = only_shards(kinesis, args.stream, wanted.shard_ids)
    consumer = Consumer(
        args.stream,
        "tail",
        options=options,
        ports=ConsumerPorts(kinesis=kinesis, lease_table=table, fan_out=fan_out),
    )

    def on_caught_up() -> None:
        if args.until_end:
            consumer.request_stop()
        elif sys.stderr.isatty():
            warn(_say_waiting(args))

    def on_ended() -> None:
        warn(_say_ended(args, wanted.shard_ids or ()))
        consumer.request_stop()

    with (
        while_output_is_read(consumer.request_stop) as is_reader_gone,
        when_caught_up(
            consumer,
            table,
            on_caught_up,
            shard_ids=() if args.until_end else wanted.shard_ids or (),
            on_ended=on_ended,
        ),
    ):
        for batch in consumer:
            printer.print_batch(batch)
            if printer.is_full:
                break
    if is_reader_gone.is_set() and not printer.is_full:
        raise BrokenPipeError
    if not printer.is_full:
        _check_all_was_read(args.stream, consumer)
    return 0


def _check_all_was_read(stream: str, consumer: Consumer) -> None:
    """Raise what a shard has stopped for: what it still holds was asked for, and is not printed."""
    from penstock.consumer.pull import IterationEnded

    failures = {
        shard_id: failure
        for shard_id, failure in consumer.failures.items()
        if not isinstance(failure.__cause__, IterationEnded)
    }
    if failures:
        first = min(failures)
        raise ShardsStopped(
            f"stream {stream}: not everything was read. Stopped: {', '.join(sorted(failures))}. {failures[first]}",
            failures,
        )


def _check(args: argparse.Namespace) -> None:
    if args.count is not None and args.count < 1:
        raise OptionError(f"--count {args.count}: expected at least 1")
    if args.shard is not None and args.fan_out is not None:
        raise OptionError(
            "--shard and --fan-out exclude each other: single shards are polled; leave one of them out"
        )


def _start_of(args: argparse.Namespace) -> StartingPosition:
    from penstock.core.starting import StartingPosition, check_has_come, parse_starting

    now_ms = int(time.time() * 1000)
    if args.since is None:
        given = f"--from {args.start}"
        start = parse_starting(args.start or ("TRIM_HORIZON" if args.until_end else "LATEST"), "--from")
    else:
        given = f"--since {args.since}"
        start = StartingPosition(_since(args.since, now_ms))
    check_has_come(start, now_ms, given)
    return start


def _since(text: str, now_ms: int) -> Position:
    from penstock.core.position import at_timestamp
    from penstock.core.starting import parse_starting

    age = _AGE.fullmatch(text.strip())
    if age is not None:
        return at_timestamp(max(0, now_ms - int(age[1]) * _UNITS_S[age[2]] * 1000))
    try:
        return parse_starting(f"AT_TIMESTAMP {text}", "--since").default
    except PositionError as error:
        raise OptionError(
            f"--since {text!r}: expected an age (30s, 10m, 2h, 1d) or a moment (2026-01-31T12:00:00Z)"
        ) from error


def _say_waiting(args: argparse.Namespace) -> str:
    if args.start is None and args.since is None:
        return (
            f"penstock tail: waiting for records that come to {args.stream} from now on; Ctrl-C ends. From the beginning: "
            "--from TRIM_HORIZON"
        )
    return f"penstock tail: this is all of {args.stream} so far; waiting for more, Ctrl-C ends. To end here: --until-end"


def _say_ended(args: argparse.Namespace, shard_ids: Iterable[str]) -> str:
    told = (
        f"penstock tail: {', '.join(sorted(shard_ids))} of {args.stream} is closed, so nothing more comes there; "
        f"`penstock shards {args.stream}` lists the shards that are open."
    )
    is_unread = args.start is None and args.since is None
    return f"{told} What it still holds: --from TRIM_HORIZON" if is_unread else told
