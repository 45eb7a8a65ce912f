"""The meaning of a failed call for the reading of a shard: one rule for all readers and probes."""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.errors import (
    AccessDenied,
    ExpiredIterator,
    NotFound,
    PenstockError,
    Rejected,
    ResourceBusy,
    ServiceError,
    Throttled,
    Unavailable,
    UnknownOutcome,
    UnknownRefusal,
)

_EXPIRED_CREDENTIALS: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_POSITION_CODE: Final = "InvalidArgumentException"
_POSITION_WORDS: Final = ("SequenceNumber", "equence number", "did not come from this stream")
"""Of the service's messages about a position; it refuses other arguments with the same code."""


class FailureMeaning(Enum):
    """The reactions to a failed call."""

    PASSES = "nothing happened, and a later call may succeed"
    ITERATOR_EXPIRED = "the iterator is too old: fetch another one at the last record that was read"
    ITERATOR_REFUSED = "the iterator is refused as such: fetch another one, and not many times"
    POSITION_REFUSED = "no iterator can begin at the position: it is of another shard or stream"
    REQUEST_REFUSED = "the service finds a mistake in the request that is not its position"
    UNKNOWN_SHARD = "the service does not know the shard: gone from the stream, or a mistake"
    STUBBORN = "waiting seldom cures it"
    FINAL = "it is no answer of the service, and calling again cannot help"


def judge_failure(error: PenstockError, *, has_iterator: bool) -> FailureMeaning:
    """Return the meaning of a failed call.

    Args:
        error: As the port raised it.
        has_iterator: The call was made with an iterator; else it asked for one.
    """
    if isinstance(error, Rejected):
        if has_iterator:
            return FailureMeaning.ITERATOR_REFUSED
        is_of_position = error.code == _POSITION_CODE and any(
            words in str(error) for words in _POSITION_WORDS
        )
        return FailureMeaning.POSITION_REFUSED if is_of_position else FailureMeaning.REQUEST_REFUSED
    if isinstance(error, AccessDenied) and error.code in _EXPIRED_CREDENTIALS:
        return FailureMeaning.PASSES  # new ones may be on their way
    return next((meaning for kinds, meaning in _MEANINGS if isinstance(error, kinds)), FailureMeaning.FINAL)


_MEANINGS: Final = (
    (ExpiredIterator, FailureMeaning.ITERATOR_EXPIRED),
    (NotFound, FailureMeaning.UNKNOWN_SHARD),
    (Throttled | Unavailable | UnknownOutcome | ResourceBusy | UnknownRefusal, FailureMeaning.PASSES),
    (ServiceError, FailureMeaning.STUBBORN),
)
