"""Is there news? The driver's look at idle shards: at most one small read per shard and interval.

A shard whose last batch ended before the tip is known to have more and is never probed. The others are asked with a
`GetRecords` of one record, by an iterator that is kept from probe to probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.core.aggregation import deaggregate
from penstock.core.checkpoint import plan_iterator
from penstock.core.query_shards import ShardState
from penstock.errors import ExpiredIterator, Throttled
from penstock.ports.kinesis import IteratorStart, IteratorType, Kinesis, RecordPage

_THREADS_MAX: Final = 16


class Prober:
    """Asks shards for news. Used by one thread; asks several shards at once.

    Args:
        kinesis: The service.
        stream: Name or ARN.
        interval_s: Between two probes of one shard.
        monotonic_s: The process's clock.
        wall_ms: The time of day.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        stream: str,
        interval_s: float,
        monotonic_s: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._interval_s = interval_s
        self._monotonic_s = monotonic_s
        self._wall_ms = wall_ms
        self._pool = ThreadPoolExecutor(max_workers=_THREADS_MAX, thread_name_prefix="penstock-probe")
        self.probe_count = 0

    def probe_due(self, states: Iterable[tuple[str, ShardState]]) -> None:
        """Probe every shard that is not known to have news and whose time has come.

        Raises:
            ServiceError: A probe failed for good; throttling and expired iterators only postpone.
        """
        now_s = self._monotonic_s()
        due = [
            (key, state)
            for key, state in states
            if not state.has_news and not state.is_finished and state.due_s <= now_s
        ]
        for _, state in due:
            state.due_s = now_s + self._interval_s
        self.probe_count += len(due)
        for _ in self._pool.map(lambda pair: self._probe(*pair), due):
            pass

    def next_due_s(self, states: Iterable[ShardState]) -> float:
        """Give the moment of the next probe."""
        return min((state.due_s for state in states), default=self._monotonic_s() + self._interval_s)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _probe(self, shard_id: str, state: ShardState) -> None:
        try:
            if state.iterator is None:
                state.iterator = self._kinesis.fetch_iterator(self._stream, shard_id, self._start_of(state))
            page = self._kinesis.fetch_records(self._stream, state.iterator, 1)
        except ExpiredIterator:
            state.iterator = None
            state.due_s = self._monotonic_s()
            return
        except Throttled:
            return
        self._learn(state, page)

    @staticmethod
    def _start_of(state: ShardState) -> IteratorStart:
        if state.is_whole and state.position.sequence_number is not None:
            return IteratorStart(
                IteratorType.AFTER_SEQUENCE_NUMBER, sequence_number=state.position.sequence_number
            )
        return plan_iterator(state.position)

    def _learn(self, state: ShardState, page: RecordPage) -> None:
        state.millis_behind_latest = page.millis_behind_latest
        if page.records:
            first = page.records[0]
            if not state.is_whole and first.sequence_number == state.position.sequence_number:
                inner = deaggregate(first.data)
                if inner is None or state.position.sub_sequence_number >= len(inner) - 1:
                    # It is the record of the position itself, with nothing behind: look behind it next time.
                    state.is_whole = True
                    state.iterator = page.next_iterator
                    state.due_s = self._monotonic_s()
                    if page.next_iterator is None:
                        state.is_finished = True
                        state.children = page.child_shards
                    return
            state.has_news = True
            state.arrival_ms = round(first.arrival_s * 1000)
            return
        state.iterator = page.next_iterator
        if page.next_iterator is None and page.child_shards:
            state.is_finished = True
            state.children = page.child_shards
        elif page.millis_behind_latest > 0:
            # Empty pages on the way to records: a task goes through them at full speed.
            state.has_news = True
        else:
            state.tip_seen_ms = self._wall_ms()
