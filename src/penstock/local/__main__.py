"""`python -m penstock.local`: the embedded Kinesis in the foreground."""

from __future__ import annotations

import argparse
import sys

from penstock.local import command

if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m penstock.local", description=command.DESCRIPTION)
    command.add_arguments(parser)
    sys.exit(command.run(parser.parse_args()))
