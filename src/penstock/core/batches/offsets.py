"""The offset of a streaming query: where a batch starts in every shard, as canonical JSON.

Spark logs a batch's end offset before the batch runs, when its end in each shard is not known yet. So the offset with
number n has the *start* of batch n; its end is on the leases (`penstock.core.batches.claims`). Spark compares offsets as
JSON texts, so the same content always gives the same text: keys are sorted, sequence numbers are strings, and each sentinel
has one spelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from penstock.core.batches.known_batches import KnownBatches
from penstock.core.position import Position, parse_checkpoint
from penstock.errors import PositionError

FORMAT_VERSION: Final = 1
SEVERAL_FORMAT_VERSION: Final = 2
"""The format of the offset of several streams (`penstock.core.batches.several_offsets`), which holds offsets of this one."""

SHARE_BYTES_MIN: Final = 1024 * 1024
"""Smallest share of a byte limit that one shard gets: an ordinary record fits into it."""


class Share(Struct, frozen=True):
    """A shard's share of a batch's limits.

    Args:
        record_count_max: The most user records; None for no limit.
        bytes_max: The most bytes of user data; None for no limit.
        may_exceed: The first record is read even if it alone is larger than `bytes_max`; otherwise it might never be read.
    """

    record_count_max: int | None = None
    bytes_max: int | None = None
    may_exceed: bool = True


class Limits(NamedTuple):
    """The limits of one batch, in user records and in bytes of user data; None for no limit."""

    record_count_max: int | None = None
    bytes_max: int | None = None


NO_LIMITS: Final = Limits()


class SharedLimits(Struct, frozen=True):
    """The limits of a whole batch, and the shards that share them.

    Args:
        shards: The shards that the batch reads, in the order in which they get the remainder.
    """

    record_count_max: int | None
    bytes_max: int | None
    shards: tuple[str, ...]

    def shares(self) -> dict[str, Share]:
        """Split the limits of the batch among its shards; the shares sum up to the limits exactly.

        If the limits are too small for all shards, the first ones are read and the others wait for a later batch. The first
        shard may exceed its bytes by one record. Otherwise a record that is larger than every share would never be read.
        """
        count = len(self.shards)
        if self.record_count_max is not None:
            count = min(count, self.record_count_max)
        if self.bytes_max is not None:
            count = min(count, max(1, self.bytes_max // SHARE_BYTES_MIN))
        return {
            shard: Share(
                _part_of_limit(self.record_count_max, place, count),
                _part_of_limit(self.bytes_max, place, count),
                place == 0,
            )
            for place, shard in enumerate(self.shards[:count])
        }


def _part_of_limit(total: int | None, place: int, count: int) -> int | None:
    if total is None:
        return None
    return total // count + (1 if place < total % count else 0)


class StreamOffset(Struct, frozen=True):
    """Where one batch of a query starts.

    Args:
        batch: Our own number of the batch, growing by at least one; 0 before the first.
        worker: The query's worker id in the lease table; empty before the first batch.
        stream_arn: With `stream_created_ms` it distinguishes this stream from a later one of the same name.
        stream_created_ms: Milliseconds since the epoch.
        shards: Shard id to the position that the batch starts from: everything up to and including it is done. A shard that
            was read to its end is listed at SHARD_END until one of its children is listed.
        until_ms: Records that arrived at or after this moment are not in the batch (AvailableNow), or None.
        limit: Which shards the batch reads, and how much; None in the offset before the first batch, and in those of
            early versions, which read all shards up to the tip.
        tips: Shard id to a moment at which no record followed the position in `shards`, by the service's clock. Only for
            shards that the batch reads, if such a moment is known.
        deaggregates: Whether KPL aggregates are taken apart. Positions count user records either way.
        runs: The runs of the driver that planned the batches up to this one, as in `KnownBatches`.
        lease_table: The lease table with the batch's claims, as in option leaseTable; empty in the offset before the first
            batch, and in those of early versions.
    """

    batch: int = 0
    worker: str = ""
    stream_arn: str = ""
    stream_created_ms: int = 0
    shards: Mapping[str, Position] = field(default_factory=dict)
    until_ms: int | None = None
    limit: SharedLimits | None = None
    tips: Mapping[str, int] = field(default_factory=dict)
    deaggregates: bool = True
    runs: tuple[tuple[int, str], ...] = ()
    lease_table: str = ""

    @property
    def known_batches(self) -> KnownBatches:
        """The batches up to this one."""
        return KnownBatches(self.batch, self.runs)

    def shares(self) -> dict[str, Share]:
        """Return the share of the batch's limits of each shard that the batch reads."""
        if self.limit is None:
            return dict.fromkeys(self.shards, Share())
        return {key: share for key, share in self.limit.shares().items() if key in self.shards}

    def to_json(self) -> dict[str, Any]:
        """Return the canonical form: the same offset is always the same text."""
        document: dict[str, Any] = {"batch": self.batch}
        if self.lease_table:
            document["leaseTable"] = self.lease_table
        if self.limit is not None:
            document["limit"] = {
                "bytes": self.limit.bytes_max,
                "records": self.limit.record_count_max,
                "shards": list(self.limit.shards),
            }
        if self.runs:
            document["runs"] = [[first, run] for first, run in self.runs]
        document["shards"] = {shard: encode_position(self.shards[shard]) for shard in sorted(self.shards)}
        if self.stream_arn:
            document["stream"] = {"arn": self.stream_arn, "created": self.stream_created_ms}
        if self.tips:
            document["tips"] = {shard: self.tips[shard] for shard in sorted(self.tips)}
        if self.until_ms is not None:
            document["until"] = self.until_ms
        document["v"] = FORMAT_VERSION
        if not self.deaggregates:
            document["whole"] = True
        if self.worker:
            document["worker"] = self.worker
        return document


