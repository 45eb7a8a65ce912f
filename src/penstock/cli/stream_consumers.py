"""`penstock streams consumers`: a stream's registered consumers (enhanced fan-out), listed, registered and deregistered."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock import wiring
from penstock.cli.service_options import options_of
from penstock.cli.terminal import Output, safe_json

if TYPE_CHECKING:
    from penstock.ports.fan_out import StreamConsumer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `consumers`; the parser has the stream's argument already."""
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--register",
        metavar="NAME",
        help="register a consumer unless it is there, and wait until it is ACTIVE",
    )
    action.add_argument(
        "--deregister",
        metavar="NAME",
        help="deregister an unused one, which ends its cost",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    """Register or deregister if asked to, then list and print."""
    fan_out = wiring.open_fan_out(options_of(args))
    stream_arn = wiring.open_kinesis(options_of(args)).fetch_summary(args.stream).arn
    if args.register is not None:
        _register(args, stream_arn)
    if args.deregister is not None:
        fan_out.deregister_consumer(stream_arn, args.deregister)
    consumers = sorted(fan_out.fetch_consumers(stream_arn), key=lambda consumer: consumer.name)
    if args.json:
        print(safe_json([_document(consumer) for consumer in consumers], indent=2))
        return
    output = Output()
    for consumer in consumers:
        output.line(f"{consumer.name}  {consumer.status}  since {_created_text(consumer)}  {consumer.arn}")
    output.line(f"{len(consumers)} registered")


def _register(args: argparse.Namespace, stream_arn: str) -> None:
    import random

    from penstock.core.stream_consumer import check_consumer_name
    from penstock.runtime.consumer_registration import ConsumerRegistration
    from penstock.runtime.system_clock import SystemClock

    check_consumer_name(args.register, "--register")
    chance = random.SystemRandom()
    ConsumerRegistration(
        wiring.open_fan_out(options_of(args)), stream_arn, args.register, SystemClock(), chance
    ).fetch_arn()


def _created_text(consumer: StreamConsumer) -> str:
    return datetime.fromtimestamp(consumer.created_ms / 1000, UTC).isoformat(timespec="seconds")


def _document(consumer: StreamConsumer) -> dict[str, Any]:
    return {
        "name": consumer.name,
        "arn": consumer.arn,
        "status": consumer.status,
        "created": _created_text(consumer),
    }
