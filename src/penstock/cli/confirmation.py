"""Asks the user before something is lost."""

from __future__ import annotations

import argparse
import sys

from penstock.cli.terminal import escape_text
from penstock.errors import PenstockError, UsageError


def confirm(args: argparse.Namespace, warning: str, name: str) -> None:
    """Ask the user to type a name before something is lost.

    Raises:
        UsageError: There is no terminal to ask on, and `--yes` was not given.
        PenstockError: The user typed something else.
    """
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{warning} There is no terminal to ask on: add --yes")
    print(escape_text(f"{warning} Type {name} to go on: "), end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != name:
        raise PenstockError("nothing was changed")
