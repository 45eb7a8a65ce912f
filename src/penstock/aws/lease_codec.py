"""Read and write rows of the lease table exactly as KCL 2.x does, and tolerate the additions of KCL 3.x.

Rows have Penstock's attributes (`penstock...`) beside the KCL's. Java workers leave them alone, as Penstock leaves unknown
attributes alone. If several streams share the table, a row also has its stream and its shard id beside the key. A row names
parents and children by shard ids, a `Lease` by lease keys. AT_TIMESTAMP and a pinned LATEST keep their moment in
`penstockStartMillis`, so that Java sees a plain sentinel. Each query has an attribute for its claim, the map
`penstockClaim:<worker>`.

Source:
    KCL's lease serializers, of one stream and of several: names, types and spelling of every attribute.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from penstock.core.hash_key import HashRange
from penstock.core.leases.lease import (
    BatchClaim,
    Lease,
    LeaseTerm,
    PastClaim,
    StopNote,
    TipMark,
    lease_key,
    parse_run,
    shard_id_of,
    stream_id_of,
)
from penstock.core.position import Position, at_record, parse_checkpoint, parse_position
from penstock.core.safe_text import text_of
from penstock.core.stream_identity import parse_identity
from penstock.errors import PositionError

Item: TypeAlias = Mapping[str, Mapping[str, Any]]

KEY: Final = "leaseKey"
COUNTER: Final = "leaseCounter"
OWNER: Final = "leaseOwner"
SWITCHES: Final = "ownerSwitchesSinceCheckpoint"
CHECKPOINT: Final = "checkpoint"
CHECKPOINT_SUB: Final = "checkpointSubSequenceNumber"
PENDING: Final = "pendingCheckpoint"
PENDING_SUB: Final = "pendingCheckpointSubSequenceNumber"
PENDING_STATE: Final = "pendingCheckpointState"
PARENTS: Final = "parentShardId"
CHILDREN: Final = "childShardIds"
HASH_START: Final = "startingHashKey"
HASH_END: Final = "endingHashKey"
THROUGHPUT: Final = "throughputKBps"
CHECKPOINT_OWNER: Final = "checkpointOwner"
ENTITY: Final = "entityType"
STREAM_ID: Final = "streamName"
"""Written only if several streams share the table; the KCL keeps its stream's id under this name."""
SHARD_ID: Final = "shardId"
START_MILLIS: Final = "penstockStartMillis"
PENDING_MILLIS: Final = "penstockPendingMillis"
CLAIM_PREFIX: Final = "penstockClaim:"
CLAIM_BATCH: Final = "batch"
CLAIM_RUN: Final = "run"
CLAIM_END: Final = "end"
_UNKNOWN_RUN: Final = "?"
_SAME_RUN: Final = "="
MARK: Final = "penstockMark"
TIP_MILLIS: Final = "penstockTipMillis"
STREAM: Final = "penstockStream"
STOPPED: Final = "penstockStopped"
TERM: Final = "penstockTerm"
RUN: Final = "penstockRun"
LEASE_ENTITY: Final = "LEASE"
_SHOWN_MAX: Final = 300  # characters of an attribute in an error: a row may have 400 KB
METRICS_ENTITY: Final = "WORKER_METRIC_STATS"
KCL3_ENTITIES: Final = frozenset(
    {"STREAM", "LEADER", "CLIENT_VERSION_MIGRATION", "TABLE_MIGRATION", METRICS_ENTITY}
)
"""Rows of KCL 3.5 in the lease table beside the leases."""


class NotALease(ValueError):  # noqa: N818 - names the row, not a fault
    """The row is not a lease, or a broken one; the message has the reason."""


