"""The values that production code hands round are made in C; only what programs make or get are data classes."""

from __future__ import annotations

import subprocess
import sys

import pytest

_COUNT = """
import dataclasses
import importlib
import sys

made = []
process = dataclasses._process_class


def counted(kind, *args, **kwargs):
    if kind.__module__.startswith("penstock"):
        made.append(kind.__qualname__)
    return process(kind, *args, **kwargs)


dataclasses._process_class = counted
importlib.import_module(sys.argv[1])
print(*made)
"""


@pytest.mark.parametrize("module", ["penstock.consumer", "penstock.producer.producer", "penstock.wiring"])
def test_a_process_compiles_few_data_classes_at_its_start(module: str):
    # Half a millisecond each, in every process: a worker, and each of the Python programs that Spark starts.
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, module], capture_output=True, text=True, timeout=60, check=True
    )
    made = done.stdout.split()
    assert made, done.stderr
    assert len(made) <= 15, made
