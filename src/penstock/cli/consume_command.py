"""`penstock consume`: print the records of one stream or several as a worker of an application, with checkpoints."""

from __future__ import annotations

import argparse
import contextlib
import logging
from typing import TYPE_CHECKING, Final, Literal

from penstock.cli.filtered_logs import CONSUMER_LOGGERS, filtered_logs
from penstock.cli.moments import MOMENT_FORMS, moments_of, parse_position, print_moments
from penstock.cli.record_lines import RecordPrinter, add_format_arguments, format_of
from penstock.cli.service_options import add_connection_arguments, connection_of
from penstock.errors import HandlerFailed, UsageError

if TYPE_CHECKING:
    from penstock.consumer import ConsumerOptions
    from penstock.consumer.metrics_prometheus import PrometheusMetrics
    from penstock.core.starting import StartingPosition

_LOOPBACK = "127.0.0.1"
_PORT_MAX = 65_535

OPTION_FLAGS: Final = {
    "worker_id": "--worker-id",
    "starting_position": "--from",
    "max_records": "--max-records",
    "checkpoint_interval_s": "--checkpoint-interval",
    "lease_duration_s": "--lease-duration",
    "consumer_name": "--fan-out (or --auto-fan-out)",
}
DESCRIPTION = "Print the records of one stream or several as a worker of an application: leases, checkpoints, fair shares."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "streams",
        nargs="*",
        metavar="STREAM",
        help="name or ARN; several share one lease table, in the form of the KCL's multi-stream mode",
    )
    parser.add_argument(
        "--queue",
        metavar="Q",
        help="consume this queue (name or ARN) instead of streams: records are acknowledged when they are printed, and there are no "
        "leases, checkpoints or order",
    )
    parser.add_argument(
        "--application",
        metavar="A",
        help="names the lease table that its workers share: a DynamoDB table, s3://bucket/prefix or file:///folder",
    )
    parser.add_argument(
        "--from",
        dest="start",
        default="LATEST",
        metavar="POSITION",
        help=f"where a new application starts: TRIM_HORIZON, LATEST or AT_TIMESTAMP <moment>: {MOMENT_FORMS} (default: LATEST)",
    )
    add_format_arguments(parser)
    parser.add_argument("--worker-id", metavar="NAME", help="of this worker; zone/name with --policy by_zone")
    parser.add_argument(
        "--lease-duration", type=float, default=10.0, metavar="S", help="seconds (default: 10)"
    )
    parser.add_argument(
        "--policy",
        choices=("even", "by_throughput", "by_zone", "kcl2"),
        default="even",
        help="how shards are shared (default: even)",
    )
    parser.add_argument(
        "--checkpoint-interval", type=float, default=5.0, metavar="S", help="seconds (default: 5)"
    )
    parser.add_argument(
        "--max-records", type=int, default=10_000, metavar="N", help="records per read, 1 to 10,000"
    )
    fan_out = parser.add_mutually_exclusive_group()
    fan_out.add_argument(
        "--fan-out",
        nargs="?",
        const="",
        metavar="NAME",
        help="have the records pushed to this registered consumer (enhanced fan-out; without a name that of the application); "
        "it is registered if it is not there, and stays",
    )
    fan_out.add_argument(
        "--auto-fan-out",
        nargs="?",
        const="",
        metavar="NAME",
        help="the same, only for shards whose reads are refused because others read them too, and as long as that lasts; the "
        "consumer is registered when it is first needed",
    )
    parser.add_argument(
        "--on-data-loss",
        choices=("fail", "warn"),
        default="fail",
        help="what happens when unread records have passed the stream's retention (default: fail)",
    )
    parser.add_argument(
        "--metrics-port",
        type=parse_address,
        metavar="[HOST:]PORT",
        help="serve /metrics for Prometheus, /health and /ready (default host: 127.0.0.1; 0.0.0.0 is every address)",
    )
    add_connection_arguments(parser)


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `PORT`, `HOST:PORT` or `[IPV6]:PORT`.

    Raises:
        ArgumentTypeError: The text has none of these forms.
    """
    host, colon, port = text.rpartition(":")
    if colon and host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise argparse.ArgumentTypeError(f"{text!r}: write an IPv6 address as [ADDRESS]:PORT")
    is_port = port.isascii() and port.isdigit() and int(port) <= _PORT_MAX
    if not is_port or (colon and not host):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected PORT or HOST:PORT, with a port from 0 to {_PORT_MAX}"
        )
    return host or _LOOPBACK, int(port)


def _retrieval_of(args: argparse.Namespace) -> Literal["polling", "fan-out", "auto"]:
    if args.fan_out is not None:
        return "fan-out"
    return "polling" if args.auto_fan_out is None else "auto"


def _is_shown(record: logging.LogRecord) -> bool:
    """Return whether a log record is shown: all but that of a broken pipe, which is no fault of a shard."""
    # A second handler may fail while its shard is leaving: then only the log record's message names the error.
    is_raised = record.exc_info is not None and isinstance(record.exc_info[1], BrokenPipeError)
    return not is_raised and BrokenPipeError.__name__ not in record.getMessage()


def _with_zone(start: StartingPosition) -> str | StartingPosition:
    """Return a position as `ConsumerOptions` takes it: one timestamp for all shards as text, so that errors show its time zone."""
    from penstock.core.moments import describe_moment

    moment_ms = start.default.timestamp_ms
    return start if start.by_shard or moment_ms is None else f"AT_TIMESTAMP {describe_moment(moment_ms)}"


def _consumer_options_of(args: argparse.Namespace) -> ConsumerOptions:
    """Return the consumer's options; print the parsed moments."""
    from penstock.consumer import ConsumerOptions

    start = parse_position(args.start, "--from")
    moments = moments_of(start)
    options = ConsumerOptions(
        worker_id=args.worker_id,
        starting_position=_with_zone(start) if moments else args.start,
        max_records=args.max_records,
        on_data_loss=args.on_data_loss,
        checkpoint_interval_s=args.checkpoint_interval,
        lease_duration_s=args.lease_duration,
        policy=args.policy,
        retrieval=_retrieval_of(args),
        consumer_name=args.fan_out or args.auto_fan_out or None,
        cold_start_jitter_s=min(5.0, args.lease_duration / 2),
        handler_retries_max=0,
        on_failure="stop_worker",
    )
    print_moments("consume", "a new application starts from", moments)
    return options


