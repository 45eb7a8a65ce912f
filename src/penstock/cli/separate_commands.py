"""Commands that other distributions bring: the embedded server, the simulator and the demonstration.

A command whose distribution is not installed stays on the command line, and its error explains in one sentence how to get it.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from penstock.cli.command_parser import CommandParser
from penstock.errors import PenstockError

_PACKAGES: Final = {"demo": "penstock_demo", "local": "penstock_local", "simulate": "penstock_sim"}
_DESCRIPTIONS: Final = {
    "demo": "Send real flights through Kinesis and Spark (part of the repository).",
    "local": "Run an embedded Kinesis on this machine (needs penstock-local).",
    "simulate": "Prove the coordination of a fleet in a simulated world (part of the repository).",
}
_REMEDY: Final = {
    "demo": "is part of the repository and not published: run it there with `make demo`",
    "local": "needs the package penstock_local, which is not installed: pip install 'penstock[local]'",
    "simulate": "is part of the repository and not published: run it there after `make setup`",
}


def is_missing(command: str) -> bool:
    """Return whether a command's distribution is not installed."""
    return command in _PACKAGES and find_spec(_PACKAGES[command]) is None


class MissingCommand(ModuleType):
    """Replaces the module of a command that is not installed."""

    def __init__(self, command: str) -> None:
        super().__init__(f"penstock.cli.{command}")
        self.DESCRIPTION = _DESCRIPTIONS[command]

    def add_arguments(self, parser: CommandParser) -> None:
        """Accept all arguments, since every call ends with the same error."""
        parser.accept_all_words()

    def run(self, args: argparse.Namespace) -> int:
        """Refuse to run.

        Raises:
            PenstockError: Always; the message explains how to get the command.
        """
        raise PenstockError(f"`{args.command}` {_REMEDY[args.command]}")
