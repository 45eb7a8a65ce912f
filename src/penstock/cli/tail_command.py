"""`penstock tail`: print a stream's records as they arrive. Nothing is stored, not even leases or checkpoints."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock import wiring
from penstock.cli.moments import (
    MOMENT_FORMS,
    ServiceTime,
    moments_of,
    parse_age_or_moment,
    parse_position,
    print_moments,
)
from penstock.cli.record_filter import add_filter_arguments, filter_of
from penstock.cli.record_lines import RecordPrinter, add_format_arguments, format_of
from penstock.cli.service_options import add_connection_arguments, options_of
from penstock.cli.terminal import counted, warn
from penstock.errors import OptionError, PenstockError, ShardsStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.consumer import Consumer, ConsumerOptions
    from penstock.core.starting import StartingPosition

OPTION_FLAGS: Final = {"consumer_name": "--fan-out"}
DESCRIPTION = "Print a stream's records as they arrive: no leases, no checkpoints, resharding followed."
_LAG_ERROR_MS: Final = {"polling": 3_000, "fan-out": 8_000}
"""Upper bound of a lag's age plus the difference between this machine's clock and the service's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM", help="name or ARN")
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from",
        dest="start",
        metavar="POSITION",
        help=f"TRIM_HORIZON, LATEST or AT_TIMESTAMP <moment>: {MOMENT_FORMS} (default: LATEST; with an end TRIM_HORIZON)",
    )
    start.add_argument("--since", metavar="AGE", help="how far back: 30s, 10m, 2h, 1d; or a moment, as above")
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "-e", "--until-end", action="store_true", help="read the records that exist at the start, and end"
    )
    end.add_argument(
        "--until",
        metavar="MOMENT",
        help="end when everything is read that arrives before this moment, in the past or the future; or an age, as above",
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
    """Print until SIGINT or SIGTERM, or until the requested count, moment or end; return the exit status.

    After a signal, the status is 0 if no end was requested, otherwise 128 plus the signal's number.

    Raises:
        ShardsStopped: A shard stopped early, so some requested records are not printed.
    """
    from penstock.cli.caught_up import when_caught_up
    from penstock.cli.filtered_logs import filtered_logs, is_shown_without_leases
    from penstock.cli.output_reader import while_output_is_read
    from penstock.cli.shard_subset import restrict_to_shards
    from penstock.consumer import Consumer, ConsumerPorts
    from penstock.runtime.memory_lease_table import MemoryLeaseTable

    _check_options(args)
    kinesis = wiring.open_kinesis(options_of(args))
    service_now_ms = ServiceTime(kinesis, args.stream)
    start, until_ms = _range_of(args, service_now_ms)
    options = _consumer_options_of(args, start)
    record_filter = replace(filter_of(args), until_ms=until_ms)
    printer = RecordPrinter(format_of(args), args.count, record_filter)
    fan_out = None if args.fan_out is None else wiring.open_fan_out(options_of(args))
    table = MemoryLeaseTable(f"tail of {args.stream}")
    if record_filter.shard_ids is not None:
        kinesis = restrict_to_shards(kinesis, args.stream, record_filter.shard_ids)
    consumer = Consumer(
        args.stream,
        "tail",
        options=options,
        ports=ConsumerPorts(kinesis=kinesis, lease_table=table, fan_out=fan_out),
    )

    has_end = args.until_end or until_ms is not None
    is_all_read = threading.Event()
    lag_error_ms = _LAG_ERROR_MS[options.retrieval]

    def on_caught_up() -> None:
        if has_end:
            is_all_read.set()
            consumer.request_stop()
        elif sys.stderr.isatty():
            warn(_waiting_text(args))

    def on_ended() -> None:
        is_all_read.set()
        warn(_ended_text(args, record_filter.shard_ids or ()))
        consumer.request_stop()

    with (
        _report_stopped_shards(args.stream),
        filtered_logs(is_shown_without_leases),
        while_output_is_read(consumer.request_stop) as is_reader_gone,
        when_caught_up(
            consumer,
            table,
            on_caught_up,
            lag_error_ms=lag_error_ms,
            shard_ids=() if has_end else record_filter.shard_ids or (),
            on_ended=on_ended,
            lag_max_ms=None if until_ms is None else lambda: service_now_ms() - until_ms - lag_error_ms,
        ),
    ):
        for batch in consumer:
            printer.print_batch(batch)
            if printer.is_full:
                break
    if is_reader_gone.is_set() and not printer.is_full:
        raise BrokenPipeError
    if printer.is_full:
        return 0
    _check_all_was_read(args.stream, consumer)
    is_cut_short = (has_end or args.count is not None) and not is_all_read.is_set()
    return _early_end_status(printer.count) if is_cut_short else 0


def _consumer_options_of(args: argparse.Namespace, start: StartingPosition) -> ConsumerOptions:
    from penstock.consumer import ConsumerOptions
    from penstock.core.reading.reader_options import ErrorAdvice

    class TailOptions(ConsumerOptions):
        """Consumer options whose error messages advise the user of `penstock tail`."""

        _error_advice = ErrorAdvice(of_loss="The command goes on", of_new_stream="start the command again")

    return TailOptions(
        worker_id="tail",
        starting_position=start,
        on_data_loss="warn",
        lease_duration_s=60.0,
        round_interval_s=0.5,  # the table is a dictionary: scans are free, and children start at once
        cold_start_jitter_s=0.0,
        idle_time_between_reads_s=0.5,
        retrieval="polling" if args.fan_out is None else "fan-out",
        consumer_name=args.fan_out,
    )


@contextlib.contextmanager
def _report_stopped_shards(stream: str) -> Iterator[None]:
    """Raise one error about all stopped shards in place of the consumer's."""
    try:
        yield
    except ShardsStopped as error:
        raise _stopped_error(stream, error.failures) from error


def _stopped_error(stream: str, failures: Mapping[str, PenstockError]) -> ShardsStopped:
    first = min(failures)
    return ShardsStopped(
        f"stream {stream}: not everything was read. Stopped: {', '.join(sorted(failures))}. {failures[first]}",
        failures,
    )


def _early_end_status(count: int) -> int:
    """Return the exit status of an end before the requested one: 128 plus the signal's number, or 0 without a signal."""
    from penstock.runtime.stop_signals import received_signal

    number = received_signal()
    if number is None:
        return 0
    warn(f"penstock tail: interrupted after {counted(count, 'record')}, before the end that was asked for")
    return 128 + number


def _check_all_was_read(stream: str, consumer: Consumer) -> None:
    """Raise the failure that stopped a shard, since some of its requested records were not printed."""
    from penstock.consumer.stopped import without_ended_iteration

    failures = without_ended_iteration(consumer.failures)
    if failures:
        raise _stopped_error(stream, failures)


def _check_options(args: argparse.Namespace) -> None:
    if args.count is not None and args.count < 1:
        raise OptionError(f"--count {args.count}: expected at least 1")
    if args.shard is not None and args.fan_out is not None:
        raise OptionError(
            "--shard and --fan-out exclude each other: single shards are polled; leave one of them out"
        )


def _range_of(
    args: argparse.Namespace, service_now_ms: Callable[[], int]
) -> tuple[StartingPosition, int | None]:
    """Return the starting position, and the moment at which to end or None; print the parsed moments.

    Raises:
        PositionError, OptionError: A moment cannot be parsed, or the beginning is in the future or after the end.
    """
    from penstock.core.position import at_timestamp
    from penstock.core.starting import StartingPosition, check_not_in_future

    beginning = f"--from {args.start}" if args.since is None else f"--since {args.since}"
    if args.since is None:
        is_bounded = args.until_end or args.until is not None
        start = parse_position(args.start or ("TRIM_HORIZON" if is_bounded else "LATEST"), "--from")
    else:
        start = StartingPosition(at_timestamp(parse_age_or_moment(args.since, "--since", service_now_ms)))
    moments = moments_of(start)
    if moments:
        check_not_in_future(start, service_now_ms(), beginning)
    print_moments("tail", "from", moments)
    is_latest = start == StartingPosition()
    if args.until_end and is_latest:
        raise OptionError("--from LATEST leaves out all that --until-end reads: leave one of them out")
    if args.until is None:
        return start, None
    until_ms = parse_age_or_moment(args.until, "--until", service_now_ms)
    if (service_now_ms() if is_latest else start.default.timestamp_ms or 0) >= until_ms:
        raise OptionError(
            f"{beginning} is not before --until {args.until}: there is nothing to read between them"
        )
    print_moments("tail", "until", {"": until_ms})
    return start, until_ms


def _waiting_text(args: argparse.Namespace) -> str:
    if args.start is None and args.since is None:
        return (
            f"penstock tail: waiting for new records of {args.stream} from now on; Ctrl-C ends. From the beginning: "
            "--from TRIM_HORIZON"
        )
    return f"penstock tail: this is all of {args.stream} so far; waiting for more, Ctrl-C ends. To end here: --until-end"


def _ended_text(args: argparse.Namespace, shard_ids: Iterable[str]) -> str:
    text = (
        f"penstock tail: {', '.join(sorted(shard_ids))} of {args.stream} is closed, so no more records arrive there; "
        f"`penstock shards {args.stream}` lists the shards that are open."
    )
    is_unread = args.start is None and args.since is None
    return f"{text} Its remaining records: --from TRIM_HORIZON" if is_unread else text
