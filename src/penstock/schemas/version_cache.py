"""A process's cache of schema versions: each is fetched once, however many threads want it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from penstock.errors import SchemaError, Unavailable
from penstock.ports.clock import Clock
from penstock.runtime.system_clock import SystemClock

ANSWER_WITHIN_S: Final = 180.0
"""How long a thread waits for a version that another thread fetches."""

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class VersionCache(Generic[_Key, _Value]):
    """Keeps values, and for a while the `SchemaError` of a refusal. Safe to use from several threads.

    After any other failure, the next caller fetches again.

    Args:
        fetch: Fetches a missing version; called by one thread at a time for one key.
        count_max: How many values are kept, and how many refusals; the oldest are removed first.
        refusal_kept_s: How long a `SchemaError` is raised again without a fetch.
        wait_s: How long a thread waits while another one fetches the same version.
        clock: Measures the age of a refusal.
    """

    def __init__(
        self,
        fetch: Callable[[_Key], _Value],
        *,
        count_max: int = 200,
        refusal_kept_s: float = 60.0,
        wait_s: float = ANSWER_WITHIN_S,
        clock: Clock | None = None,
    ) -> None:
        self._fetch: Final = fetch
        self._count_max: Final = count_max
        self._refusal_kept_s: Final = refusal_kept_s
        self._wait_s: Final = wait_s
        self._clock: Final = clock or SystemClock()
        self._lock: Final = threading.Lock()
        self._values: Final[OrderedDict[_Key, _Value]] = OrderedDict()
        self._refusals: Final[OrderedDict[_Key, tuple[float, type[SchemaError], str]]] = OrderedDict()
        self._fetches_under_way: Final[dict[_Key, Future[_Value]]] = {}

    def get(self, key: _Key) -> _Value:
        """Return the value of a key; fetch it if the cache does not have it.

        Raises:
            SchemaError: The fetch raised it, now or a while ago.
            Unavailable: Another thread was fetching the value, and got no answer in time or was interrupted.
            PenstockError: Any other error of the fetch.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            self._raise_refusal(key)
            fetch = self._fetches_under_way.get(key)
            is_first = fetch is None
            if fetch is None:
                fetch = self._fetches_under_way[key] = Future()
        if is_first:
            return self._fetch_and_share(key, fetch)
        try:
            return fetch.result(self._wait_s)
        except TimeoutError:
            raise Unavailable(
                f"another thread has asked the schema registry for the same version for {self._wait_s:g} s without an answer"
            ) from None

    def _fetch_and_share(self, key: _Key, fetch: Future[_Value]) -> _Value:
        """Fetch a value, keep it or its refusal, and complete the future for which other threads wait."""
        try:
            value = self._fetch(key)
        except BaseException as error:
            with self._lock:
                if isinstance(error, SchemaError):
                    until_s = self._clock.monotonic_s() + self._refusal_kept_s
                    self._refusals[key] = (until_s, type(error), str(error))
                    _remove_oldest(self._refusals, self._count_max)
                del self._fetches_under_way[key]
            fetch.set_exception(
                error
                if isinstance(error, Exception)
                else Unavailable(
                    "the thread that asked the schema registry for the same version was interrupted"
                )
            )
            raise
        with self._lock:
            self._values[key] = value
            _remove_oldest(self._values, self._count_max)
            del self._fetches_under_way[key]
        fetch.set_result(value)
        return value

    def _raise_refusal(self, key: _Key) -> None:
        if key not in self._refusals:
            return
        until_s, kind, message = self._refusals[key]
        if self._clock.monotonic_s() < until_s:
            raise kind(message)
        del self._refusals[key]


def _remove_oldest(entries: OrderedDict[Any, Any], count_max: int) -> None:
    while len(entries) > count_max:
        entries.popitem(last=False)
