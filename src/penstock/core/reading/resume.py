"""How a shard is resumed from a position: the start of the iterator, the records to skip, and the detection of a loss.

With a checkpoint on a record, everything up to and including it is done. The iterator begins AT that record all the
same, for two reasons: an aggregate may have more user records after the checkpoint, and the record must still be
there. If it is not, retention has removed it, and perhaps unread records after it.

Source:
    Kinesis API reference, GetShardIterator. KCL resumes aggregates in the same way; the check that the record is
    still there is Penstock's own.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

from penstock.core.position import Position, Sentinel
from penstock.errors import PositionError

_CLOCK_SLACK_MS: Final = 5_000
"""The service sends its time in whole seconds, and the hosts that answer have a clock each."""


class IteratorType(Enum):
    """The five ways to start reading a shard."""

    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"
    AT_SEQUENCE_NUMBER = "AT_SEQUENCE_NUMBER"
    AFTER_SEQUENCE_NUMBER = "AFTER_SEQUENCE_NUMBER"


class IteratorStart(Struct, frozen=True):
    """Where a shard iterator begins: with a sequence number, a moment (ms since the epoch) or neither."""

    type: IteratorType
    sequence_number: str | None = None
    timestamp_ms: int | None = None


def plan_iterator(position: Position) -> IteratorStart:
    """Return the start of the iterator that resumes a shard from a position.

    Args:
        position: A checkpoint or a starting position. A LATEST that is pinned to a moment begins at the moment, so that
            no record written since then is missed.

    Raises:
        PositionError: SHARD_END, after which there are no records; or an AT_TIMESTAMP without its moment, as a Java
            KCL application leaves it in a lease table (the moment is in its configuration).
    """
    if position.sequence_number is not None:
        return IteratorStart(IteratorType.AT_SEQUENCE_NUMBER, sequence_number=position.sequence_number)
    if position.timestamp_ms is not None:
        return IteratorStart(IteratorType.AT_TIMESTAMP, timestamp_ms=position.timestamp_ms)
    if position.sentinel is Sentinel.LATEST:
        return IteratorStart(IteratorType.LATEST)
    if position.sentinel is Sentinel.TRIM_HORIZON:
        return IteratorStart(IteratorType.TRIM_HORIZON)
    if position.is_shard_end:
        raise PositionError("the shard is done (SHARD_END): there is nothing to read after its end")
    raise PositionError(
        "the position is AT_TIMESTAMP without a moment, as another application's configuration holds it: "
        "give the moment as the starting position"
    )


def count_done_records(position: Position, sequence_number: str, user_record_count: int) -> int:
    """Return how many user records of one Kinesis record are done when reading goes on after a position.

    Args:
        position: Everything up to and including it is done.
        user_record_count: User records in the Kinesis record: 1 if it is no aggregate.

    Returns:
        From 0 (all are new) to `user_record_count` (all are done).
    """
    if position.is_shard_end:
        return user_record_count
    if position.sequence_number is None:
        return 0
    done, read = int(position.sequence_number), int(sequence_number)
    if read != done:
        return user_record_count if read < done else 0
    return min(position.sub_sequence_number + 1, user_record_count)


def is_record_done(position: Position, sequence_number: str, user_record_count: int) -> bool:
    """Whether every user record of one Kinesis record is at or before a position; arguments as for `count_done_records`."""
    return count_done_records(position, sequence_number, user_record_count) == user_record_count


def is_record_missing(position: Position, first_sequence_number: str | None, *, at_end: bool) -> bool:
    """Return whether the first page of an iterator lacks the record of the position at which the iterator begins.

    This does not prove a loss. The missing record itself was done, but records between it and the first one that is left may
    have been trimmed unread: `judge_missing_record` decides.

    Args:
        first_sequence_number: Of the page's first record, or None for an empty page.
        at_end: No record follows the page. An empty page before the end shows nothing; the next one decides.
    """
    if position.sequence_number is None:
        return False
    if first_sequence_number is None:
        return at_end
    # The iterator begins at the position, so no earlier record should be in the page. If there is one, it is skipped.
    return int(first_sequence_number) > int(position.sequence_number)


class MissingRecord(Enum):
    """The meaning of a missing record at the position from which reading should go on."""

    HARMLESS = "nothing that was still to be read can have left the stream"
    UNSURE = "the shard is open and empty, and the foreign worker that wrote the checkpoint did not note when it was at the tip"
    HORIZON = "reading began with the oldest records that there were, and has not got away from the trim horizon since"
    LOSS = "records after it may have left the stream before they were read"


def are_unread_records_kept(unread_since_ms: int, *, now_ms: int, retention_ms: int) -> bool:
    """Return whether all unread records must still be in the stream.

    Args:
        unread_since_ms: A moment by the service's clock; unread records arrived then or later.
        now_ms: The moment by the service's clock.
    """
    return unread_since_ms >= now_ms - retention_ms + _CLOCK_SLACK_MS


def judge_missing_record(
    position: Position,
    *,
    unread_since_ms: int | None,
    is_foreign: bool,
    now_ms: int,
    retention_ms: int,
    is_open_and_empty: bool,
    is_at_horizon: bool = False,
) -> MissingRecord:
    """Decide whether records can have been lost when the record of a position is gone (`is_record_missing`).

    A record leaves the stream when it is older than the retention. Records after the position arrived later than the moment at
    which the position was last seen to be the tip. So they are all there if that moment is within the retention.

    Args:
        unread_since_ms: A moment by the service's clock: records after the position arrived then or later. It is known from
            an answer at the tip, or from the lag in an answer. None if no such moment is known.
        is_foreign: The checkpoint was written by a worker that does not record such moments, for example a Java KCL
            worker.
        now_ms: The moment by the service's clock.
        is_open_and_empty: The shard is open and holds no record from its trim horizon on.
        is_at_horizon: Reading began at the trim horizon, and unread records have been about to leave the stream since
            then.

    Returns:
        HARMLESS: go on. UNSURE, HORIZON: warn and go on. LOSS: fail, or warn and go on, by the user's policy.
    """
    if not position.is_record:
        return MissingRecord.HARMLESS
    if unread_since_ms is not None and are_unread_records_kept(
        unread_since_ms, now_ms=now_ms, retention_ms=retention_ms
    ):
        return MissingRecord.HARMLESS
    if is_at_horizon:
        return MissingRecord.HORIZON
    if is_foreign and is_open_and_empty:
        return MissingRecord.UNSURE
    return MissingRecord.LOSS
