"""The steps that a shard's reader requests, the events that answer them, and the meaning of failed calls."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.core.position import Position
from penstock.core.shard import ChildShard, Shard
from penstock.errors import (
    AccessDenied,
    DataLossError,
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

SUBSCRIBED: Final = "subscribed"
"""Replaces the service's iterator if a subscription brings the pages; the subscription keeps its own position."""

# --- the steps ------------------------------------------------------------------------------------------


class FetchIterator(Struct, frozen=True):
    """Fetch an iterator that begins at a position; if that is a record, the iterator begins with the record itself."""

    position: Position


class FetchPage(Struct, frozen=True):
    """Read one page."""

    iterator: str
    record_count_max: int


class FetchListing(Struct, frozen=True):
    """Ask ListShards about this shard: the reads do not show clearly whether and how it ended."""

    reason: str


class Pause(Enum):
    """Why there is nothing to do."""

    SPACING = "reads of a shard are kept apart"
    BYTES = "the shard's bytes per second are used up"
    IDLE = "the shard is quiet"
    FULL = "enough is fetched and waits for delivery"
    BACKOFF = "the service refused or failed"


class Wait(Struct, frozen=True):
    """There is nothing to do before `until_s`; if it is None, nothing before fetched records are delivered."""

    until_s: float | None
    reason: Pause


class Finished(Struct, frozen=True):
    """The shard is closed and read to its end; `children` continue it (empty when the stream lists none)."""

    children: tuple[ChildShard, ...]


class Failed(Struct, frozen=True):
    """The shard cannot be read further; the error has the reason and the way out."""

    error: PenstockError


Step: TypeAlias = FetchIterator | FetchPage | FetchListing | Wait | Finished | Failed


# --- the answers ----------------------------------------------------------------------------------------


class ListedState(Enum):
    """A shard in a complete listing."""

    OPEN = "listed as open"
    CLOSED = "listed as closed"
    MISSING = "not listed"


class ListedShard(Struct, frozen=True):
    """The state of a shard in a listing, and the shards that name it as a parent."""

    state: ListedState
    children: tuple[ChildShard, ...] = ()


def find_listed_shard(shard_id: str, shards: Iterable[Shard]) -> ListedShard:
    """Return a shard's state and children in a complete listing."""
    state = ListedState.MISSING
    children: list[ChildShard] = []
    for shard in shards:
        if shard.shard_id == shard_id:
            state = ListedState.OPEN if shard.is_open else ListedState.CLOSED
        elif shard_id in shard.parents:
            children.append(shard.as_child)
    return ListedShard(state, tuple(children))


class PageOutcome(Struct, frozen=True):
    """Which records of a page are new, and the reports that the page causes.

    Args:
        is_accepted: False if the reader takes none of the page's records: it reads them again, or it has failed.
        read_through: The records up to and including this position were read before; None if all of them are new.
        loss: Records may be gone between the last one read and the first one in the stream.
        warning: The record at which reading resumes is gone, but no unread record can be.
    """

    is_accepted: bool
    read_through: Position | None = None
    loss: DataLossError | None = None
    warning: str | None = None


_EXPIRED_CREDENTIALS: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_POSITION_CODE: Final = "InvalidArgumentException"
_POSITION_WORDS: Final = ("SequenceNumber", "equence number", "did not come from this stream")
"""Words in the service's messages about a position; it refuses other arguments with the same code."""


class FailureMeaning(Enum):
    """The meaning of a failed call, which decides the reader's reaction."""

    TRANSIENT = "nothing happened, and a later call may succeed"
    ITERATOR_EXPIRED = "the iterator is too old: fetch another one at the last record that was read"
    ITERATOR_REFUSED = "the iterator is refused as such: fetch another one, and not many times"
    POSITION_REFUSED = "no iterator can begin at the position: it is of another shard or stream"
    REQUEST_REFUSED = "the service finds a mistake in the request that is not its position"
    UNKNOWN_SHARD = "the service does not know the shard: gone from the stream, or a mistake"
    REFUSED = "waiting seldom cures it"
    FINAL = "it is not an answer of the service, and calling again cannot help"


def judge_failure(error: PenstockError, *, requested_iterator: bool) -> FailureMeaning:
    """Return the meaning of a failed call.

    Args:
        requested_iterator: Whether the call requested an iterator at a position. The others use an iterator, or list shards.
    """
    if isinstance(error, Rejected):
        if not requested_iterator:
            return FailureMeaning.ITERATOR_REFUSED
        is_of_position = error.code == _POSITION_CODE and any(
            words in str(error) for words in _POSITION_WORDS
        )
        return FailureMeaning.POSITION_REFUSED if is_of_position else FailureMeaning.REQUEST_REFUSED
    if isinstance(error, AccessDenied) and error.code in _EXPIRED_CREDENTIALS:
        return FailureMeaning.TRANSIENT  # new credentials may follow soon
    return next((meaning for kinds, meaning in _MEANINGS if isinstance(error, kinds)), FailureMeaning.FINAL)


_MEANINGS: Final = (
    (ExpiredIterator, FailureMeaning.ITERATOR_EXPIRED),
    (NotFound, FailureMeaning.UNKNOWN_SHARD),
    (Throttled | Unavailable | UnknownOutcome | ResourceBusy | UnknownRefusal, FailureMeaning.TRANSIENT),
    (ServiceError, FailureMeaning.REFUSED),
)


class AnswersInARow(Struct):
    """How often in a row a shard's reader has received each kind of answer.

    Args:
        failures: Failed calls.
        failing_since_s: Start of the first of them, or None.
        refusals: Failures that repetition alone does not cure: refusals, and a listing that contradicts the reads.
        empty_starts: Empty pages at the place where reading resumes, which must have a record.
        unconfirmed_ends: Last pages that name no children.
        missing_listings: Listings that do not have the shard.
        empty_rereads: Empty answers although the driver knows that a record follows.
        quiet_pages: Pages without records at the tip.
    """

    failures: int = 0
    failing_since_s: float | None = None
    refusals: int = 0
    empty_starts: int = 0
    unconfirmed_ends: int = 0
    missing_listings: int = 0
    empty_rereads: int = 0
    quiet_pages: int = 0

    def on_page(self) -> None:
        """Handle a page: the calls work."""
        self.failures = 0
        self.failing_since_s = None

    def on_progress(self) -> None:
        """Handle a page that leads further: the shard can be read."""
        self.refusals = self.missing_listings = 0

    def on_failure(self, started_s: float) -> float:
        """Handle a failed call; return when the first failure in a row began."""
        self.failures += 1
        if self.failing_since_s is None:
            self.failing_since_s = started_s
        return self.failing_since_s

    def on_last_page(self, *, is_progress: bool) -> None:
        """Handle a last page without children."""
        self.unconfirmed_ends = 1 if is_progress else self.unconfirmed_ends + 1

    def on_listed(self) -> None:
        """Handle a listing that has the shard, although reads failed or ended."""
        self.missing_listings = self.unconfirmed_ends = 0
        self.refusals += 1

    def on_other_source(self) -> None:
        """Handle a change of the source of pages: its failures do not count for the next one."""
        self.failures = self.quiet_pages = self.empty_starts = 0
        self.failing_since_s = None
