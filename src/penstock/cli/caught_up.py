"""Notice that a consumer in one process has read everything that had arrived when it began."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.consumer import Consumer
    from penstock.ports.lease_table import LeaseTable

_LOOK_INTERVAL_S: Final = 0.1
_HASH_KEYS: Final = 2**128


@contextlib.contextmanager
def when_caught_up(consumer: Consumer, table: LeaseTable, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` once, from a thread of its own, when everything is done that had arrived when the body began.

    Args:
        consumer: The only worker of its application.
        table: Its leases.
        act: What to do.
    """
    has_ended = threading.Event()
    began_s = time.monotonic()

    def watch() -> None:
        while not has_ended.wait(_LOOK_INTERVAL_S):
            if _is_caught_up(consumer, table, (time.monotonic() - began_s) * 1000):
                act()
                return

    watcher = threading.Thread(target=watch, name="penstock-caught-up", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        has_ended.set()
        watcher.join()


def _is_caught_up(consumer: Consumer, table: LeaseTable, running_ms: float) -> bool:
    # Health first: a shard that ends between the two looks has left its children in the table.
    health = {shard.shard_id: shard for shard in consumer.health().shards}
    unfinished = [row for row in table.scan().leases if not row.is_ended]
    for row in unfinished:
        shard = health.get(row.key)
        if shard is None or (
            shard.state != "stopped" and (shard.lag_ms is None or shard.lag_ms > running_ms)
        ):
            return False
    # Leases are created one after the other: all are there when they cover every key.
    spans = [row.hash_range for row in unfinished if row.hash_range is not None]
    return sum(span.end - span.start + 1 for span in spans) >= _HASH_KEYS
