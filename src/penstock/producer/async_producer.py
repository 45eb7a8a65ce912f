"""`Producer` for asyncio: puts wait for room in a first-in-first-out queue, and never block the loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar, overload
from weakref import WeakKeyDictionary

from penstock.errors import BufferFull, UsageError
from penstock.producer.producer import Producer
from penstock.producer.receipts import Acknowledgement
from penstock.runtime.loop_tasks import running_loop
from penstock.runtime.threads import begin_on_daemon

_ROOM_CHECK_S: Final = 0.01  # about the time of a request, whose answer makes room
_Result = TypeVar("_Result")


class AsyncProducer:
    """A `Producer` for asyncio: `await put(...)` returns when the record is acknowledged.

    Puts are accepted in the order of their calls, also if they have to wait for room: `gather` keeps the order of a key. If a
    put is cancelled while it waits for room, its record is not written. If it is cancelled later, only the wait for the
    acknowledgement ends: the record is written.

    Args:
        producer: Does the work. Closing this object closes it too.

    Raises:
        UsageError: `producer` is something else, for instance the name of a stream.
    """

    @overload
    def __init__(self, producer: Producer, /) -> None: ...
    @overload
    def __init__(self, *, producer: Producer) -> None: ...
    def __init__(self, producer: Producer | None = None, **options: object) -> None:
        if options or not isinstance(producer, Producer):
            given = ", ".join(options) or repr(producer)
            raise UsageError(f"{given} is not a Producer: give one, AsyncProducer(Producer(stream=...))")
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
        """Wait until the puts called before are accepted, then flush as `Producer.flush`."""
        await self._queue.wait_until_empty()
        await _in_thread(lambda: self._producer.flush(timeout_s))

    async def close(self, timeout_s: float | None = None) -> None:
        """Wait until the puts called before are accepted, then close as `Producer.close`."""
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


class _PutQueue:
    """Accepts the puts of one event loop in the order of their calls. Used on the loop's thread only.

    The put that holds the lock opens the producer, or waits for room. The lock goes from put to put in the order of the calls,
    which is also the order of the deadlines.

    Args:
        producer: Accepts the records.
    """

    def __init__(self, producer: Producer, loop: asyncio.AbstractEventLoop) -> None:
        self._producer = producer
        self._loop = loop
        self._turn = asyncio.Lock()
        self._waiting_count = 0
        self._opening: asyncio.Task[None] | None = None  # the opening of the producer that is under way
        self._opening_error: Exception | None = None  # of the last opening, for the puts that waited for it
        self._opening_trace: TracebackType | None = None
        self._opening_ended_s = -math.inf

    async def put(self, record: tuple[bytes, str, str | None]) -> asyncio.Future[Acknowledgement]:
        """Return the record's future once the producer has accepted it.

        Raises:
            BufferFull: There was no room within `put_timeout_s`; the record was not put.
            PenstockError: As `Producer.put`.
        """
        if not self._waiting_count and self._producer.is_open:
            try:
                return self._accept(record)
            except BufferFull:
                pass
        called_s = self._loop.time()
        self._waiting_count += 1
        try:
            async with self._turn:
                await self._wait_until_open(called_s)
                return await self._accept_in_time(record, called_s)
        finally:
            self._waiting_count -= 1

    async def wait_until_empty(self) -> None:
        """Wait until every put called before is accepted or has failed."""
        async with self._turn:
            pass

    async def _wait_until_open(self, called_s: float) -> None:
        """Wait until the producer is open. If opening it fails, raise the error in every put that was called before the failure."""
        while not self._producer.is_open:
            if self._opening_error is not None and called_s <= self._opening_ended_s:
                # The traceback is reset: other puts have raised this error and added their frames.
                raise self._opening_error.with_traceback(self._opening_trace)
            if self._opening is None:
                self._opening = self._loop.create_task(self._open())
            await asyncio.wait([self._opening])

    async def _open(self) -> None:
        """Open the producer. This is a separate task, because the put that began it may be cancelled."""
        try:
            await _in_thread(self._producer.open)
        except Exception as error:  # noqa: BLE001 - each waiting put raises it
            self._opening_error, self._opening_trace = error, error.__traceback__
        else:
            self._opening_error = None
        finally:
            self._opening = None
            self._opening_ended_s = self._loop.time()

    async def _accept_in_time(
        self, record: tuple[bytes, str, str | None], called_s: float
    ) -> asyncio.Future[Acknowledgement]:
        deadline_s = max(called_s, self._opening_ended_s) + self._producer.options.put_timeout_s
        while True:
            try:
                return self._accept(record)
            except BufferFull:
                if self._loop.time() >= deadline_s:
                    raise
            await asyncio.sleep(_ROOM_CHECK_S)

    def _accept(self, record: tuple[bytes, str, str | None]) -> asyncio.Future[Acknowledgement]:
        return asyncio.wrap_future(self._producer.put(*record, timeout_s=0), loop=self._loop)


async def _in_thread(function: Callable[[], _Result]) -> _Result:
    """Make a blocking call on a new thread and return its result. The loop's executor may be full of waiting calls."""
    return await asyncio.wrap_future(begin_on_daemon("penstock-async-put", function))
