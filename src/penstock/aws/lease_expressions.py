"""Turn each lease write into one DynamoDB request: the twin of `penstock.core.leases.lease_rules.apply_write`.

A contract test asks both the same questions about every pair of a small set of rows and writes. The conditions are built
from few pieces. The checkpoint rule compares texts by length first and then by characters. For numbers without leading zeros
this is the order of the numbers.
"""

from __future__ import annotations

from typing import Any, Literal, assert_never

from msgspec import Struct, field

from penstock.aws import lease_codec as codec
from penstock.core.leases.lease import TipMark, mark_at
from penstock.core.leases.lease_writes import (
    Checkpoint,
    Claim,
    Create,
    Delete,
    End,
    LateCheckpoint,
    LeaseWrite,
    Promote,
    Release,
    Renew,
    RequestHandover,
    Reset,
    Take,
)
from penstock.core.position import LATEST, SHARD_END, Position, Sentinel
from penstock.core.stream_identity import StreamIdentity

_STARTING = (Sentinel.AT_TIMESTAMP, Sentinel.TRIM_HORIZON, Sentinel.LATEST)
_PENDING = (codec.PENDING, codec.PENDING_SUB, codec.PENDING_STATE, codec.PENDING_MILLIS)


class Update(Struct):
    """An UpdateItem (or DeleteItem) under construction; every attribute name and value is a placeholder."""

    conditions: list[str] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    removes: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)

    def name(self, attribute: str) -> str:
        """Return the placeholder of an attribute."""
        placeholder = f"#{attribute}"
        if not attribute.isalnum():  # a claim's attribute holds a worker's id
            known = [name for name, stands_for in self.names.items() if stands_for == attribute]
            placeholder = known[0] if known else f"#a{len(self.names)}"
        self.names[placeholder] = attribute
        return placeholder

    def value(self, kind: str, value: Any) -> str:
        """Return the placeholder of a value."""
        for placeholder, known in self.values.items():
            if known == {kind: value}:
                return placeholder
        placeholder = f":v{len(self.values)}"
        self.values[placeholder] = {kind: value}
        return placeholder

    def set(self, attribute: str, kind: str, value: Any) -> None:
        """Set an attribute."""
        self.sets.append(f"{self.name(attribute)} = {self.value(kind, value)}")

    def set_or_remove(self, attribute: str, kind: str, value: Any) -> None:
        """Set an attribute, or remove it if the value is None."""
        if value is None:
            self.remove(attribute)
        else:
            self.set(attribute, kind, value if kind == "M" else str(value))

    def remove(self, *attributes: str) -> None:
        """Remove attributes."""
        self.removes += [self.name(attribute) for attribute in attributes]

    def require(self, attribute: str, operator: str, kind: str, value: Any) -> None:
        """Require a comparison."""
        self.conditions.append(f"{self.name(attribute)} {operator} {self.value(kind, value)}")

    def set_checkpoint(self, position: Position, mark: TipMark | None) -> None:
        """Set the checkpoint and the mark of a Penstock worker, and remove the starting moment of the old checkpoint."""
        self.set_mark(mark)
        self.set(codec.CHECKPOINT, "S", codec.checkpoint_text(position))
        self.set(codec.CHECKPOINT_SUB, "N", str(position.sub_sequence_number))
        self.set_or_remove(codec.START_MILLIS, "N", position.timestamp_ms)

    def set_mark(self, mark: TipMark | None) -> None:
        """Set the mark of a Penstock worker, or remove it."""
        self.set_or_remove(codec.MARK, "S", None if mark is None else mark.position)
        self.set_or_remove(codec.TIP_MILLIS, "N", None if mark is None else mark.tip_ms)

    def count_switch(self) -> None:
        """Count a switch of the owner."""
        switches, zero, one = self.name(codec.SWITCHES), self.value("N", "0"), self.value("N", "1")
        self.sets.append(f"{switches} = if_not_exists({switches}, {zero}) + {one}")

    def set_stream(self, stream: StreamIdentity | None) -> None:
        """Set the shard's stream, if the write names one."""
        if stream is not None:
            self.set(codec.STREAM, "S", str(stream))

    def require_stream(self, stream: StreamIdentity | None) -> None:
        """Require that the row names this stream, or none."""
        if stream is not None:
            name, mine = self.name(codec.STREAM), self.value("S", str(stream))
            self.conditions.append(f"(attribute_not_exists({name}) OR {name} = {mine})")

    def request(self) -> dict[str, Any]:
        """Return the arguments for UpdateItem or DeleteItem."""
        arguments: dict[str, Any] = {
            "ConditionExpression": " AND ".join(
                [f"attribute_exists({self.name(codec.KEY)})", *self.conditions]
            ),
            "ExpressionAttributeNames": self.names,
        }
        if self.values:
            arguments["ExpressionAttributeValues"] = self.values
        parts = []
        if self.sets:
            parts.append(f"SET {', '.join(self.sets)}")
        if self.removes:
            parts.append(f"REMOVE {', '.join(dict.fromkeys(self.removes))}")
        if parts:
            arguments["UpdateExpression"] = " ".join(parts)
        return arguments


