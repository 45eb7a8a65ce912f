"""Where reading begins: positions in a shard, as requests name them."""

from __future__ import annotations

from typing import NamedTuple

from penstock_local import sequence
from penstock_local.operations.call import Document, ServiceCall
from penstock_local.replay.replayed_shard import ReplayedShard
from penstock_local.sequence import SequenceParts
from penstock_local.service_errors import invalid_argument
from penstock_local.shard import Shard, shard_id
from penstock_local.store import ACCOUNT
from penstock_local.stream import Stream


def is_of_shard(parts: SequenceParts, shard: Shard) -> bool:
    """Return whether a number is of this shard, not of a shard with the same id in another or an earlier stream."""
    return (parts.created_s, parts.stream_tag, parts.shard_index) == (
        shard.created_s,
        shard.stream_tag,
        shard.index,
    )


def shard_by_index(stream: Stream, index: int) -> Shard | None:
    """Return the shard that a sequence number or an iterator names by its index; None when there is none."""
    return stream.shards.get(shard_id(index))


class PositionNames(NamedTuple):
    """How an operation calls the members of a position."""

    kind: str
    number: str


ITERATOR_NAMES = PositionNames("ShardIteratorType", "StartingSequenceNumber")
SUBSCRIPTION_NAMES = PositionNames("Type", "SequenceNumber")


def position_of(
    call: ServiceCall, stream: Stream, shard: Shard, position: Document, names: PositionNames
) -> int:
    """Return the ordinal of the first record that a position asks for.

    Raises:
        RequestRefused: Its members do not fit together, or it is of another shard, or in the future.
    """
    kind: str = position[names.kind]
    at_ms: int | None = position.get("Timestamp")
    number = position.get(names.number)
    takes_number = kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER")
    if takes_number and number is None:
        raise invalid_argument(f"{names.kind} {kind} needs a {names.number}.")
    if not takes_number and number is not None:
        raise invalid_argument(
            f"Must either specify (1) AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER and {names.number} or (2) "
            f"TRIM_HORIZON or LATEST and no {names.number}. Request specified {kind} and also a {names.number}."
        )
    if kind != "AT_TIMESTAMP" and at_ms is not None:
        raise invalid_argument(f"{names.kind} {kind} takes no Timestamp.")
    if kind == "AT_TIMESTAMP":
        if at_ms is None:
            raise invalid_argument(f"{names.kind} AT_TIMESTAMP needs a Timestamp.")
        if at_ms > call.now_ms:
            raise invalid_argument(
                "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
                f"timestampInMillis: {at_ms}, currentTimestampInMillis: {call.now_ms}"
            )
        return shard.ordinal_at_time(at_ms)
    if kind == "TRIM_HORIZON":
        return 0
    if kind == "LATEST":
        return shard.next_ordinal
    if isinstance(shard, ReplayedShard):
        return shard.ordinal_of(int(str(number)), is_after=kind == "AFTER_SEQUENCE_NUMBER")
    parts = _parts_of(call, stream, shard, names.number, str(number))
    # the number at which a closed shard ends has the ordinal of no record
    ordinal = min(parts.ordinal, shard.next_ordinal)
    arrival_ms = shard.arrival_ms(ordinal)
    # the continuation of a subscription without new records lies after the record of its ordinal
    is_behind = arrival_ms is not None and parts.arrival_s > arrival_ms // 1000
    return ordinal + 1 if kind == "AFTER_SEQUENCE_NUMBER" or is_behind else ordinal


def _parts_of(call: ServiceCall, stream: Stream, shard: Shard, name: str, text: str) -> SequenceParts:
    """Return the parts of a number that may be a position in this shard."""
    number = int(text)
    parts = sequence.decode(number)
    message = (
        f"{name} {text} used in {call.operation} on shard {shard.id} in stream {stream.name} "
        f"under account {ACCOUNT} is invalid"
    )
    if parts is None:
        raise invalid_argument(f"{message}.")
    if not is_of_shard(parts, shard):
        sibling = shard_by_index(stream, parts.shard_index)
        raise invalid_argument(
            f"Invalid {name}. It encodes {sibling.id}, while it was used in a call to a shard with {shard.id}"
            if sibling is not None and is_of_shard(parts, sibling)
            else f"{message} because it did not come from this stream."
        )
    if parts.ordinal >= shard.next_ordinal and number != shard.ending_number:
        raise invalid_argument(f"{message}: it is later than any record of the shard.")
    return parts
