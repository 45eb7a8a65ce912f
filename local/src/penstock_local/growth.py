"""Growth of on-demand streams: a shard that is half used for a while is split in two.

Source:
    The AWS Big Data blog on on-demand scaling ("Amazon Kinesis Data Streams on-demand capacity mode now scales up to 1
    GB/second ingest capacity"): a shard whose average use within a minute reaches 50 % is split. The window here is
    shorter, so that a test need not write for a minute.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock_local.quotas import WRITE_BYTES_PER_S, WRITE_RECORDS_PER_S
from penstock_local.service_errors import RequestRefused
from penstock_local.shard import Shard
from penstock_local.store import Batch, Store
from penstock_local.stream import Stream

WINDOW_S = 10
SPLIT_AT = 0.5
_WIDTH_MIN = 4

log = logging.getLogger("penstock_local")


def used_fraction(shard: Shard, now_ms: int) -> float:
    """Return how much of its write quota a shard has used on average over the window; 0 for a shard younger than the window."""
    since_ms = now_ms - WINDOW_S * 1000
    if shard.opened_ms > since_ms:
        return 0.0
    record_count, size_bytes = shard.written_since(since_ms + 1)
    return max(record_count / WRITE_RECORDS_PER_S, size_bytes / WRITE_BYTES_PER_S) / WINDOW_S


def plan_split(stream: Stream, now_ms: int) -> tuple[Shard, int] | None:
    """Return the most used open shard and the middle of its hash range; None if no shard is used enough to be split."""
    wide_shards = [shard for shard in stream.open_shards if shard.hash_end - shard.hash_start >= _WIDTH_MIN]
    if not wide_shards:
        return None
    # among equals, the first by hash range
    shard = max(wide_shards, key=lambda each: used_fraction(each, now_ms))
    if used_fraction(shard, now_ms) < SPLIT_AT:
        return None
    return shard, (shard.hash_start + shard.hash_end + 1) // 2


def grow(store: Store, stream: Stream, written: Sequence[Batch], now_ms: int) -> None:
    """After a write to an on-demand stream, begin to split its most used shard if that is used enough and no change is under way.

    Args:
        store: The store of the stream.
        stream: The stream that was written.
        written: The records that were just stored: only they can have made a shard used enough.
        now_ms: Their arrival.
    """
    if stream.change is not None or all(used_fraction(shard, now_ms) < SPLIT_AT for shard, _, _ in written):
        return
    split = plan_split(stream, now_ms)
    if split is None or store.open_shard_count(stream.region) >= store.options.shard_count_max:
        return
    shard, hash_key = split
    try:
        store.begin_change(stream, "split", (shard.index, hash_key), "UPDATING", now_ms)
    except RequestRefused as refusal:
        # the records are stored, so the write has succeeded; a later write tries again
        log.debug("stream %s does not grow yet: %s", stream.name, refusal)