def read_item(item: Item) -> Lease:
    """Return the lease in a row.

    Raises:
        NotALease: The row is another entity, or attributes are missing or have a wrong type.
    """
    entity = item.get(ENTITY, {}).get("S")
    if entity not in (None, LEASE_ENTITY):
        raise NotALease(f"its entityType is {text_of(entity, _SHOWN_MAX)}")
    try:
        sub = int(item[CHECKPOINT_SUB]["N"]) if CHECKPOINT_SUB in item else 0
        pending = item.get(PENDING, {}).get("S")
        return Lease(
            key=item[KEY]["S"],
            counter=int(item[COUNTER]["N"]),
            owner=item.get(OWNER, {}).get("S"),
            checkpoint=parse_checkpoint(item[CHECKPOINT]["S"], sub, _read_number(item, START_MILLIS)),
            owner_switches=int(item[SWITCHES]["N"]) if SWITCHES in item else 0,
            parents=_lease_keys(item, PARENTS),
            children=_lease_keys(item, CHILDREN),
            hash_range=_read_hash_range(item),
            pending_checkpoint=parse_checkpoint(
                pending, _read_number(item, PENDING_SUB) or 0, _read_number(item, PENDING_MILLIS)
            )
            if pending
            else None,
            pending_checkpoint_state=bytes(item[PENDING_STATE]["B"])
            if "B" in item.get(PENDING_STATE, {})
            else None,
            checkpoint_owner=item.get(CHECKPOINT_OWNER, {}).get("S"),
            throughput_kbps=float(item[THROUGHPUT]["N"]) if THROUGHPUT in item else None,
            claims=_read_claims(item),
            mark=TipMark(parse_position(item[MARK]["S"]), _read_number(item, TIP_MILLIS))
            if MARK in item
            else None,
            stream=parse_identity(item[STREAM]["S"]) if STREAM in item else None,
            stop_note=_read_stop_note(item[STOPPED]["M"]) if STOPPED in item else None,
            term=_read_term(item[TERM]["M"]) if TERM in item else None,
            run=parse_run(item[RUN]["S"]) if RUN in item else None,
        )
    except KeyError as error:
        raise NotALease(_why_unreadable(item, str(error.args[0]))) from error
    except (ValueError, TypeError, AttributeError, OverflowError, PositionError) as error:
        raise NotALease(text_of(error, _SHOWN_MAX)) from error


_KINDS: Final = {"S": "text", "N": "number", "SS": "set of texts", "M": "map"}
_KIND_OF: Final = {
    **dict.fromkeys((KEY, CHECKPOINT, MARK, STREAM, RUN), "S"),
    **dict.fromkeys((COUNTER, CHECKPOINT_SUB, START_MILLIS, PENDING_SUB, PENDING_MILLIS), "N"),
    **dict.fromkeys((SWITCHES, THROUGHPUT, TIP_MILLIS), "N"),
    **dict.fromkeys((PARENTS, CHILDREN), "SS"),
    **dict.fromkeys((STOPPED, TERM), "M"),
}


def _why_unreadable(item: Item, missing: str) -> str:
    """Return a description of a damaged row.

    Args:
        missing: The name of a missing attribute or type.
    """
    for name, kind in _KIND_OF.items():
        if name in item and kind not in item[name]:
            return f"its {name} is not a {_KINDS[kind]}"
    if missing in ("S", "N", "M", "B", "L", "SS"):
        return "something inside one of its attributes has another type than in a lease"
    return f"it lacks {missing}"


def _lease_keys(item: Item, name: str) -> frozenset[str]:
    """Return the lease keys of the shards that an attribute names."""
    stream_id = stream_id_of(item[KEY]["S"])
    return frozenset(
        lease_key(stream_id, shard_id) for shard_id in (item[name]["SS"] if name in item else ())
    )


def _read_number(item: Item, name: str) -> int | None:
    return int(item[name]["N"]) if name in item else None


def claim_attribute(worker: str) -> str:
    """Return the name of the attribute that holds a query's claim."""
    return f"{CLAIM_PREFIX}{worker}"


def write_claim(claim: BatchClaim) -> dict[str, dict[str, Any]]:
    """Return the map that stores a claim; the attribute's name has the worker.

    Each position is written as its distance from a neighbouring one. Full positions would make the row larger than the
    kilobyte that DynamoDB bills as one write unit, at every claim and renewal.
    """
    document: dict[str, dict[str, Any]] = {
        CLAIM_BATCH: {"N": str(claim.batch)},
        CLAIM_RUN: {"S": claim.run},
        "start": {"S": _distance_text(claim.start, claim.end)},
        CLAIM_END: {"S": str(claim.end)},
        "note": {"B": claim.note},
        "made": {"N": str(claim.made_ms)},
    }
    if any(past.planned_by is not None for past in claim.past_claims(1 + len(claim.earlier))):
        document["by"] = {"S": " ".join(_planner_texts(claim))}
    if claim.earlier:
        document["earlier"] = {"S": " ".join(_past_claim_texts(claim))}
    return document


