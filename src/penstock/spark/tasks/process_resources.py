"""Objects that a Python process keeps between batches: clients (by their options), shard iterators and subscriptions.

Spark reuses Python workers, so a connection that was opened for one batch serves the next ones. A forked child starts
without its parent's objects: they are kept by process id.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from typing import Final

from penstock.runtime.hash_ranges import HashRanges
from penstock.runtime.threads import SYSTEM_THREADS
from penstock.spark.options.spark_options import BatchOptions, SourceOptions
from penstock.spark.tasks.iterator_cache import IteratorCache
from penstock.spark.tasks.kept_subscriptions import KeptSubscriptions
from penstock.spark.tasks.shard_opening import ReadingProcess
from penstock.wiring import AwsOptions, SystemClock, open_kinesis

_chance: Final = random.SystemRandom()
_names: Final[dict[int, str]] = {}
_iterators: Final[dict[int, IteratorCache]] = {}
_subscriptions: Final[dict[int, KeptSubscriptions]] = {}
_hash_ranges: Final[dict[tuple[int, AwsOptions, str], HashRanges]] = {}


def shard_iterators() -> IteratorCache:
    """Return the shard iterators that this process keeps."""
    return _iterators.setdefault(os.getpid(), IteratorCache())


def kept_subscriptions() -> KeptSubscriptions:
    """Return the subscriptions that this process keeps."""
    return _subscriptions.setdefault(os.getpid(), KeptSubscriptions(SYSTEM_THREADS, _call_later))


def _call_later(delay_s: float, function: Callable[[], None]) -> None:
    timer = threading.Timer(delay_s, function)
    timer.daemon = True
    timer.start()


def reading_process(
    options: SourceOptions | BatchOptions, iterators: IteratorCache | None = None
) -> ReadingProcess:
    """Return this process's clients for the stream of the options.

    Args:
        iterators: Shard iterators that are kept between reads; None: no iterator is kept.
    """
    kinesis, clock = open_kinesis(options.connection), SystemClock()
    key = (os.getpid(), options.connection, options.stream)
    ranges = _hash_ranges.get(key)
    if ranges is None:
        ranges = _hash_ranges.setdefault(key, HashRanges(kinesis, options.stream, clock.monotonic_s))
    return ReadingProcess(
        kinesis,
        ranges,
        clock,
        _chance,
        _names.setdefault(os.getpid(), f"{_chance.getrandbits(40):010x}"),
        kinesis.fetch_summary,
        IteratorCache() if iterators is None else iterators,
    )
