"""Shard iterators kept by a Python worker process between batches.

A task that read a shard to a position keeps the service's next iterator here. The next task of the same process that starts
at exactly that position saves a GetShardIterator call and a second read of the last record. Iterators live for five minutes
at the service and are used here for four.

An iterator is valid only at its own service: the same stream name in another region, account or server is another stream.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from msgspec import Struct

from penstock.core.position import Position

_LIFE_S: Final = 240.0
_SIZE_MAX: Final = 10_000


class KeptIterator(Struct, frozen=True):
    """A kept iterator.

    Args:
        iterator: The service's text.
        unread_since_ms: Earliest arrival of the records after the iterator, by the service's clock; None if it is not known.
        kept_s: When it was kept, on the monotonic clock.
    """

    iterator: str
    unread_since_ms: int | None
    kept_s: float


class IteratorCache:
    """Keeps one iterator for each shard and position. Each is used once. Thread-safe, bounded."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[object, str, str, str], KeptIterator] = OrderedDict()
        self._lock = threading.Lock()

    def take(
        self, service: object, stream: str, shard_id: str, position: Position, now_s: float
    ) -> KeptIterator | None:
        """Remove and return the iterator for a position; None if there is none, or if it is too old.

        Args:
            service: The iterator's service; equal only for the same endpoint, region and credentials.
            stream: Name or ARN.
            position: Where the read starts.
        """
        with self._lock:
            entry = self._entries.pop((service, stream, shard_id, str(position)), None)
            return entry if entry is not None and now_s - entry.kept_s < _LIFE_S else None

    def put(
        self, service: object, stream: str, shard_id: str, position: Position, kept: KeptIterator
    ) -> None:
        """Keep an iterator; drop the oldest entry if the cache is full."""
        with self._lock:
            self._entries[(service, stream, shard_id, str(position))] = kept
            while len(self._entries) > _SIZE_MAX:
                self._entries.popitem(last=False)
