"""Threads that read large pages give their memory back to the system."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import sys, threading
from pathlib import Path
from penstock.spark.worker_memory import bound_allocator_once

def resident_mb():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")) / 1024

if sys.argv[1] == "bounded":
    bound_allocator_once()
before_mb = resident_mb()
held = threading.Barrier(8)

def read():
    for _ in range(3):  # after the first block glibc keeps blocks of the size, unless it is told not to
        page = b"x" * 14_000_000
        held.wait()
        del page

threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(resident_mb() - before_mb)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_pages_return_to_the_system_whichever_thread_read_them():
    environ = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    line = [sys.executable, "-c", _PROGRAM, "bounded"]
    answer = subprocess.run(line, env=environ, capture_output=True, text=True, check=True).stdout
    assert float(answer) < 14.0