def update_for(write: LeaseWrite, previous_owner: str | None = None) -> Update:  # noqa: C901, PLR0912 - one table
    """Return the request for a write other than `Create`.

    Args:
        previous_owner: For `Take`: the owner as last read. The request requires that it is still the owner, because the
            count of owner switches depends on it.
    """
    update = Update()
    match write:
        case Create():
            raise TypeError("a lease is created by PutItem")
        case Take():
            _take(update, write, previous_owner)
        case Renew():
            _renew(update, write)
        case Checkpoint():
            _fence(update, write.counter, write.worker)
            update.conditions.append(_forward_condition(update, write.position, or_same=True))
            update.set_checkpoint(write.position, mark_at(write.position, write.tip_ms))
            update.set(codec.SWITCHES, "N", "0")
            update.remove(*_PENDING)
        case LateCheckpoint():
            if write.seen_claim is not None:
                update.conditions += _claim_is(update, write.seen_claim.worker, write.seen_claim.identity)
            update.conditions.append(_forward_condition(update, write.position, or_same=False))
            update.set_checkpoint(write.position, mark_at(write.position))
        case End():
            _end(update, write)
        case Release():
            _release(update, write)
        case RequestHandover():
            update.require(codec.OWNER, "=", "S", write.owner)
            update.conditions.append(f"attribute_not_exists({update.name(codec.CHECKPOINT_OWNER)})")
            update.set(codec.OWNER, "S", write.worker)
            update.set(codec.CHECKPOINT_OWNER, "S", write.owner)
        case Claim():
            _claim(update, write)
        case Promote():
            _promote(update, write)
        case Delete():
            update.require(codec.COUNTER, "=", "N", str(write.counter))
            update.conditions.append(_checkpoint_is(update, write.checkpoint))
        case Reset():
            _counter(update, write.counter)
            update.set_checkpoint(write.position, mark_at(write.position) if write.is_followed else None)
            update.set(codec.SWITCHES, "N", "0")
            update.remove(codec.OWNER, codec.CHECKPOINT_OWNER, codec.STOPPED, codec.TERM, *_PENDING)
            if write.claim is not None:
                update.set(codec.claim_attribute(write.claim.worker), "M", codec.write_claim(write.claim))
            elif write.forget is not None:
                update.remove(codec.claim_attribute(write.forget))
        case _:
            assert_never(write)
    return update


def _counter(update: Update, counter: int) -> None:
    update.require(codec.COUNTER, "=", "N", str(counter))
    update.set(codec.COUNTER, "N", str(counter + 1))


def _fence(update: Update, counter: int, reader: str) -> None:
    _counter(update, counter)
    update.conditions.append(_reader_is(update, reader))


