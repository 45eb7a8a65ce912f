"""`penstock local`: registers the embedded Kinesis with the command line; loads it only when it is run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock_local import command

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - it has no public name


def add_parser(subparsers: Subparsers) -> None:
    """Add the `local` command to the main parser's subcommands."""
    parser = subparsers.add_parser("local", help=command.DESCRIPTION, description=command.DESCRIPTION)
    command.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the server in the foreground until SIGINT or SIGTERM; returns the exit status."""
    return command.run(args)
