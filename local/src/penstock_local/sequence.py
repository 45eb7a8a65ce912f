"""Sequence numbers: 56 decimal digits that sort by shard generation first and by place in the shard second.

A number packs, from its highest bits down::

    4 bits   2, which keeps every number at 56 digits
    36 bits  second in which the shard was made (later than its parents', so children sort after them)
    4 bits   lowest bits of the shard index
    24 bits  tag of the stream, different for every stream that a server has at one time
    40 bits  ordinal of the record in its shard, counted from 1; 0 is the shard's start
    8 bits   0
    36 bits  second of arrival
    32 bits  shard index
    4 bits   2

The layout has the properties that the service documents (increasing within a shard, unique within a
stream, larger in a child than in its parents), and distinguishes the numbers of one stream from those of another,
which the service does too. Nothing outside this module may rely on the layout itself.
"""

from __future__ import annotations

from typing import NamedTuple

_VERSION = 2
_ORDINAL_SHIFT = 80
_SECOND_MASK = (1 << 36) - 1
ORDINAL_STEP = 1 << _ORDINAL_SHIFT
"""The step of a number for one ordinal; everything below it depends on shard and arrival second only."""
ORDINAL_END = (1 << 40) - 1
"""The ordinal of a closed shard's EndingSequenceNumber."""
TAG_MAX = (1 << 24) - 1
"""The largest tag of a stream."""


class SequenceParts(NamedTuple):
    """The parts of a sequence number."""

    created_s: int
    stream_tag: int
    shard_index: int
    ordinal: int
    arrival_s: int


def encode(created_s: int, stream_tag: int, shard_index: int, ordinal: int, arrival_s: int) -> int:
    """Return the sequence number of a record as an integer; seconds since the epoch, all others >= 0."""
    high = ((_VERSION << 36 | created_s & _SECOND_MASK) << 4) | (shard_index & 15)
    low = ((arrival_s & _SECOND_MASK) << 36) | (shard_index << 4) | _VERSION
    return ((((high << 24) | stream_tag) << 40 | ordinal) << _ORDINAL_SHIFT) | low


def decode(number: int) -> SequenceParts | None:
    """Take a sequence number apart; None when it is not one that `encode` can have made."""
    if number >> 184 != _VERSION or number & 15 != _VERSION:
        return None
    shard_index = number >> 4 & 0xFFFFFFFF
    if number >> 72 & 0xFF or number >> 144 & 15 != shard_index & 15:
        return None
    return SequenceParts(
        created_s=number >> 148 & _SECOND_MASK,
        stream_tag=number >> 120 & TAG_MAX,
        shard_index=shard_index,
        ordinal=number >> _ORDINAL_SHIFT & ORDINAL_END,
        arrival_s=number >> 36 & _SECOND_MASK,
    )