def _past_claim_texts(claim: BatchClaim) -> Iterator[str]:
    """Yield each earlier batch as distances from the next batch. The earlier batch's end is left out if the next one starts there."""
    later = PastClaim(claim.batch, claim.start, claim.end)
    for past in claim.earlier:
        text = f"{later.batch - past.batch},{_distance_text(past.start, later.start)}"
        yield text if past.end == later.start else f"{text},{_distance_text(past.end, later.start)}"
        later = past


def _planner_texts(claim: BatchClaim) -> Iterator[str]:
    """Yield the run that planned the batch, then that of each earlier batch; repetitions at the end are left out."""
    planners = [past.planned_by for past in claim.past_claims(1 + len(claim.earlier))]
    while len(planners) > 1 and planners[-1] == planners[-2]:
        planners.pop()
    for planner in planners:
        yield _UNKNOWN_RUN if planner is None else _SAME_RUN if planner == claim.run else planner


def _read_planners(document: Mapping[str, Any], run: str, count: int) -> list[str | None]:
    words = document["by"]["S"].split() if "by" in document else [_UNKNOWN_RUN]
    words += words[-1:] * (count - len(words))
    return [None if word == _UNKNOWN_RUN else run if word == _SAME_RUN else word for word in words]


def _distance_text(position: Position, other: Position) -> str:
    """Return a position as its distance from another one, in Base64; in full if one has no plain sequence number."""
    number, from_number = position.sequence_number, other.sequence_number
    if number is None or from_number is None or str(int(number)) != number:
        return str(position)
    distance = int(number) - int(from_number)
    length = -(-abs(distance).bit_length() // 8)
    digits = urlsafe_b64encode(abs(distance).to_bytes(length, "big")).decode().rstrip("=")
    sub = f".{position.sub_sequence_number}" if position.sub_sequence_number else ""
    return f"{'-' if distance < 0 else '+'}{digits}{sub}"


def _read_distance(text: str, other: Position) -> Position:
    """Return a position that is stored by its distance from another one: a sign and a number, or as it is."""
    if text[:1] not in ("+", "-"):
        return parse_position(text)
    digits, _, sub = text[1:].partition(".")
    distance = int.from_bytes(urlsafe_b64decode(digits + "=" * (-len(digits) % 4)), "big")
    from_number = int(other.sequence_number or "")
    return at_record(str(from_number - distance if text[0] == "-" else from_number + distance), int(sub or 0))


def _read_claims(item: Item) -> tuple[BatchClaim, ...]:
    names = sorted(name for name in item if name.startswith(CLAIM_PREFIX))
    return tuple(_read_claim(name.removeprefix(CLAIM_PREFIX), item[name]["M"]) for name in names)


def _read_claim(worker: str, document: Mapping[str, Any]) -> BatchClaim:
    """Return the claim that a worker's map stores: its batch and range, and the batches that it claimed before."""
    batch, end = int(document[CLAIM_BATCH]["N"]), parse_position(document[CLAIM_END]["S"])
    start = _read_distance(document["start"]["S"], end)
    earlier = document["earlier"]["S"].split() if "earlier" in document else []
    run = document[CLAIM_RUN]["S"]
    planned_by, *planners = _read_planners(document, run, 1 + len(earlier))
    return BatchClaim(
        worker=worker,
        batch=batch,
        run=run,
        start=start,
        end=end,
        note=bytes(document["note"]["B"]),
        made_ms=int(document["made"]["N"]),
        earlier=tuple(_read_past_claims(earlier, planners, batch, start)),
        planned_by=planned_by,
    )


def _read_past_claims(
    texts: Iterable[str], planners: Iterable[str | None], batch: int, start: Position
) -> Iterator[PastClaim]:
    """Yield earlier claims, newest first. Each is stored as distances from the next claim; `batch` and `start` are of the current claim."""
    for each, planner in zip(texts, planners, strict=True):
        gap, start_text, *ends = each.split(",")
        end = _read_distance(ends[0], start) if ends else start
        batch, start = batch - int(gap), _read_distance(start_text, start)
        yield PastClaim(batch, start, end, planner)


def _write_stop_note(note: StopNote) -> dict[str, dict[str, Any]]:
    return {"worker": {"S": note.worker}, "reason": {"S": note.reason}}


def _read_stop_note(document: Mapping[str, Any]) -> StopNote:
    return StopNote(document["worker"]["S"], document["reason"]["S"])


def _write_term(term: LeaseTerm) -> dict[str, dict[str, Any]]:
    return {"worker": {"S": term.worker}, "millis": {"N": str(term.duration_ms)}}


def _read_term(document: Mapping[str, Any]) -> LeaseTerm:
    return LeaseTerm(document["worker"]["S"], int(document["millis"]["N"]))


def _read_hash_range(item: Item) -> HashRange | None:
    start, end = item.get(HASH_START, {}).get("S"), item.get(HASH_END, {}).get("S")
    return HashRange(int(start), int(end)) if start and end else None


def write_item(lease: Lease) -> dict[str, dict[str, Any]]:
    """Return the row of a new lease."""
    item: dict[str, dict[str, Any] | None] = {KEY: {"S": lease.key}}
    for field in _FIELDS:
        item |= attributes_of(field, getattr(lease, field))
    item |= {claim_attribute(claim.worker): {"M": write_claim(claim)} for claim in lease.claims}
    if stream_id_of(lease.key):
        item |= {STREAM_ID: {"S": stream_id_of(lease.key)}, SHARD_ID: {"S": shard_id_of(lease.key)}}
    return {name: value for name, value in item.items() if value is not None}


_FIELDS: Final = tuple(field for field in Lease.__struct_fields__ if field not in ("key", "claims"))
_TEXT_OR_NUMBER: Final = {
    "counter": ("N", COUNTER),
    "owner": ("S", OWNER),
    "owner_switches": ("N", SWITCHES),
    "checkpoint_owner": ("S", CHECKPOINT_OWNER),
    "throughput_kbps": ("N", THROUGHPUT),
    "stream": ("S", STREAM),
    "run": ("S", RUN),
}
"""The fields of a lease that are one attribute, as text."""


def attributes_of(field: str, value: Any) -> dict[str, dict[str, Any] | None]:  # noqa: PLR0911 - one table
    """Return the attributes that store a field of a lease, with their values; None for an attribute that is not in the row."""
    match field:
        case "checkpoint":
            return _stored_position(value, CHECKPOINT, CHECKPOINT_SUB, START_MILLIS)
        case "pending_checkpoint" if value is None:
            return dict.fromkeys((PENDING, PENDING_SUB, PENDING_MILLIS))
        case "pending_checkpoint":
            return _stored_position(value, PENDING, PENDING_SUB, PENDING_MILLIS)
        case "pending_checkpoint_state":
            return {PENDING_STATE: None if value is None else {"B": value}}
        case "mark":
            position, tip_ms = (None, None) if value is None else (value.position, value.tip_ms)
            return {MARK: _stored_value("S", position), TIP_MILLIS: _stored_value("N", tip_ms)}
        case "hash_range":
            start, end = (None, None) if value is None else (value.start, value.end)
            return {HASH_START: _stored_value("S", start), HASH_END: _stored_value("S", end)}
        case "parents" | "children":
            # The attribute names shards, and the service takes no empty set.
            shard_ids = sorted(map(shard_id_of, value))
            return {PARENTS if field == "parents" else CHILDREN: {"SS": shard_ids} if shard_ids else None}
        case "stop_note":
            return {STOPPED: None if value is None else {"M": _write_stop_note(value)}}
        case "term":
            return {TERM: None if value is None else {"M": _write_term(value)}}
    kind, name = _TEXT_OR_NUMBER[field]
    return {name: _stored_value(kind, value)}


def _stored_value(kind: str, value: object) -> dict[str, Any] | None:
    return None if value is None else {kind: str(value)}


def _stored_position(
    position: Position, text: str, sub: str, millis: str
) -> dict[str, dict[str, Any] | None]:
    return {
        text: {"S": checkpoint_text(position)},
        sub: {"N": str(position.sub_sequence_number)},
        millis: _stored_value("N", position.timestamp_ms),
    }


def checkpoint_text(position: Position) -> str:
    """Return a position as the KCL spells it."""
    if position.sequence_number is not None:
        return position.sequence_number
    return "" if position.sentinel is None else position.sentinel.value
