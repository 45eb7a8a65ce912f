"""The state of a search for records to read, between two calls of `Planner.search_once`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from penstock.core.batches.offsets import StreamOffset
from penstock.errors import Unavailable


class Search(Struct):
    """A search for records to read after a batch.

    Args:
        start: The offset of the batch, which is done.
        may_be_only_batch: The next batch may be the only one of the run.
        is_patient: A search without records ends only when every shard has answered, or at its deadline.
        wait_s: Longest duration of the search.
        deadline_s: Its end, on the monotonic clock.
        wanted_shards: The shards with records to read, as of the last call of `Planner.search_once`.
        missing_shards: Why a query that has never read has no shard of the stream, although its run is to end; else None.
        wake_s: When to call that again, on the monotonic clock.
    """

    start: StreamOffset
    may_be_only_batch: bool
    is_patient: bool
    wait_s: float
    deadline_s: float
    wanted_shards: Sequence[str] = ()
    missing_shards: str | None = None
    wake_s: float = float("-inf")


def must_await_shard(searches: Collection[Search], now_s: float) -> bool:
    """Return whether searches that have ended must go on: the query has never read, and another worker may hand over a shard.

    Args:
        searches: One for each stream of the query. A shard of one stream is enough.

    Raises:
        Unavailable: A search has reached its deadline.
    """
    reasons = [each.missing_shards for each in searches if each.missing_shards is not None]
    if len(reasons) < len(searches):
        return False
    if any(now_s >= each.deadline_s for each in searches):
        raise Unavailable(reasons[0])
    return True
