"""Exempts the permanent objects of a worker process from garbage collection."""

from __future__ import annotations

import gc
import os
from typing import Final

_frozen: Final[set[int]] = set()


def freeze_once() -> None:
    """Freeze all current objects; called at the end of each task, and effective once in a process.

    Spark's daemon runs a collection after each task. After the first one the modules and the SDK's clients are about
    100,000 objects, which live as long as the process.
    """
    if os.getpid() not in _frozen:
        _frozen.add(os.getpid())
        gc.collect()
        gc.freeze()
