"""CPU seconds and memory of a process and its descendants, from Linux's /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str] | None:
    """Return the fields behind the name of a process, which may have spaces; None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def members(root: int, without: Collection[int] = ()) -> dict[int, list[str]]:
    """Return a process and its descendants, with the fields of each; leave out some and their children."""
    stats = {int(each.name): _stat(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdigit()}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        if stat is not None:
            children.setdefault(int(stat[1]), []).append(pid)
    found, open_pids = {}, [root]
    while open_pids:
        pid = open_pids.pop()
        stat = stats.get(pid)
        if stat is not None and pid not in without:
            found[pid] = stat
            open_pids += children.get(pid, [])
    return found


def cpu_s(root: int, without: Collection[int] = ()) -> float:
    """Return the CPU seconds of a tree, those of its children that have ended among them."""
    return sum(sum(map(int, stat[11:15])) for stat in members(root, without).values()) / _TICKS_PER_S


def memory_mb(root: int, *, with_children: bool = True) -> float:
    """Return the memory of a tree, or of its root alone, which is quick; a page that several processes share counts once."""
    total_kb = 0
    for pid in members(root) if with_children else (root,):
        with contextlib.suppress(OSError):  # it has ended
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total_kb += int(line.split()[1])
    return total_kb / 1024
