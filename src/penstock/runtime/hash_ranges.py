"""The hash ranges of a stream's shards, for readers that drop misplaced aggregates.

A shard's range never changes, so one listing serves a process for long. But a stream may be deleted and created again with
other shards of the same ids, so the listing must be recent before a record is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.core.hash_key import HashRange
from penstock.errors import AccessDenied
from penstock.ports.kinesis import Kinesis

_log: Final = logging.getLogger("penstock.consumer")
_UNLISTED_PAUSE_S: Final = 1.0
_DENIED_PAUSE_S: Final = 300.0


class HashRanges:
    """Lists the shards of one stream at the first use. Safe to use from several threads.

    Args:
        stream: Name or ARN.
    """

    def __init__(
        self, kinesis: Kinesis, stream: str, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._ranges: dict[str, HashRange] = {}
        self._listed_s = float("-inf")
        self._denied_s = float("-inf")
        self._unlisted_s: dict[str, float] = {}  # by shard: when a listing lacked it

    def of(self, shard_id: str) -> Callable[[float], HashRange | None]:
        """Return the `fetch` of one shard, for `penstock.core.aggregation.MisplacedRule`."""
        return partial(self.fetch, shard_id)

    def fetch(self, shard_id: str, age_max_s: float = float("inf")) -> HashRange | None:
        """Return a shard's range from a listing at most `age_max_s` old; None if the listing lacks the shard or is not permitted.

        Raises:
            ServiceError: The shards could not be listed just now.
        """
        with self._lock:  # one listing is enough, however many threads want it
            now_s = self._monotonic_s()
            if shard_id in self._ranges:
                is_due = now_s - self._listed_s > age_max_s
            else:  # most likely a child that is younger than the listing
                is_due = now_s - self._unlisted_s.get(shard_id, float("-inf")) > _UNLISTED_PAUSE_S
            if is_due:
                self._list_shards(now_s)
                if shard_id not in self._ranges:
                    self._unlisted_s[shard_id] = now_s
            return self._ranges.get(shard_id)

    def _list_shards(self, now_s: float) -> None:
        if now_s - self._denied_s < _DENIED_PAUSE_S:
            return
        try:
            shards = self._kinesis.fetch_shards(self._stream).shards
        except AccessDenied as error:
            self._denied_s = now_s
            self._ranges = {}
            _log.warning(
                "stream %s: ListShards is not permitted (%s), so aggregates that a reshard left in the wrong shard are not "
                "recognised: their records may be delivered twice; permit the call",
                self._stream,
                error,
            )
            return
        self._ranges = {shard.shard_id: shard.hash_range for shard in shards}
        self._unlisted_s.clear()
        self._listed_s = now_s
