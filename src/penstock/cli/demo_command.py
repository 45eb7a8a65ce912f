"""`penstock demo`: the main job, verified to the last flight."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

FLIGHT_COUNT = 336_776


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "demo",
        help="Send real flights through the embedded Kinesis and Spark, reshard, kill the query, and verify.",
        description=(
            "Publishes the flights of 2013 from New York into an embedded Kinesis, reads them with Spark Structured "
            "Streaming while a shard is split, two are merged and the query is killed, and compares what came out with "
            "the data set. The last line says what was found; exit status 1 when something is wrong."
        ),
    )
    parser.add_argument(
        "--records", type=_count, metavar="N", help=f"publish only the first N flights (of {FLIGHT_COUNT:,})"
    )
    parser.add_argument(
        "--kills", type=int, default=1, metavar="N", help="how often the query is killed (default 1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="what is killed, and when, with --kills above 1")
    parser.add_argument("--no-limits", action="store_true", help="let the embedded Kinesis keep no quotas")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep Parquet, checkpoints and logs in DIR")


def _count(text: str) -> int:
    value = int(text)
    if not 1000 <= value <= FLIGHT_COUNT:
        raise argparse.ArgumentTypeError(f"{value} is not from 1000 to {FLIGHT_COUNT}")
    return value


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 when everything is verified, else 1."""
    from rich.console import Console

    from penstock.cli.flights.display import Display
    from penstock.cli.flights.story import DemoFailed, Plan, Story, load

    plan = Plan(args.records, args.kills, args.seed, limits=not args.no_limits)
    console = Console()
    with ExitStack() as stack:
        work = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        work.mkdir(parents=True, exist_ok=True)
        if any(work.iterdir()):
            print(f"penstock demo: {work} is not empty; give an empty or new folder", file=sys.stderr)
            return 2
        flights = load(plan)
        display = Display(console, len(flights))
        try:
            outcome = Story(plan, work.resolve(), display, flights).run()
        except DemoFailed as error:
            print(f"failed: {error}")
            return 1
        display.table(outcome.figures)
        for finding in outcome.findings[1:]:
            display.note(f"also: {finding}")
        print(outcome.last_line())
        return 1 if outcome.findings else 0
