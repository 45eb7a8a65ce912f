"""Reads the shards of one task at the same time, and passes their rows to the one thread on which Spark requests them.

Each shard has a thread. It offers one Arrow batch and goes on when Spark requests the next one. So the rows of a shard stay
in order, a shard claims its end only after Spark has taken all of its rows, and a slow or throttled shard holds up no
other. Memory is bounded by the number of pages that a task may hold.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from penstock.core.batches.task_plan import SHARDS_PER_TASK_MAX
from penstock.runtime.threads import Threads

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.runtime.loop import Condition

PAGES_HELD_MAX: Final = 8
"""A page has at most 10 MiB. While it is parsed, its text and records take 24 MB. A page of a shard that is behind counts as two."""

_Shard = TypeVar("_Shard")

HoldPage: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Returns a context that is open while a page, or the rows of an event, are in memory.

Before that an event waits in its subscription, which keeps at most one.
"""


def read_concurrently(
    shards: Sequence[_Shard],
    read: Callable[[_Shard, HoldPage], Generator[pa.RecordBatch, None, None]],
    threads: Threads,
    is_behind: Callable[[_Shard], bool] = lambda _: False,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of all shards as they arrive. Rows of one shard stay in order.

    Args:
        shards: The shards of the task. A single shard is read without threads.
        read: Yields the rows of one shard; called on a separate thread for each shard.
        is_behind: Whether a shard probably has large pages.

    Raises:
        BaseException: The first error of a shard. The other shards stop, and claim nothing more.
    """
    if len(shards) == 1:
        yield from read(shards[0], contextlib.nullcontext)
        return
    pool = threads.pool("penstock-read", min(len(shards), SHARDS_PER_TASK_MAX))
    task = _TaskShards(threads, len(shards))
    try:
        for shard in shards:
            hold_page = partial(task.hold_page, 2 if is_behind(shard) else 1)
            pool.submit(partial(task.read, partial(read, shard, hold_page)))
        yield from task.rows()
    finally:
        task.stop()
        pool.close()


class _Stopped(Exception):  # noqa: N818 - not an error: Spark does not request the rows any more
    """Raised in a shard's thread while it waits."""


class _OfferedRows:
    """One Arrow batch on its way from a shard's thread to Spark's.

    Args:
        released: Notified when Spark has taken the batch or has stopped. Then the shard's thread goes on.
    """

    __slots__ = ("is_released", "released", "rows")

    def __init__(self, rows: pa.RecordBatch, released: Condition) -> None:
        self.rows = rows
        self.released = released
        self.is_released = False

    def release(self) -> None:
        with self.released:
            self.is_released = True
            self.released.notify()


class _TaskShards:
    """Passes the rows of one task's shards from their threads to Spark's."""

    def __init__(self, threads: Threads, shard_count: int) -> None:
        self._threads = threads
        self._changed = threads.condition()
        self._unended_count = shard_count
        self._offers: deque[_OfferedRows] = deque()
        self._error: BaseException | None = None
        self._is_stopped = False
        self._room = threads.condition()
        self._free_pages = PAGES_HELD_MAX

    # --- on the threads of the shards ---------------------------------------------------------------------

    def read(self, begin: Callable[[], Generator[pa.RecordBatch, None, None]]) -> None:
        """Read one shard and offer its rows. A batch is offered when Spark has taken the batch before."""
        released = self._threads.condition()
        error: BaseException | None = None
        try:
            with contextlib.closing(begin()) as batches:
                # No variable refers to a batch while the next one is read: each has up to 10 MiB.
                for offer in map(partial(_OfferedRows, released=released), batches):
                    self._offer(offer)
                    del offer
        except _Stopped:
            pass
        except BaseException as caught:  # noqa: BLE001 - raised again on Spark's thread
            error = caught
        with self._changed:
            self._unended_count -= 1
            self._error = self._error or error
            self._changed.notify()

    def _offer(self, offer: _OfferedRows) -> None:
        with self._changed:
            self._raise_if_stopped()
            self._offers.append(offer)
            self._changed.notify()
        with offer.released:
            offer.released.wait_for(lambda: offer.is_released)
        self._raise_if_stopped()

    @contextlib.contextmanager
    def hold_page(self, weight: int) -> Iterator[None]:
        """Wait until the task may hold one more page.

        Args:
            weight: The page counts as this many pages.
        """
        with self._room:
            self._room.wait_for(lambda: self._free_pages >= weight or self._is_stopped)
            self._raise_if_stopped()
            self._free_pages -= weight
        try:
            yield
        finally:
            with self._room:
                self._free_pages += weight
                self._room.notify_all()  # not one: the freed room may suffice only for some shards

    def _raise_if_stopped(self) -> None:
        if self._is_stopped:
            raise _Stopped

    # --- on Spark's thread --------------------------------------------------------------------------------

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield offered batches until every shard has ended or one has failed."""
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
            # Spark requests the next batch, so it has taken this one. If the task stops earlier, the shard claims nothing.
            with self._changed:
                self._offers.popleft()
            offer.release()
            del offer

    def stop(self) -> None:
        """Stop every shard at its current or next wait. A shard whose rows Spark has not taken claims nothing."""
        with self._changed:
            self._is_stopped = True
            offers = list(self._offers)
        for offer in offers:
            offer.release()
        with self._room:
            self._room.notify_all()