def _renew(update: Update, write: Renew) -> None:
    _fence(update, write.counter, write.worker)
    if not write.during_handover:
        update.conditions.append(f"attribute_not_exists({update.name(codec.CHECKPOINT_OWNER)})")
    if write.throughput_kbps is not None:
        update.set(codec.THROUGHPUT, "N", str(write.throughput_kbps))
    if write.tip is not None:
        update.set_mark(write.tip)
    update.set_stream(write.stream)
    stopped = None if write.stopped is None else codec.write_stop_note(write.stopped)
    update.set_or_remove(codec.STOPPED, "M", stopped)
    update.set_or_remove(codec.TERM, "M", None if write.term is None else codec.write_term(write.term))
    if write.run is not None:
        update.set(codec.RUN, "S", str(write.run))


def _take(update: Update, write: Take, previous_owner: str | None) -> None:
    _counter(update, write.counter)
    if previous_owner is None:
        update.conditions.append(f"attribute_not_exists({update.name(codec.OWNER)})")
    else:
        update.require(codec.OWNER, "=", "S", previous_owner)
    if previous_owner not in (None, write.worker):
        update.count_switch()
    update.set(codec.OWNER, "S", write.worker)
    update.remove(codec.CHECKPOINT_OWNER, codec.STOPPED, codec.TERM, *_PENDING)
    update.set_or_remove(codec.RUN, "S", write.run)
    if write.pin_ms is not None:
        update.conditions.append(_checkpoint_is(update, LATEST))
        update.set(codec.START_MILLIS, "N", str(write.pin_ms))
    update.require_stream(write.stream)
    update.set_stream(write.stream)


def _end(update: Update, write: End) -> None:
    _fence(update, write.counter, write.worker)
    update.require(codec.CHECKPOINT, "<>", "S", Sentinel.SHARD_END.value)
    update.set_checkpoint(SHARD_END, None)
    update.set(codec.SWITCHES, "N", "0")
    update.remove(codec.OWNER, codec.CHECKPOINT_OWNER, *_PENDING)
    if write.children:
        update.set(codec.CHILDREN, "SS", codec.write_shard_ids(write.children))


def _release(update: Update, write: Release) -> None:
    _fence(update, write.counter, write.worker)
    handed_on = write.next_owner not in (None, write.worker)
    if write.position is not None:
        update.conditions.append(_forward_condition(update, write.position, or_same=True))
        update.set_checkpoint(write.position, write.tip or mark_at(write.position))
        # A checkpoint sets the number of switches to 0, a hand-over adds 1.
        update.set(codec.SWITCHES, "N", "1" if handed_on else "0")
    else:
        if write.tip is not None:
            update.set_mark(write.tip)
        if handed_on:
            update.count_switch()
    update.set_or_remove(codec.OWNER, "S", write.next_owner)
    update.remove(codec.CHECKPOINT_OWNER, codec.STOPPED, codec.TERM, *_PENDING)


def _claim(update: Update, write: Claim) -> None:
    claim = write.claim
    if not write.forfeits:
        update.conditions.append(_reader_is(update, claim.worker))
        update.conditions.append(_checkpoint_is(update, write.checkpoint_seen))
    update.require_stream(write.stream)
    update.conditions += _claim_is(update, claim.worker, write.before)
    for worker, batch in write.dropped:
        other = update.name(codec.claim_attribute(worker))
        number = update.value("N", str(batch))
        update.conditions.append(f"{other}.{update.name(codec.CLAIM_BATCH)} = {number}")
        update.remove(codec.claim_attribute(worker))
    update.set(codec.claim_attribute(claim.worker), "M", codec.write_claim(claim))
    if write.forfeits:
        return
    update.set(codec.PENDING, "S", codec.checkpoint_text(claim.end))
    update.set(codec.PENDING_SUB, "N", str(claim.end.sub_sequence_number))
    update.remove(codec.PENDING_STATE)
    update.set_or_remove(codec.PENDING_MILLIS, "N", claim.end.timestamp_ms)
    if write.moves_checkpoint:
        update.set_checkpoint(claim.start, mark_at(claim.start, write.tip_ms))
        update.set(codec.SWITCHES, "N", "0")


