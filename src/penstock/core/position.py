"""Positions in a shard: sequence numbers, sub-sequence numbers and sentinels, in one total order.

Sequence numbers are kept as the text that the service gave and compared as integers: "9" is
before "10", and the text goes back to the service unchanged. A checkpoint is a position that means
"everything up to and including this is done".
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.limits import SEQUENCE_NUMBER_DIGITS_MAX
from penstock.errors import PositionError


class Sentinel(Enum):
    """Positions that are not records. The values are the spelling in a lease table.

    Source:
        KCL's SentinelCheckpoint: the spelling; the order is Penstock's and agrees with KCL's
        AT_TIMESTAMP < TRIM_HORIZON < LATEST < every number < SHARD_END.
    """

    AT_TIMESTAMP = "AT_TIMESTAMP"
    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    SHARD_END = "SHARD_END"


_RANK: Final[dict[Sentinel | None, int]] = {
    Sentinel.AT_TIMESTAMP: 0,
    Sentinel.TRIM_HORIZON: 1,
    Sentinel.LATEST: 2,
    Sentinel.SHARD_END: 4,
}
_NUMBER_RANK: Final = 3


def parse_sequence_number(text: str) -> str:
    """Check that a text is a sequence number and return it unchanged.

    Leading zeros are accepted although the service has none: emulators pad their numbers to one length.

    Raises:
        PositionError: Not 1 to 129 ASCII digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= SEQUENCE_NUMBER_DIGITS_MAX):
        raise PositionError(
            f"{text[:140]!r} is not a sequence number: expected 1 to {SEQUENCE_NUMBER_DIGITS_MAX} digits, as the service gives them"
        )
    return text


class Position(Struct, frozen=True, eq=False):
    """A place in one shard.

    Exactly one of `sequence_number` and `sentinel` is set.

    Args:
        sequence_number: The service's text, or None for a sentinel.
        sub_sequence_number: Place inside an aggregate, counted from 0; 0 for plain records and sentinels.
        sentinel: A position that is not a record, or None.
        timestamp_ms: Only for AT_TIMESTAMP (and for a LATEST that was turned into a moment):
            milliseconds since the epoch, UTC.

    Two positions are equal when they are the same place: sequence numbers are compared as integers.
    """

    sequence_number: str | None = None
    sub_sequence_number: int = 0
    sentinel: Sentinel | None = None
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        if (self.sequence_number is None) == (self.sentinel is None):
            raise PositionError("a position is either a sequence number or a sentinel")
        if self.sequence_number is not None:
            parse_sequence_number(self.sequence_number)
            if self.timestamp_ms is not None:
                raise PositionError("a sequence number carries no timestamp")
        if self.sub_sequence_number < 0:
            raise PositionError(f"sub-sequence number {self.sub_sequence_number} is negative")
        if self.sentinel is not None and self.sub_sequence_number != 0:
            raise PositionError(f"{self.sentinel.value} has no sub-sequence number")
        if self.timestamp_ms is not None and self.sentinel not in (Sentinel.AT_TIMESTAMP, Sentinel.LATEST):
            raise PositionError("only AT_TIMESTAMP and a pinned LATEST carry a timestamp")
        if self.timestamp_ms is not None and self.timestamp_ms < 0:
            raise PositionError(f"timestamp {self.timestamp_ms} ms is before 1970")

    @property
    def is_shard_end(self) -> bool:
        """Whether everything in the shard is done."""
        return self.sentinel is Sentinel.SHARD_END

    @property
    def is_record(self) -> bool:
        """Whether the position names a record rather than a sentinel."""
        return self.sequence_number is not None

    @property
    def is_in_shard(self) -> bool:
        """Whether the position is a place in one shard, rather than one at which every shard can start."""
        return self.is_record or self.is_shard_end

    @property
    def whole_record(self) -> Position:
        """The position of the whole Kinesis record: the service has no positions inside aggregates."""
        return replace(self, sub_sequence_number=0) if self.is_record else self

    def _key(self) -> tuple[int, int, int]:
        if self.sequence_number is not None:
            return (_NUMBER_RANK, int(self.sequence_number), self.sub_sequence_number)
        # A position without a moment differs from the moment 0, and is before every moment.
        return (_RANK[self.sentinel], -1 if self.timestamp_ms is None else self.timestamp_ms, 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        return self._key() == other._key()

    def __ne__(self, other: object) -> bool:
        # A Struct derives no comparison from another one.
        if not isinstance(other, Position):
            return NotImplemented
        return self._key() != other._key()

    # Python answers `>` and `>=` by the other operand's `<` and `<=`.
    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        return self._key() < other._key()

    def __le__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        return self._key() <= other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        """Show as the lease table spells it, with the sub-sequence number after a dot or the moment after a colon."""
        if self.sentinel is None:
            return f"{self.sequence_number}.{self.sub_sequence_number}"
        return (
            self.sentinel.value if self.timestamp_ms is None else f"{self.sentinel.value}:{self.timestamp_ms}"
        )


TRIM_HORIZON: Final = Position(sentinel=Sentinel.TRIM_HORIZON)
LATEST: Final = Position(sentinel=Sentinel.LATEST)
SHARD_END: Final = Position(sentinel=Sentinel.SHARD_END)


def at_timestamp(timestamp_ms: int) -> Position:
    """Return the position before the first record that arrived at or after a moment (ms since the epoch)."""
    return Position(sentinel=Sentinel.AT_TIMESTAMP, timestamp_ms=timestamp_ms)


def at_record(sequence_number: str, sub_sequence_number: int = 0) -> Position:
    """Return the position of one user record.

    Raises:
        PositionError: Not a sequence number, or a negative sub-sequence number.
    """
    return Position(sequence_number=sequence_number, sub_sequence_number=sub_sequence_number)


def parse_checkpoint(text: str, sub_sequence_number: int = 0, timestamp_ms: int | None = None) -> Position:
    """Read a checkpoint as a lease table spells it.

    Args:
        text: Digits, or the name of a sentinel.
        sub_sequence_number: As stored beside it; ignored for sentinels, as KCL does.
        timestamp_ms: The moment stored beside AT_TIMESTAMP or LATEST, if any.

    Raises:
        PositionError: Neither digits nor a sentinel.
    """
    if text in Sentinel.__members__:
        sentinel = Sentinel(text)
        moment = timestamp_ms if sentinel in (Sentinel.AT_TIMESTAMP, Sentinel.LATEST) else None
        return Position(sentinel=sentinel, timestamp_ms=moment)
    return at_record(text, sub_sequence_number)


def parse_position(text: str) -> Position:
    """Parse the `str` of a position.

    Raises:
        PositionError: The text is not that of a position.
    """
    name, colon, moment = text.partition(":")
    if colon:
        if not (moment.isascii() and moment.isdigit()):
            raise PositionError(
                f"{text[:160]!r} is not a position: expected a moment in milliseconds after the colon"
            )
        return parse_checkpoint(name, timestamp_ms=int(moment))
    number, dot, sub = text.partition(".")
    if not dot:
        return parse_checkpoint(number)
    if not (sub.isascii() and sub.isdigit()):
        raise PositionError(f"{text[:160]!r} is not a position: expected a sub-sequence number after the dot")
    return at_record(number, int(sub))
