"""`Producer` for asyncio: puts wait for room in a first-in-first-out queue, and never block the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload
from weakref import WeakKeyDictionary

from msgspec import Struct

from penstock.errors import BufferFull, UsageError
from penstock.producer.producer import Producer
from penstock.producer.receipts import Acknowledgement
from penstock.runtime.loop_tasks import running_loop
from penstock.runtime.threads import begin_on_daemon

_ROOM_CHECK_S: Final = 0.05  # others than this producer's tasks may free room, or take it
_Result = TypeVar("_Result")


class AsyncProducer:
    """A `Producer` for asyncio: `await put(...)` returns when the record is acknowledged.

    Puts are accepted in the order in which they were called, also if they have to wait for room: `gather` keeps the order of a
    key. A put that is cancelled while it waits for room is not written. Once a record is accepted, cancelling its put
    only ends the wait for the acknowledgement: the record is written.

    Args:
        producer: Does the work; it is closed with this.

    Raises:
        UsageError: It is something else, for instance the name of a stream.
    """

    @overload
    def __init__(self, producer: Producer, /) -> None: ...
    @overload
    def __init__(self, *, producer: Producer) -> None: ...
    def __init__(self, producer: Producer | None = None, **options: object) -> None:
        if options or not isinstance(producer, Producer):
            given = ", ".join(options) or repr(producer)
            raise UsageError(f"{given} is no Producer: give one, AsyncProducer(Producer(stream=...))")
        self._producer = producer
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _PutQueue] = WeakKeyDictionary()

    async def submit(
        self, data: bytes, partition_key: str, explicit_hash_key: str | None = None
    ) -> asyncio.Future[Acknowledgement]:
        """Put one record, waiting for room without blocking the loop; return a future to await.

        It raises what `Producer.put` raises.
        """
        return await self._queue.put((data, partition_key, explicit_hash_key))

    async def put(
        self, data: bytes, partition_key: str, explicit_hash_key: str | None = None
    ) -> Acknowledgement:
        """Put one record and wait for its acknowledgement.

        It raises what `Producer.put` raises, and `DeliveryFailed` when the record was not acknowledged.
        """
        return await (await self.submit(data, partition_key, explicit_hash_key))

    async def flush(self, timeout_s: float | None = None) -> None:
        """As `Producer.flush`, after the puts that were called before."""
        await self._queue.wait_until_empty()
        await _in_thread(lambda: self._producer.flush(timeout_s))

    async def close(self, timeout_s: float | None = None) -> None:
        """As `Producer.close`, after the puts that were called before."""
        await self._queue.wait_until_empty()
        await _in_thread(lambda: self._producer.close(timeout_s))

    async def __aenter__(self) -> Self:
        self._producer.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._queue.wait_until_empty()
        await _in_thread(lambda: self._producer.__exit__(kind, error, trace))

    @property
    def _queue(self) -> _PutQueue:
        loop = running_loop("AsyncProducer")
        queue = self._queues.get(loop)
        if queue is None:
            queue = self._queues[loop] = _PutQueue(self._producer, loop)
        return queue


class _WaitingPut(Struct, eq=False):
    """A put that waits for the producer to be opened, or for room."""

    record: tuple[bytes, str, str | None]
    accepted: asyncio.Future[asyncio.Future[Acknowledgement]]
    deadline_s: float | None = None


class _PutQueue:
    """The puts of one event loop, in the order of their calls. Used on the loop's thread only.

    Args:
        producer: Accepts the records.
    """

    def __init__(self, producer: Producer, loop: asyncio.AbstractEventLoop) -> None:
        self._producer = producer
        self._loop = loop
        self._waiting: deque[_WaitingPut] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None

    async def put(self, record: tuple[bytes, str, str | None]) -> asyncio.Future[Acknowledgement]:
        """Return the record's future once the producer has accepted it.

        Raises:
            BufferFull: There was no room within `put_timeout_s`; the record was not put.
            PenstockError: As `Producer.put`.
        """
        if not self._waiting and self._producer.is_open:
            try:
                return self._accept(record)
            except BufferFull:
                pass
        waiting = _WaitingPut(record, self._loop.create_future())
        self._waiting.append(waiting)
        if self._producer.is_open:
            self._set_deadline(waiting)
        elif self._opening is None:
            self._opening = self._loop.create_task(self._open())
        self._check_later()
        try:
            return await waiting.accepted
        finally:
            if not waiting.accepted.done() or waiting.accepted.cancelled():
                self._drop(waiting)

    async def wait_until_empty(self) -> None:
        """Wait until every put called before is accepted or has failed."""
        waiting = [each.accepted for each in self._waiting]
        if waiting:
            await asyncio.wait(waiting)

    def _accept(self, record: tuple[bytes, str, str | None]) -> asyncio.Future[Acknowledgement]:
        return asyncio.wrap_future(self._producer.put(*record, timeout_s=0), loop=self._loop)

    async def _open(self) -> None:
        """Open the producer on a thread, then accept the waiting puts; fail all of them if it cannot be opened."""
        try:
            await _in_thread(self._producer.open)
        except Exception as error:  # noqa: BLE001 - each waiting put raises it
            self._fail_all(error)
        else:
            for waiting in self._waiting:
                self._set_deadline(waiting)
        finally:
            self._opening = None
        self._check()

    def _set_deadline(self, waiting: _WaitingPut) -> None:
        waiting.deadline_s = self._loop.time() + self._producer.options.put_timeout_s

    def _check_later(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = self._loop.call_later(_ROOM_CHECK_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._check()

    def _check(self) -> None:
        """Accept waiting puts in order while there is room; fail those whose time is up."""
        while self._waiting and self._producer.is_open:
            first = self._waiting[0]
            try:
                future = self._accept(first.record)
            except BufferFull as error:
                self._fail_overdue(error)
                break
            except Exception as error:  # noqa: BLE001 - the put raises it
                self._waiting.popleft()
                _settle(first.accepted, error=error)
            else:
                future.add_done_callback(self._on_acknowledged)
                self._waiting.popleft()
                _settle(first.accepted, result=future)
        self._check_later()

    def _on_acknowledged(self, future: asyncio.Future[Acknowledgement]) -> None:
        if not future.cancelled():
            future.exception()  # the put has it too, unless it was cancelled
        if self._waiting:
            self._check()

    def _fail_overdue(self, error: BufferFull) -> None:
        now_s = self._loop.time()
        for waiting in [
            each for each in self._waiting if each.deadline_s is not None and now_s >= each.deadline_s
        ]:
            self._waiting.remove(waiting)
            _settle(waiting.accepted, error=BufferFull(str(error)))

    def _fail_all(self, error: Exception) -> None:
        while self._waiting:
            _settle(self._waiting.popleft().accepted, error=error)

    def _drop(self, waiting: _WaitingPut) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)


def _settle(
    future: asyncio.Future[Any], *, result: object = None, error: BaseException | None = None
) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


async def _in_thread(function: Callable[[], _Result]) -> _Result:
    """Return the result of a blocking call, made on a new thread: the loop's executor may be full of waiting calls."""
    return await asyncio.wrap_future(begin_on_daemon("penstock-async-put", function))
