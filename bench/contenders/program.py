"""What every contender's program shares: its command line, and the meter of its measured part.

A program is called as `python source.py NAME OPTIONS`, with the options as JSON, and prints its figures as JSON in the last
line of its output. It runs in environments that have no Penstock, so this module needs the standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Collection

import process_tree

Figures = dict[str, float]


DEADLINE_S = float(os.environ.get("BENCH_DEADLINE_S", "90"))
"""The harness ends a program that runs longer."""


class Meter:
    """Wall and CPU seconds of this process and its descendants since the meter was made."""

    def __init__(self, without: Collection[int] = ()) -> None:
        self._without = without
        self._began_cpu_s = process_tree.cpu_s(os.getpid(), without)
        self._began_s = time.perf_counter()

    def read(self) -> Figures:
        """Return the time spent so far."""
        wall_s = time.perf_counter() - self._began_s
        return {
            "wall_s": wall_s,
            "cpu_s": process_tree.cpu_s(os.getpid(), self._without) - self._began_cpu_s,
        }


def since_process_start_s() -> float:
    """Return the seconds since the harness started this process."""
    return time.time() - float(os.environ["BENCH_BEGAN_S"])


def twice(measure: Callable[[int], Figures]) -> Figures:
    """Measure a session's first run and its second; the figures of the second begin with `again_`.

    Args:
        measure: Gets 0 the first time and 1 the second.
    """
    return {**measure(0), **{f"again_{name}": value for name, value in measure(1).items()}}


def percentile(values: Collection[float], share: float) -> float:
    """Return the value below which a share of all values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def run(programs: dict[str, Callable[..., Figures]]) -> None:
    """Run the program that the command line names, and print its figures."""
    figures = programs[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps(figures), flush=True)
