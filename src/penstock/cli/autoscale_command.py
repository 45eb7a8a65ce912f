"""`penstock autoscale`: keep the size of a stream by splits and merges."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from penstock.cli.service_options import add_connection_arguments, connection_of
from penstock.cli.terminal import counted, escape_text, safe_json

if TYPE_CHECKING:
    import argparse

    from penstock.sizing.autoscaler import AutoscaleEvent

DESCRIPTION = (
    "Keep the size of a provisioned stream: split and merge shards by the measured load of their hash keys."
)
OPTION_FLAGS: Final = {
    "shards_min": "--min",
    "shards_max": "--max",
    "target": "--target",
    "interval_s": "--interval",
    "steps_max": "--steps",
    "closed_lag_max_s": "--closed-lag-max",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{DESCRIPTION} Runs until Ctrl-C or SIGTERM."
    parser.add_argument("stream", metavar="STREAM", help="name or ARN")
    parser.add_argument("--min", type=int, required=True, metavar="N", help="fewest shards")
    parser.add_argument("--max", type=int, required=True, metavar="N", help="most shards")
    parser.add_argument(
        "--target",
        type=float,
        default=0.85,
        metavar="PART",
        help="grow above this mean use of the write quota, 0.3 to 0.9 (default: 0.85)",
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time between two measurements (default: 60)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=5,
        metavar="N",
        help="at most N splits and merges between two measurements (default: 5)",
    )
    parser.add_argument(
        "--reader",
        metavar="APPLICATION",
        action="append",
        default=[],
        help="an application (its lease table) that must not be behind in closed shards; may be repeated",
    )
    parser.add_argument(
        "--closed-lag-max",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="change nothing while a reader is further behind in a closed shard (default: 300)",
    )
    parser.add_argument(
        "--lease-table",
        default="penstock-autoscale",
        metavar="NAME",
        help="lease table, so that only one autoscaler acts at a time: a DynamoDB table, s3://bucket/prefix or file:///folder "
        "(default: penstock-autoscale)",
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing: print each next action")
    parser.add_argument("--once", action="store_true", help="measure once, act and end")
    parser.add_argument("--json", action="store_true", help="print one JSON document to a line")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Keep the size until a signal; return the exit status."""
    from penstock.runtime.stop_signals import StopSignals
    from penstock.sizing.autoscaler import Autoscaler

    def show(event: AutoscaleEvent) -> None:
        if args.json:
            print(safe_json(asdict(event)), flush=True)
        else:
            print(
                escape_text(
                    f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {event.stream}, {counted(event.shards, 'shard')}: {event.text}"
                ),
                flush=True,
            )

    autoscaler = Autoscaler(
        args.stream,
        shards_min=args.min,
        shards_max=args.max,
        target=args.target,
        interval_s=args.interval,
        steps_max=args.steps,
        closed_lag_max_s=args.closed_lag_max,
        dry_run=args.dry_run,
        readers=args.reader,
        lease_table=args.lease_table,
        connection=connection_of(args),
        on_event=show,
    )
    with StopSignals(autoscaler.stop):
        if args.once:
            autoscaler.run_once()
        else:
            autoscaler.run()
    return 0
