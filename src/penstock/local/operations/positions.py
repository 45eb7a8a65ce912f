"""Where reading begins: positions in a shard, as requests name them."""

from __future__ import annotations

from typing import Any

from penstock.local import sequence
from penstock.local.operations.call import ServiceCall
from penstock.local.sequence import SequenceParts
from penstock.local.service_errors import invalid_argument
from penstock.local.shard import Shard, shard_id
from penstock.local.store import ACCOUNT
from penstock.local.stream import Stream

Document = dict[str, Any]


def is_of(parts: SequenceParts, shard: Shard) -> bool:
    """Return whether a number is of this shard, not of one with its id in another or an earlier stream."""
    return (parts.created_s, parts.stream_tag, parts.shard_index) == (
        shard.created_s,
        shard.stream_tag,
        shard.index,
    )


def shard_by_index(stream: Stream, index: int) -> Shard | None:
    """Return the shard that a sequence number or an iterator names by its index; None when there is none."""
    return stream.shards.get(shard_id(index))


def position_of(call: ServiceCall, stream: Stream, shard: Shard, request: Document) -> int:
    """Return the ordinal of the first record that a request of GetShardIterator is about."""
    kind: str = request["ShardIteratorType"]
    at_ms: int | None = request.get("Timestamp")
    number = request.get("StartingSequenceNumber")
    takes_number = kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER")
    if takes_number and number is None:
        raise invalid_argument(f"ShardIteratorType {kind} needs a StartingSequenceNumber.")
    if not takes_number and number is not None:
        raise invalid_argument(
            "Must either specify (1) AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER and StartingSequenceNumber or (2) "
            f"TRIM_HORIZON or LATEST and no StartingSequenceNumber. Request specified {kind} and also a "
            "StartingSequenceNumber."
        )
    if kind != "AT_TIMESTAMP" and at_ms is not None:
        raise invalid_argument(f"ShardIteratorType {kind} takes no Timestamp.")
    if kind == "AT_TIMESTAMP":
        if at_ms is None:
            raise invalid_argument("ShardIteratorType AT_TIMESTAMP needs a Timestamp.")
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
    at = _position_of_number(stream, shard, str(number))
    return at + 1 if kind == "AFTER_SEQUENCE_NUMBER" else at


def _position_of_number(stream: Stream, shard: Shard, text: str) -> int:
    number = int(text)
    parts = sequence.decode(number)
    where = f"on shard {shard.id} in stream {stream.name} under account {ACCOUNT}"
    if parts is None:
        raise invalid_argument(f"StartingSequenceNumber {text} used in GetShardIterator {where} is invalid.")
    if not is_of(parts, shard):
        sibling = shard_by_index(stream, parts.shard_index)
        raise invalid_argument(
            f"Invalid StartingSequenceNumber. It encodes {sibling.id}, while it was used in a call to a shard "
            f"with {shard.id}"
            if sibling is not None and is_of(parts, sibling)
            else f"StartingSequenceNumber {text} used in GetShardIterator {where} is invalid because it did not "
            "come from this stream."
        )
    if number == shard.ending_number:
        return shard.next_ordinal
    if parts.ordinal >= shard.next_ordinal:
        raise invalid_argument(
            f"StartingSequenceNumber {text} used in GetShardIterator {where} is invalid: "
            "it is later than any record of the shard."
        )
    return parts.ordinal
