"""How a check ends: held, broken, or not tried."""

from __future__ import annotations

from typing import Final

from penstock.testing.stream_source.promises import Promise

NO_ROWS: Final = "the first batch after records were put has no rows: nothing to compare"


class PromiseBroken(AssertionError):  # noqa: N818 - a failed test, not an error of the library
    """A source does not keep a promise.

    Attributes:
        promise: The promise's name.
        seen: The calls and their answers that show it.
    """

    def __init__(self, promise: Promise, observation: str) -> None:
        super().__init__(
            f"\n  promise: {promise.text}\n  seen:    {observation}\n  Spark:   {promise.consequence}"
        )
        self.promise: str = promise.name
        self.seen: str = observation


class NotStarted(Exception):  # noqa: N818 - the cause is the error
    """No query starts with the options of the source under test: either they are mistaken, or the check tries wrong options."""


class NotTried(Exception):  # noqa: N818 - no error: a check that has nothing to try
    """A check that cannot be tried on this source, with the reason."""
