"""`penstock-local` and `python -m penstock_local`: the embedded Kinesis in the foreground."""

from __future__ import annotations

import argparse
import io
import sys

from penstock_local import command
from penstock_local._version import __version__


def main() -> int:
    """Run the server until SIGINT or SIGTERM; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # text that the terminal's encoding lacks is no error
            stream.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser("penstock-local", description=command.DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"penstock-local {__version__}")
    command.add_arguments(parser)
    return command.run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
