"""`penstock tail`: print a stream's records as they come, without leases and without a trace."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock.cli.record_lines import add_format_arguments, format_of
from penstock.cli.service_options import add_connection_arguments, open_kinesis

if TYPE_CHECKING:
    from penstock.cli.service_options import Subparsers

DESCRIPTION = "Print a stream's records as they come: no leases, no checkpoints, resharding followed."


def add_parser(subparsers: Subparsers) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser("tail", help=DESCRIPTION, description=DESCRIPTION)
    parser.add_argument("stream", metavar="STREAM", help="name or ARN")
    parser.add_argument(
        "--from",
        dest="start",
        default="LATEST",
        metavar="POSITION",
        help="TRIM_HORIZON, LATEST or AT_TIMESTAMP <ISO 8601> (default: LATEST)",
    )
    add_format_arguments(parser)
    parser.add_argument("--count", type=int, metavar="N", help="end after N records")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print until SIGINT, SIGTERM or the count; return the exit status."""
    from penstock.cli.output_reader import while_output_is_read
    from penstock.cli.record_lines import RecordPrinter
    from penstock.consumer import Consumer, ConsumerOptions, ConsumerPorts
    from penstock.errors import OptionError
    from penstock.runtime.memory_lease_table import MemoryLeaseTable

    if args.count is not None and args.count < 1:
        raise OptionError(f"--count {args.count}: expected at least 1")
    options = ConsumerOptions(
        worker_id="tail",
        starting_position=args.start,
        on_data_loss="warn",
        lease_duration_s=60.0,
        round_interval_s=0.5,  # the table is a dictionary: looking is free, and children start at once
        cold_start_jitter_s=0.0,
        idle_time_between_reads_s=0.5,
    )
    printer = RecordPrinter(format_of(args), args.count)
    ports = ConsumerPorts(kinesis=open_kinesis(args), lease_table=MemoryLeaseTable(f"tail of {args.stream}"))
    consumer = Consumer(args.stream, "tail", options=options, ports=ports)
    with while_output_is_read(consumer.request_stop) as is_reader_gone:
        for batch in consumer:
            printer.print_batch(batch)
            if printer.is_full:
                break
    if is_reader_gone.is_set() and not printer.is_full:
        raise BrokenPipeError
    return 0
