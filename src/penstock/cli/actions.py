"""The actions of a command, such as `delete` of `penstock streams`: parsers, a question before a loss, and the wait for a change."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.terminal import escape_text
from penstock.errors import NotFound, PenstockError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_CHECK_INTERVAL_S: Final = 0.5


def add_action(actions: Any, name: str, about: str) -> argparse.ArgumentParser:
    """Add an action to the subparsers of a command; its description is `about` as a sentence."""
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=about, description=f"{about[0].upper()}{about[1:]}."
    )
    return parser


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


def wait_for_status(
    fetch_status: Callable[[], str], wanted_status: str | None, timeout_s: float
) -> str | None:
    """Wait until a resource has the wanted status. Return its last status: after the timeout, this is not `wanted_status`.

    Args:
        fetch_status: Raises `NotFound` if the resource does not exist.
        wanted_status: None waits until the resource does not exist.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            status = fetch_status()
        except NotFound:
            if wanted_status is None:
                return None
            raise
        if status == wanted_status or time.monotonic() >= end_s:
            return status
        time.sleep(_CHECK_INTERVAL_S)
