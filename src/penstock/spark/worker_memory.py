"""Bounds the memory of a worker process: less garbage collection, and freed pages that return to the system."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Final

_frozen: Final[set[int]] = set()
_bounded: Final[set[int]] = set()

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BYTES: Final = 2**20
_ARENAS: Final = 2
_OWN_SETTINGS: Final = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def freeze_once() -> None:
    """Freeze all current objects; called at the end of each task, and effective once in a process.

    Spark's daemon runs a collection after each task. After the first one the modules and the SDK's clients are about
    100,000 objects, which live as long as the process.
    """
    if os.getpid() not in _frozen:
        _frozen.add(os.getpid())
        gc.collect()
        gc.freeze()


def bound_allocator_once() -> None:
    """Make glibc return the memory of large pages to the system; called by each reading task, and effective once in a process.

    glibc gives each thread an arena, and after the first page of 14 MB it keeps blocks of that size in the arena of the thread
    that freed them. So a process that reads eight shards keeps eight pages. Two arenas are enough for threads that share
    Python's lock, and blocks of 1 MiB are mapped on their own. The settings of a user stay, and other allocators have their own.

    Source:
        mallopt(3): M_ARENA_MAX, M_MMAP_THRESHOLD and its dynamic adjustment.
    """
    if os.getpid() in _bounded:
        return
    _bounded.add(os.getpid())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None and not any(name in os.environ for name in _OWN_SETTINGS):
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
