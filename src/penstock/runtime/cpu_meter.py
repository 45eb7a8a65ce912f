"""The use of the processors available to this process, measured as KCL 3 measures it.

Source:
    KCL 3.5.1: in a container the time that its group of processes used, against the processors that the group may use;
    on a machine the first line of /proc/stat. Each value is a percentage since the value before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_MICROS_PER_S = 1e6
_NANOS_PER_S = 1e9


class _Reading(NamedTuple):
    """Processor seconds used so far, and available so far; both only grow."""

    used_s: float
    total_s: float


class CpuMeter:
    """Measures from call to call. Not thread-safe.

    Args:
        root: The root of the kernel's files.
    """

    def __init__(self, monotonic_s: Callable[[], float], root: Path = Path("/")) -> None:
        self._monotonic_s = monotonic_s
        self._root = root
        self._last_reading: _Reading | None = self._read()

    def measure(self) -> float | None:
        """Return the percentage used since the last call, or since this object was made; None if it cannot be measured."""
        now = self._read()
        before, self._last_reading = self._last_reading, now
        if now is None or before is None:
            return None
        total_s = now.total_s - before.total_s
        return max(0.0, min(100.0, 100 * (now.used_s - before.used_s) / total_s)) if total_s > 0 else 0.0

    def _read(self) -> _Reading | None:
        for read in (self._read_group_v2, self._read_group_v1, self._read_machine):
            try:
                return read()
            except (OSError, ValueError, IndexError):
                continue  # not this kind of machine
        return None

    def _read_group_v2(self) -> _Reading:
        group = self._root / "sys/fs/cgroup"
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        limit = float(len(os.sched_getaffinity(0))) if quota == "max" else float(quota) / float(period)
        used = (group / "cpu.stat").read_text(encoding="ascii").split()[1]
        return _Reading(int(used) / _MICROS_PER_S, self._monotonic_s() * limit)

    def _read_group_v1(self) -> _Reading:
        group = self._root / "sys/fs/cgroup"
        quota = float((group / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii"))
        if quota < 0:
            limit = float(len(os.sched_getaffinity(0)))
        else:
            limit = quota / float((group / "cpu/cpu.cfs_period_us").read_text(encoding="ascii"))
        used = int((group / "cpu/cpuacct.usage").read_text(encoding="ascii"))
        return _Reading(used / _NANOS_PER_S, self._monotonic_s() * limit)

    def _read_machine(self) -> _Reading:
        with (self._root / "proc/stat").open(encoding="ascii") as file:
            user, nice, system, idle, waiting = map(int, file.readline().split()[1:6])
        total = user + nice + system + idle + waiting
        return _Reading(float(total - idle), float(total))