def _promote(update: Update, write: Promote) -> None:
    update.conditions.append(_reader_is(update, write.worker))
    own = update.name(codec.claim_attribute(write.worker))
    update.conditions += [
        f"{own}.{update.name(codec.CLAIM_BATCH)} = {update.value('N', str(write.batch))}",
        f"{own}.{update.name(codec.CLAIM_END)} = {update.value('S', str(write.position))}",
    ]
    update.conditions.append(_forward_condition(update, write.position, or_same=False))
    update.set_checkpoint(write.position, mark_at(write.position, write.tip_ms))
    update.set(codec.SWITCHES, "N", "0")
    update.remove(*_PENDING)


def _claim_is(update: Update, worker: str, identity: tuple[int, str] | None) -> list[str]:
    claim = update.name(codec.claim_attribute(worker))
    if identity is None:
        return [f"attribute_not_exists({claim})"]
    batch, run = identity
    return [
        f"{claim}.{update.name(codec.CLAIM_BATCH)} = {update.value('N', str(batch))}",
        f"{claim}.{update.name(codec.CLAIM_RUN)} = {update.value('S', run)}",
    ]


def _reader_is(update: Update, worker: str) -> str:
    owner, reader, me = (
        update.name(codec.OWNER),
        update.name(codec.CHECKPOINT_OWNER),
        update.value("S", worker),
    )
    return f"({reader} = {me} OR (attribute_not_exists({reader}) AND {owner} = {me}))"


def _checkpoint_is(update: Update, position: Position) -> str:
    text = update.value("S", codec.checkpoint_text(position))
    condition = f"{update.name(codec.CHECKPOINT)} = {text}"
    if position.is_record:
        condition += f" AND {_sub_is(update, '=', position.sub_sequence_number)}"
    elif position.sentinel in (Sentinel.AT_TIMESTAMP, Sentinel.LATEST):
        millis = update.name(codec.START_MILLIS)
        if position.timestamp_ms is None:
            condition += f" AND attribute_not_exists({millis})"
        else:
            condition += f" AND {millis} = {update.value('N', str(position.timestamp_ms))}"
    return f"({condition})"


def _sub_is(update: Update, comparison: Literal["=", "<", "<="], sub: int) -> str:
    """Return the condition on a stored sub-sequence number; a row without one counts as 0, as in the KCL."""
    stored = update.name(codec.CHECKPOINT_SUB)
    compared = f"{stored} {comparison} {update.value('N', str(sub))}"
    is_missing_right = {"=": sub == 0, "<": sub > 0, "<=": True}[comparison]
    return f"(attribute_not_exists({stored}) OR {compared})" if is_missing_right else compared


def _forward_condition(update: Update, position: Position, *, or_same: bool) -> str:
    """Return the condition that the checkpoint may move to `position`: the twin of `may_move`."""
    checkpoint = update.name(codec.CHECKPOINT)
    same = _checkpoint_is(update, position)
    if position.is_shard_end:
        if or_same:
            return f"attribute_exists({checkpoint})"
        # Nothing may write SHARD_END but `End`; the condition is one that no row meets.
        return f"attribute_not_exists({update.name(codec.KEY)})"
    if not position.is_record:
        return same if or_same else f"attribute_not_exists({update.name(codec.KEY)})"
    text = codec.checkpoint_text(position)
    size = f"size({checkpoint})"
    length, value = update.value("N", str(len(text))), update.value("S", text)
    starting = ", ".join(update.value("S", sentinel.value) for sentinel in _STARTING)
    end = update.value("S", Sentinel.SHARD_END.value)
    sub = _sub_is(update, "<=" if or_same else "<", position.sub_sequence_number)
    ahead = (
        f"{checkpoint} IN ({starting}) OR ({checkpoint} <> {end} AND ({size} < {length} OR ({size} = {length} AND "
        f"({checkpoint} < {value} OR ({checkpoint} = {value} AND {sub})))))"
    )
    return f"({ahead})"
