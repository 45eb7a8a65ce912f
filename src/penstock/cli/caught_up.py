"""Detect that the only worker of an application has read all records from before its start, or its shards to their ends."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from penstock.core.hash_key import HASH_KEYS
from penstock.runtime.threads import repeat_on_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from penstock.consumer import Consumer
    from penstock.ports.lease_table import LeaseTable

_CHECK_INTERVAL_S: Final = 0.1


@contextlib.contextmanager
def when_caught_up(
    consumer: Consumer,
    table: LeaseTable,
    on_caught_up: Callable[[], None],
    *,
    lag_error_ms: float,
    shard_ids: Collection[str] = (),
    on_ended: Callable[[], None] = lambda: None,
    lag_max_ms: Callable[[], float] | None = None,
) -> Iterator[None]:
    """Call `on_caught_up` once, on another thread, when every record that had arrived before the body began is done.

    Args:
        consumer: The only worker of its application.
        lag_error_ms: Largest error of a lag above 0: the lag's age, and how far this machine's clock is from the service's.
            A lag of 0 has no error, because all reads begin after the body began.
        shard_ids: The only shards that are read; empty if all are read, at least one of which is open.
        on_ended: Called once when `shard_ids` are read to their ends. After it, `on_caught_up` is not called any more.
        lag_max_ms: Returns the lag up to which a shard counts as caught up; None: the time since the body began.
    """
    began_s = time.monotonic()
    if lag_max_ms is None:
        lag_max_ms = lambda: max(0.0, (time.monotonic() - began_s) * 1000 - lag_error_ms)  # noqa: E731 - a default that needs `began_s`

    is_caught_up = False

    def check() -> bool:
        """Make the calls that are due; return True after the last one."""
        nonlocal is_caught_up
        if not is_caught_up and not _is_caught_up(consumer, table, lag_max_ms()):
            return False
        if shard_ids and _are_ended(table, shard_ids):
            on_ended()
            return True
        if not is_caught_up:
            is_caught_up = True
            on_caught_up()
        return not shard_ids

    with repeat_on_daemon("penstock-caught-up", _CHECK_INTERVAL_S, check):
        yield


def _is_caught_up(consumer: Consumer, table: LeaseTable, lag_max_ms: float) -> bool:
    """Return whether all leases exist, and each unfinished shard's reader has stopped or lags by at most `lag_max_ms`."""
    if lag_max_ms < 0:
        return False  # a moment in the future
    # Health is read first: if a shard ends between the two reads, the scan finds its children.
    health = {shard.shard_id: shard for shard in consumer.health().shards}
    unfinished = [row for row in table.scan().leases if not row.is_ended]
    for row in unfinished:
        shard = health.get(row.key)
        if shard is None:
            return False
        is_stopped = shard.state == "stopped"
        if not is_stopped and (shard.lag_ms is None or shard.lag_ms > lag_max_ms):
            return False
    # Leases are created one after the other. All exist when the unfinished ones cover every hash key.
    spans = [row.hash_range for row in unfinished if row.hash_range is not None]
    return sum(span.size for span in spans) >= HASH_KEYS


def _are_ended(table: LeaseTable, shard_ids: Collection[str]) -> bool:
    """Return whether the shards are read to their ends. All leases were created before: a missing one means an ended shard."""
    unfinished = {row.key for row in table.scan().leases if not row.is_ended}
    return unfinished.isdisjoint(shard_ids)
