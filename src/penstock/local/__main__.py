"""`python -m penstock.local`: the embedded Kinesis in the foreground."""

from __future__ import annotations

import argparse
import io
import sys

from penstock.local import command

if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # text that the terminal's encoding does not have is no error
            stream.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser("python -m penstock.local", description=command.DESCRIPTION)
    command.add_arguments(parser)
    sys.exit(command.run(parser.parse_args()))
