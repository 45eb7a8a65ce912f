"""`penstock-local` and `python -m penstock_local`: the embedded Kinesis in the foreground."""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path
from typing import Any, Final

from penstock_local import command
from penstock_local._version import __version__

_EXIT_CLOSED_PIPE: Final = 141  # 128 plus the number of SIGPIPE, as shells show it for `cat`


class _Parser(argparse.ArgumentParser):
    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:  # help or version: argparse would ignore that they cannot be written
            file.write(message)
        else:
            super()._print_message(message, file)


def main() -> int:
    """Run the server until SIGINT or SIGTERM; returns the exit status."""
    if sys.stdout is None:  # the shell has closed it (`>&-`): prints are discarded
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # text that the terminal's encoding lacks is no error
            stream.reconfigure(errors="backslashreplace")
    parser = _Parser("penstock-local", description=command.DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"penstock-local {__version__}")
    command.add_arguments(parser)
    try:
        try:
            return command.run(parser.parse_args())
        finally:
            sys.stdout.flush()  # here an error can be handled; at the interpreter's end it could not
    except OSError as error:
        # The interpreter writes nothing at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return _EXIT_CLOSED_PIPE
        print(f"penstock-local: {error}", file=sys.stderr)  # noqa: T201 - a command line prints
        return 1


if __name__ == "__main__":
    sys.exit(main())