def run(args: argparse.Namespace) -> int:
    """Consume until SIGINT or SIGTERM; return the exit status."""
    if args.queue is None and (not args.streams or args.application is None):
        raise UsageError("name a stream and --application, or --queue")
    from penstock.consumer.metrics_prometheus import PrometheusMetrics

    port = args.metrics_port
    with contextlib.nullcontext() if port is None else PrometheusMetrics(port[1], port[0]) as metrics:
        if args.queue is None:
            return _consume_streams(args, metrics)
        from penstock.cli import consume_queue

        return consume_queue.run(args, metrics)


def _consume_streams(args: argparse.Namespace, metrics: PrometheusMetrics | None) -> int:
    from penstock.cli.output_reader import while_output_is_read
    from penstock.consumer import Consumer

    for name in CONSUMER_LOGGERS:  # the user wants to see which shards begin and end
        logging.getLogger(name).setLevel(logging.INFO)
    consumer = Consumer(
        args.streams[0] if len(args.streams) == 1 else args.streams,
        args.application,
        RecordPrinter(format_of(args), names_streams=len(args.streams) > 1).print_batch,
        options=_consumer_options_of(args),
        metrics=metrics,
        connection=connection_of(args),
    )
    try:
        with filtered_logs(_is_shown), while_output_is_read(consumer.request_stop) as is_reader_gone:
            consumer.run()
        if is_reader_gone.is_set():
            raise BrokenPipeError
    except HandlerFailed as failure:
        if isinstance(failure.__cause__, BrokenPipeError):
            raise BrokenPipeError from failure  # the output's reader has gone: unprinted records get no checkpoint
        raise
    return 0
