"""The actions of a command, such as `delete` of `penstock streams`: their parsers, and the wait for a change to be done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import NotFound

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


def wait_for_status(fetch_status: Callable[[], str], wanted: str | None, timeout_s: float) -> str | None:
    """Wait until a resource has the wanted status. Return its last status: after the timeout, this is not `wanted`.

    Args:
        fetch_status: Raises `NotFound` if the resource does not exist.
        wanted: None waits until the resource does not exist.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            status = fetch_status()
        except NotFound:
            if wanted is None:
                return None
            raise
        if status == wanted or time.monotonic() >= end_s:
            return status
        time.sleep(_CHECK_INTERVAL_S)
