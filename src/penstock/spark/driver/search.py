"""The state of a search for records to read, between two calls of `Planner.search_once`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from penstock.core.batches.offsets import StreamOffset


class Search(Struct):
    """A search for records to read after a batch.

    Args:
        start: The offset of the batch, which is done.
        may_be_only_batch: The next batch may be the only one of the run.
        is_patient: A search without records ends only when every shard has answered, or at its deadline.
        wait_s: Longest duration of the search.
        deadline_s: Its end, on the monotonic clock.
        wanted_shards: The shards with records to read, as of the last call of `Planner.search_once`.
        wake_s: When to call that again, on the monotonic clock.
    """

    start: StreamOffset
    may_be_only_batch: bool
    is_patient: bool
    wait_s: float
    deadline_s: float
    wanted_shards: Sequence[str] = ()
    wake_s: float = float("-inf")
