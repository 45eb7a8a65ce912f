"""`penstock demo`: the main job, verified to the last flight."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock.cli.demo.command import DESCRIPTION, EXPLANATION, add_arguments

if TYPE_CHECKING:
    from penstock.cli.service_options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Add the command to the command line."""
    add_arguments(subparsers.add_parser("demo", help=DESCRIPTION, description=EXPLANATION))


def run(args: argparse.Namespace) -> int:
    """Run it; 0 when everything is verified."""
    from penstock.cli.demo import command

    return command.run(args)
