"""Read the shards of one task at the same time, and give their rows to the one thread that Spark asks for them.

Each shard has a thread. It hands over one Arrow batch and goes on when Spark has come back for the next one. So the rows of
a shard stay in order, a shard claims its end only when all of its rows were taken, and a shard that is slow or refused holds
up no other. Memory is bounded by the pages that a task may hold.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from penstock.core.batches.task_slots import SHARDS_PER_TASK_MAX
from penstock.runtime.threads import Threads

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.runtime.loop import Condition

PAGES_HELD_MAX: Final = 8
"""A page has 10 MiB at most, and as much again as rows."""

_Shard = TypeVar("_Shard")

HoldPage: TypeAlias = Callable[[], AbstractContextManager[None]]
"""What a reader enters before it fetches a page, or makes rows of an event, and leaves when nothing of it is needed any more.

An event waits with its subscription, which keeps one at most.
"""


def read_concurrently(
    shards: Sequence[_Shard],
    read: Callable[[_Shard, HoldPage], Generator[pa.RecordBatch, None, None]],
    threads: Threads,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of all shards as they come; those of one shard in order.

    Args:
        shards: What the task reads; one is read without threads.
        read: Yields the rows of one shard; called on a thread of its own.
        threads: Where threads come from.

    Raises:
        BaseException: The first error of a shard. The others stop where they are, without a claim if they have not claimed.
    """
    if len(shards) == 1:
        yield from read(shards[0], contextlib.nullcontext)
        return
    pool = threads.pool("penstock-read", min(len(shards), SHARDS_PER_TASK_MAX))
    crowd = _Crowd(threads, len(shards))
    try:
        for shard in shards:
            pool.submit(partial(crowd.read, partial(read, shard, crowd.hold_page)))
        yield from crowd.rows()
    finally:
        crowd.stop()
        pool.close()


class _Stopped(Exception):  # noqa: N818 - not an error: nobody asks for the rows any more
    """Raised in a shard's thread where it waits."""


class _Offer:
    """One Arrow batch on its way from a shard's thread to Spark's.

    Args:
        rows: The batch.
        settled: Notified when it was taken, or nobody will take it.
    """

    __slots__ = ("is_settled", "rows", "settled")

    def __init__(self, rows: pa.RecordBatch, settled: Condition) -> None:
        self.rows = rows
        self.settled = settled
        self.is_settled = False

    def settle(self) -> None:
        with self.settled:
            self.is_settled = True
            self.settled.notify()


class _Crowd:
    """The shards of one task."""

    def __init__(self, threads: Threads, shard_count: int) -> None:
        self._threads = threads
        self._changed = threads.condition()
        self._unended_count = shard_count
        self._offers: deque[_Offer] = deque()
        self._error: BaseException | None = None
        self._is_stopped = False
        self._room = threads.condition()
        self._free_pages = PAGES_HELD_MAX

    # --- on the threads of the shards ---------------------------------------------------------------------

    def read(self, begin: Callable[[], Generator[pa.RecordBatch, None, None]]) -> None:
        """Read one shard and offer its rows."""
        settled = self._threads.condition()
        error: BaseException | None = None
        try:
            with contextlib.closing(begin()) as batches:
                for rows in batches:
                    self._offer(_Offer(rows, settled))
        except _Stopped:
            pass
        except BaseException as caught:  # noqa: BLE001 - raised again by the thread that waits
            error = caught
        with self._changed:
            self._unended_count -= 1
            self._error = self._error or error
            self._changed.notify()

    def _offer(self, offer: _Offer) -> None:
        with self._changed:
            self._raise_if_stopped()
            self._offers.append(offer)
            self._changed.notify()
        with offer.settled:
            offer.settled.wait_for(lambda: offer.is_settled)
        self._raise_if_stopped()

    @contextlib.contextmanager
    def hold_page(self) -> Iterator[None]:
        """Wait until the task may hold one more page."""
        with self._room:
            self._room.wait_for(lambda: self._free_pages > 0 or self._is_stopped)
            self._raise_if_stopped()
            self._free_pages -= 1
        try:
            yield
        finally:
            with self._room:
                self._free_pages += 1
                self._room.notify()

    def _raise_if_stopped(self) -> None:
        if self._is_stopped:
            raise _Stopped

    # --- on Spark's thread --------------------------------------------------------------------------------

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield what is offered, until every shard has ended or one has failed."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: bool(self._offers) or self._unended_count == 0 or self._error is not None
                )
                if self._error is not None:
                    raise self._error
                if not self._offers:
                    return
                offer = self._offers[0]
            yield offer.rows
            # Spark has come back, so the rows are its own now. Until then a stop would refuse them.
            with self._changed:
                self._offers.popleft()
            offer.settle()

    def stop(self) -> None:
        """Let every shard end where it waits; nothing is claimed that was not taken."""
        with self._changed:
            self._is_stopped = True
            offers = list(self._offers)
        for offer in offers:
            offer.settle()
        with self._room:
            self._room.notify_all()
