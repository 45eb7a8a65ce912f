"""Receipts: one object is a record that was put and the future of its acknowledgement.

Every waiting record has a receipt, so receipts are small. A `Future` has a condition (two locks and a queue) and two lists:
ten objects and 1,600 bytes, which each garbage collection visits. A receipt makes them only for the first wait or callback.

The settling thread first stores the outcome and then checks for waiting threads. A waiting thread first registers and
then checks for an outcome. So at least one of them notices the other, and neither needs a lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures._base import FINISHED, PENDING
from threading import Condition
from typing import Any, Final, NamedTuple, NoReturn

from penstock.core.writing.packing import PendingRecord

_log: Final = logging.getLogger("penstock.producer")
_FUTURE_ATTRIBUTES: Final = {"_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"}
"""The attributes that `LightReceipt` expects of a future. A Python whose futures have others gets `FullReceipt`."""


class Acknowledgement(NamedTuple):
    """Where an acknowledged record is.

    Args:
        shard_id: The shard that took the record.
        sequence_number: Sequence number of the Kinesis record, as the service's text.
        sub_sequence_number: Place of the user record inside an aggregate; 0 for a plain record.
        is_aggregated: Whether other user records share the Kinesis record.
    """

    shard_id: str
    sequence_number: str
    sub_sequence_number: int = 0
    is_aggregated: bool = False


class LightReceipt(PendingRecord, Future[Acknowledgement]):
    """The future of one record, and the record while it waits. It cannot be cancelled: it may be sent at any moment."""

    __slots__ = ("_exception", "_result", "_state")

    _is_watched = False
    """Whether a thread waits or a callback was added. A waiting thread stores this before it reads the state."""

    def __init__(self, data: bytes, partition_key: str, explicit_hash_key: str | None) -> None:
        PendingRecord.__init__(self, data, partition_key, explicit_hash_key)
        # `Future.__init__` is not called: it makes the parts that a receipt makes later.
        self._state = PENDING

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent to another process, where a waiting copy would never be settled.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "the future of a record is settled in the process that put the record and cannot be pickled: return its result()"
        )

    # `Future`, `wait` and `as_completed` read these two properties.
    @property
    def _condition(self) -> Condition:  # type: ignore[override]  # only `Future.__init__` writes it, which is not called
        condition: Condition = self._make_once("condition", Condition)
        return condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]  # the same
        waiters: list[Any] = self._make_once("waiters", list)
        return waiters

    def _make_once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return an attribute that only waiting threads need; make it at the first use."""
        self._is_watched = True
        found = self.__dict__.get(name)
        # If two threads begin to wait at once, `setdefault` gives both the same object.
        return self.__dict__.setdefault(name, make()) if found is None else found

    def cancel(self) -> bool:
        """Return False: nothing is cancelled."""
        return False

    def cancelled(self) -> bool:
        """Return False: nothing is cancelled."""
        return False

    def running(self) -> bool:
        """Return False: a record is not run."""
        return False

    def done(self) -> bool:
        """Return whether the record is acknowledged or has failed."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> Acknowledgement:
        """Wait until the record is acknowledged, and return its shard and sequence number.

        Args:
            timeout: Seconds to wait; None: as long as the producer waits.

        Raises:
            TimeoutError: The record was not settled in time.
            DeliveryFailed: The record failed.
        """
        error = self.exception(timeout)
        if error is None:
            assert self._result is not None, "an acknowledged receipt has its acknowledgement"
            return self._result
        try:
            # Records that failed together share one error object. Without this its traceback would grow with each raise.
            raise error.with_traceback(None)
        finally:
            del error  # no cycle of the traceback, this frame and the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the record is settled, and return its failure; None if it was acknowledged.

        Args:
            timeout: Seconds to wait; None: as long as the producer waits.

        Raises:
            TimeoutError: The record was not settled in time.
        """
        return self._exception if self._state == FINISHED else super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Acknowledgement]], object]) -> None:
        """Call a function with this receipt when it is settled; at once if it is settled already."""
        callbacks = self._make_once("callbacks", list)
        callbacks.append(fn)
        if self._state == FINISHED:
            self._call_back(callbacks)

    def set_result(self, result: Acknowledgement) -> None:
        """Settle the record as acknowledged. Only the producer calls this."""
        if self._state != PENDING:
            raise InvalidStateError(f"{self._state}: {self!r}")
        self.data = b""  # a kept receipt must not keep the record's data
        self._result = result
        self._exception = None
        self._state = FINISHED
        if self._is_watched:
            self._run_callbacks()

    def set_exception(self, exception: BaseException | None) -> None:
        """Settle the record as failed. Only the producer calls this."""
        if self._state != PENDING:
            raise InvalidStateError(f"{self._state}: {self!r}")
        self.data = b""
        self._result = None
        self._exception = exception
        self._state = FINISHED
        if self._is_watched:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        if "condition" in self.__dict__:
            with self._condition:
                for waiter in self._waiters:
                    (waiter.add_result if self._exception is None else waiter.add_exception)(self)
                self._condition.notify_all()
        callbacks = self.__dict__.get("callbacks")
        if callbacks is not None:
            self._call_back(callbacks)

    def _call_back(self, callbacks: list[Callable[[Future[Acknowledgement]], object]]) -> None:
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:  # added while the receipt was settled: the other thread took the callback
                return
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - as with every future: the settling thread cannot handle it
                _log.exception("a callback of a record's receipt failed")


class FullReceipt(PendingRecord, Future[Acknowledgement]):
    """A receipt with all parts of a `Future`, for a Python whose futures have other attributes than `LightReceipt` expects."""

    def __init__(self, data: bytes, partition_key: str, explicit_hash_key: str | None) -> None:
        PendingRecord.__init__(self, data, partition_key, explicit_hash_key)
        Future.__init__(self)

    def cancel(self) -> bool:
        """Return False: nothing is cancelled."""
        return False


Receipt: Final[type[LightReceipt | FullReceipt]] = (
    LightReceipt if vars(Future()).keys() == _FUTURE_ATTRIBUTES else FullReceipt
)
RECEIPT_BYTES: Final = 420 if Receipt is LightReceipt else 1_600
"""Measured memory of a receipt with one callback (CPython 3.11, 64 bit). A light receipt without a callback takes 100 bytes."""