INITIAL_OFFSET: Final = StreamOffset()


def parse_offset(document: Any) -> StreamOffset:
    """Parse an offset that an earlier run logged.

    Raises:
        PositionError: Not an offset of this source, or one of a later format.
    """
    version = document.get("v") if isinstance(document, Mapping) else None
    if version == SEVERAL_FORMAT_VERSION and "streams" in document:
        raise PositionError(
            f"the checkpoint is one of a query of several streams ({', '.join(sorted(document['streams'])):.300}), and this one reads "
            "one stream. To go on with one of them, name it with a comma (streamName=orders,): its leases stay in the table "
            "of several streams"
        )
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise PositionError(
            f"the checkpoint holds an offset of format {version!r:.100}, and this version of Penstock reads format "
            f"{FORMAT_VERSION}: it was written by another source or a later Penstock; use that one, or start "
            "with a new checkpoint location"
        )
    try:
        return _parse_offset_fields(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PositionError(
            f"the checkpoint holds an offset that cannot be read ({error!r:.300}): {document!r:.300}"
        ) from error


def _parse_offset_fields(document: Mapping[str, Any]) -> StreamOffset:
    stream = document.get("stream", {})
    arn, created_ms = _checked_text(stream.get("arn", "")), _checked_whole_number(stream.get("created", 0))
    if created_ms and not arn:
        raise PositionError(f"the stream {stream!r:.100} has no ARN")
    until, limit = document.get("until"), document.get("limit")
    return StreamOffset(
        batch=_checked_whole_number(document["batch"]),
        worker=_checked_text(document.get("worker", "")),
        stream_arn=arn,
        stream_created_ms=created_ms,
        shards={_checked_text(shard): decode_position(entry) for shard, entry in document["shards"].items()},
        until_ms=None if until is None else _checked_whole_number(until),
        limit=None if limit is None else _parse_limit(limit),
        tips={
            _checked_text(shard): _checked_whole_number(moment)
            for shard, moment in document.get("tips", {}).items()
        },
        deaggregates=not document.get("whole", False),
        runs=_parse_runs(document.get("runs", [])),
        lease_table=_checked_text(document.get("leaseTable", "")),
    )


def _parse_runs(entries: Any) -> tuple[tuple[int, str], ...]:
    runs = tuple((_checked_whole_number(first), _checked_text(run)) for first, run in entries)
    numbers = [first for first, _ in runs]
    if numbers != sorted(set(numbers)):
        raise PositionError(f"the numbers of the runs {runs!r:.200} do not grow")
    return runs


def _parse_limit(limit: Mapping[str, Any]) -> SharedLimits:
    """Return the limits of a batch, with the shards that share them."""
    records, size, shards = limit["records"], limit["bytes"], limit["shards"]
    if not isinstance(shards, list):
        raise PositionError(f"{shards!r:.100} is not a list of shards")
    return SharedLimits(
        None if records is None else _checked_whole_number(records, 1),
        None if size is None else _checked_whole_number(size, 1),
        tuple(_checked_text(shard) for shard in shards),
    )


def _checked_whole_number(value: Any, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise PositionError(f"{value!r:.100} is not a whole number from {least} up")
    return value


def _checked_text(value: Any) -> str:
    if not isinstance(value, str):
        raise PositionError(f"{value!r:.100} is not text")
    return value


def encode_position(position: Position) -> list[Any]:
    """Return `[sequence number or sentinel, sub-sequence number or moment in ms]`."""
    if position.sequence_number is not None:
        return [position.sequence_number, position.sub_sequence_number]
    name = "" if position.sentinel is None else position.sentinel.value
    return [name, 0 if position.timestamp_ms is None else position.timestamp_ms]


def decode_position(entry: Any) -> Position:
    """Parse the result of `encode_position`.

    Raises:
        PositionError: Anything else.
    """
    if not (
        isinstance(entry, list)
        and len(entry) == 2
        and isinstance(entry[0], str)
        and isinstance(entry[1], int)
        and not isinstance(entry[1], bool)
    ):
        raise PositionError(
            f"{entry!r:.200} is not a position: expected [sequence number or sentinel, number]"
        )
    text, number = entry
    if text.isdigit():
        return parse_checkpoint(text, sub_sequence_number=number)
    return parse_checkpoint(text, timestamp_ms=number or None)
