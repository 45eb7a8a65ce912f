"""Records made by hand: plain ones, and those of one aggregate."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias, overload

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.hash_key import parse_hash_key
from penstock.core.keyword_options import check_unicode
from penstock.core.moments import parse_moment
from penstock.core.position import parse_sequence_number
from penstock.core.reading.record import Record
from penstock.errors import UsageError

Moment: TypeAlias = datetime | str | int
"""A moment with its time zone: a `datetime`, ISO 8601, or milliseconds since 1970."""
Payload: TypeAlias = bytes | bytearray | memoryview | str | Mapping[str, object]
"""Bytes as they are, text as UTF-8, a mapping as JSON."""

SHARD_ID: Final = "shardId-000000000000"
STREAM: Final = "stream"
ARRIVAL: Final = datetime(2026, 1, 1, tzinfo=UTC)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _RecordArguments(Struct, frozen=True):
    """The arguments for one record; its other fields follow from its place.

    Args:
        follows: Whether the record is of the same aggregate as the one before.
    """

    partition_key: str | None
    explicit_hash_key: str | None
    arrival: datetime | None
    sequence_number: str | None
    shard_id: str
    stream: str
    data: bytes = b""
    follows: bool = False


class Records(Sequence[Record]):
    """Records of one shard, in order. `+` joins them; sequence numbers that were not given follow from the places."""

    def __init__(self, arguments: Sequence[_RecordArguments]) -> None:
        for each in arguments:
            if not isinstance(each.partition_key, str | None):
                raise UsageError(f"partition_key={each.partition_key!r}: expected a text")
        self._arguments = tuple(arguments)
        self._records = tuple(_numbered_records(self._arguments))

    def __add__(self, other: Records) -> Records:
        return Records(self._arguments + other._arguments)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self._records[index] if isinstance(index, int) else list(self._records[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(self._records)

    def __repr__(self) -> str:
        return f"Records({list(self._records)!r})"


def _numbered_records(arguments: Iterable[_RecordArguments]) -> Iterator[Record]:
    number = sub = 0
    for place, each in enumerate(arguments, 1):
        sub = sub + 1 if each.follows else 0
        if each.sequence_number is not None:
            if int(each.sequence_number) <= number:
                raise UsageError(f"sequence_number={each.sequence_number!r}: the record before has {number}")
            number = int(each.sequence_number)
        elif not each.follows:
            number += 1
        key = each.partition_key
        yield Record(
            data=each.data,
            partition_key=None if key is None else key.replace("{n}", str(place)),
            sequence_number=str(number),
            sub_sequence_number=sub,
            explicit_hash_key=each.explicit_hash_key,
            approximate_arrival_timestamp=each.arrival or ARRIVAL + timedelta(seconds=number),
            shard_id=each.shard_id,
            stream=each.stream,
        )


def records(
    *payloads: Payload,
    partition_key: str | None = "key-{n}",
    sequence_number: str | None = None,
    arrival: Moment | None = None,
    shard_id: str = SHARD_ID,
    stream: str = STREAM,
) -> Records:
    """Make plain records, in order.

    Args:
        payloads: One for each record: bytes, text, or a mapping that becomes JSON.
        partition_key: Key of every record; `{n}` is replaced by the record's place. None: the stream manages keys by itself.
        sequence_number: Sequence number of the first record; the others follow it. None: the record's place, from 1.
        arrival: When the records arrived in the stream. None: one second apart, from the beginning of 2026.
        shard_id: The shard that they are in.
        stream: Name or ARN of the stream.

    Raises:
        PositionError: `arrival` is not a moment or has no time zone, or the sequence number is invalid.
        UsageError: A payload or the key is of another type.
    """
    number, moment = _parse_number(sequence_number), _parse_moment(arrival)
    return Records(_repeat(payloads, _RecordArguments(partition_key, None, moment, number, shard_id, stream)))


def aggregate(
    *payloads: Payload,
    partition_key: str = "key-{n}",
    explicit_hash_key: str | None = None,
    sequence_number: str | None = None,
    arrival: Moment | None = None,
    shard_id: str = SHARD_ID,
    stream: str = STREAM,
) -> Records:
    """Make the records of one aggregate: they share a sequence number and have sub-sequence numbers from 0.

    Args:
        payloads: Two or more; a producer sends a single record as it is.
        partition_key: Key of every record; `{n}` is replaced by the record's place.
        explicit_hash_key: As the producer set it.
        sequence_number: Sequence number of the aggregate. None: its place.
        arrival: When the aggregate arrived in the stream. None: as for `records`.
        shard_id: The shard that it is in.
        stream: Name or ARN of the stream.

    Raises:
        PositionError: `arrival` is not a moment or has no time zone, or the sequence number is invalid.
        UsageError: There are fewer than two payloads, or a payload or the key is of another type.
    """
    if len(payloads) < 2:
        raise UsageError(f"an aggregate of {len(payloads)} payloads: give two or more, or use records(...)")
    if explicit_hash_key is not None:
        parse_hash_key(explicit_hash_key)
    number, moment = _parse_number(sequence_number), _parse_moment(arrival)
    first = _RecordArguments(partition_key, explicit_hash_key, moment, number, shard_id, stream)
    return Records([replace(each, follows=place > 0) for place, each in enumerate(_repeat(payloads, first))])


def _encode(payload: Payload) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    try:
        text = payload if isinstance(payload, str) else json.dumps(payload)
    except (TypeError, ValueError) as error:
        raise UsageError(f"a payload of type {type(payload).__name__} cannot become JSON: {error}") from None
    check_unicode("payload", text)
    return text.encode()


def _repeat(payloads: Iterable[Payload], first: _RecordArguments) -> list[_RecordArguments]:
    """Return the arguments for a record of each payload; only the first one has a sequence number that was given."""
    return [
        replace(first, data=_encode(payload), sequence_number=None if place else first.sequence_number)
        for place, payload in enumerate(payloads)
    ]


def _parse_number(text: str | None) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise UsageError(f"sequence_number={text!r}: expected a text")
    return parse_sequence_number(text)


def _parse_moment(arrival: Moment | None) -> datetime | None:
    if arrival is None:
        return None
    return _EPOCH + timedelta(milliseconds=parse_moment(arrival, "arrival"))
