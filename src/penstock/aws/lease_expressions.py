"""Turn each lease write into one DynamoDB request: the conditions are the twin of the refusals in `lease_rules.apply_write`.

The values that a write sets are `lease_rules.changes_of`. A contract test compares request and rule for every pair of a small
set of rows and writes. The checkpoint rule compares texts by length first and then by characters. For numbers without leading
zeros this is the order of the numbers.
"""

from __future__ import annotations

from typing import Any, Literal, assert_never

from msgspec import Struct, field

from penstock.aws import lease_codec as codec
from penstock.core.leases.lease_rules import changes_of, claims_of, counts_switch
from penstock.core.leases.lease_writes import (
    Checkpoint,
    Claim,
    Create,
    Delete,
    End,
    LateCheckpoint,
    LeaseUpdate,
    LeaseWrite,
    Promote,
    Release,
    Renew,
    RequestHandover,
    Reset,
    Take,
)
from penstock.core.position import LATEST, Position, Sentinel
from penstock.core.stream_identity import StreamIdentity

_STARTING = (Sentinel.AT_TIMESTAMP, Sentinel.TRIM_HORIZON, Sentinel.LATEST)


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

    def put(self, attribute: str, stored: dict[str, Any] | None) -> None:
        """Set an attribute, or remove it if the value is None."""
        name = self.name(attribute)
        if stored is None:
            self.removes.append(name)
        else:
            [(kind, value)] = stored.items()
            self.sets.append(f"{name} = {self.value(kind, value)}")

    def require(self, attribute: str, operator: str, kind: str, value: Any) -> None:
        """Require that a comparison of an attribute with a value holds."""
        self.conditions.append(f"{self.name(attribute)} {operator} {self.value(kind, value)}")

    def require_none(self, attribute: str) -> None:
        """Require that the row does not have an attribute."""
        self.conditions.append(f"attribute_not_exists({self.name(attribute)})")

    def require_in_claim(self, worker: str, part: str, kind: str, value: str) -> None:
        """Require that a part of a worker's claim has a value."""
        claim = self.name(codec.claim_attribute(worker))
        self.conditions.append(f"{claim}.{self.name(part)} = {self.value(kind, value)}")

    def count_switch(self) -> None:
        """Count a switch of the owner."""
        switches, zero, one = self.name(codec.SWITCHES), self.value("N", "0"), self.value("N", "1")
        self.sets.append(f"{switches} = if_not_exists({switches}, {zero}) + {one}")

    def require_stream(self, stream: StreamIdentity | None) -> None:
        """Require that the row names this stream or no stream; None requires nothing."""
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
            parts.append(f"REMOVE {', '.join(self.removes)}")
        if parts:
            arguments["UpdateExpression"] = " ".join(parts)
        return arguments


def update_for(write: LeaseWrite, previous_owner: str | None = None) -> Update:
    """Return the request for a write other than `Create`.

    Args:
        previous_owner: For `Take`: the owner as last read. The request requires that it is still the owner, because the
            count of owner switches depends on it.
    """
    if isinstance(write, Create):
        raise TypeError("a lease is created by PutItem")
    update = Update()
    _add_conditions(update, write, previous_owner)
    for field_name, value in changes_of(write).items():
        for attribute, stored in codec.attributes_of(field_name, value).items():
            update.put(attribute, stored)
    for worker, claim in claims_of(write).items():
        update.put(codec.claim_attribute(worker), None if claim is None else {"M": codec.write_claim(claim)})
    if counts_switch(write, previous_owner):
        update.count_switch()
    return update


def _add_conditions(update: Update, write: LeaseUpdate, previous_owner: str | None) -> None:  # noqa: C901, PLR0912 - one table
    """Add the conditions of a write: the twin of the refusals in `lease_rules`."""
    if isinstance(write, Take | Renew | Checkpoint | End | Release | Delete | Reset):
        update.require(codec.COUNTER, "=", "N", str(write.counter))
    if isinstance(write, Renew | Checkpoint | End | Release | Promote):
        update.conditions.append(_reader_condition(update, write.worker))
    match write:
        case Take():
            if previous_owner is None:
                update.require_none(codec.OWNER)
            else:
                update.require(codec.OWNER, "=", "S", previous_owner)
            if write.pin_ms is not None:
                update.conditions.append(_checkpoint_condition(update, LATEST))
            update.require_stream(write.stream)
        case Renew():
            if not write.during_handover:
                update.require_none(codec.CHECKPOINT_OWNER)
        case Checkpoint():
            update.conditions.append(_forward_condition(update, write.position, or_same=True))
        case LateCheckpoint():
            if write.seen_claim is not None:
                _require_claim(update, write.seen_claim.worker, write.seen_claim.identity)
            update.conditions.append(_forward_condition(update, write.position, or_same=False))
        case End():
            update.require(codec.CHECKPOINT, "<>", "S", Sentinel.SHARD_END.value)
        case Release():
            if write.position is not None:
                update.conditions.append(_forward_condition(update, write.position, or_same=True))
        case RequestHandover():
            update.require(codec.OWNER, "=", "S", write.owner)
            update.require_none(codec.CHECKPOINT_OWNER)
        case Claim():
            _add_claim_conditions(update, write)
        case Promote():
            update.require_in_claim(write.worker, codec.CLAIM_BATCH, "N", str(write.batch))
            update.require_in_claim(write.worker, codec.CLAIM_END, "S", str(write.position))
            update.conditions.append(_forward_condition(update, write.position, or_same=False))
        case Delete():
            update.conditions.append(_checkpoint_condition(update, write.checkpoint))
        case Reset():
            pass
        case _:
            assert_never(write)


def _add_claim_conditions(update: Update, write: Claim) -> None:
    claim = write.claim
    if not write.is_forfeit:
        update.conditions.append(_reader_condition(update, claim.worker))
        update.conditions.append(_checkpoint_condition(update, write.checkpoint_seen))
    update.require_stream(write.stream)
    _require_claim(update, claim.worker, write.claim_seen)
    for worker, batch in write.dropped_claims:
        update.require_in_claim(worker, codec.CLAIM_BATCH, "N", str(batch))


def _require_claim(update: Update, worker: str, identity: tuple[int, str] | None) -> None:
    """Require that a worker's claim is still the one of this batch and run, or that it has none if `identity` is None."""
    if identity is None:
        update.require_none(codec.claim_attribute(worker))
        return
    batch, run = identity
    update.require_in_claim(worker, codec.CLAIM_BATCH, "N", str(batch))
    update.require_in_claim(worker, codec.CLAIM_RUN, "S", run)


def _reader_condition(update: Update, worker: str) -> str:
    owner, reader, me = (
        update.name(codec.OWNER),
        update.name(codec.CHECKPOINT_OWNER),
        update.value("S", worker),
    )
    return f"({reader} = {me} OR (attribute_not_exists({reader}) AND {owner} = {me}))"


def _checkpoint_condition(update: Update, position: Position) -> str:
    text = update.value("S", codec.checkpoint_text(position))
    condition = f"{update.name(codec.CHECKPOINT)} = {text}"
    if position.is_record:
        condition += f" AND {_sub_condition(update, '=', position.sub_sequence_number)}"
    elif position.sentinel in (Sentinel.AT_TIMESTAMP, Sentinel.LATEST):
        millis = update.name(codec.START_MILLIS)
        if position.timestamp_ms is None:
            condition += f" AND attribute_not_exists({millis})"
        else:
            condition += f" AND {millis} = {update.value('N', str(position.timestamp_ms))}"
    return f"({condition})"


def _sub_condition(update: Update, comparison: Literal["=", "<", "<="], sub: int) -> str:
    """Return the condition on a stored sub-sequence number; a row without one counts as 0, as in the KCL."""
    stored = update.name(codec.CHECKPOINT_SUB)
    compared = f"{stored} {comparison} {update.value('N', str(sub))}"
    holds_for_missing = {"=": sub == 0, "<": sub > 0, "<=": True}[comparison]
    return f"(attribute_not_exists({stored}) OR {compared})" if holds_for_missing else compared


def _forward_condition(update: Update, position: Position, *, or_same: bool) -> str:
    """Return the condition that the checkpoint is before `position`, or equal with `or_same`: the twin of `may_move`."""
    checkpoint = update.name(codec.CHECKPOINT)
    same = _checkpoint_condition(update, position)
    if position.is_shard_end:
        if or_same:
            return f"attribute_exists({checkpoint})"
        # Only `End` may write SHARD_END, so no row meets this condition.
        return f"attribute_not_exists({update.name(codec.KEY)})"
    if not position.is_record:
        return same if or_same else f"attribute_not_exists({update.name(codec.KEY)})"
    text = codec.checkpoint_text(position)
    size = f"size({checkpoint})"
    length, value = update.value("N", str(len(text))), update.value("S", text)
    starting = ", ".join(update.value("S", sentinel.value) for sentinel in _STARTING)
    end = update.value("S", Sentinel.SHARD_END.value)
    sub = _sub_condition(update, "<=" if or_same else "<", position.sub_sequence_number)
    ahead = (
        f"{checkpoint} IN ({starting}) OR ({checkpoint} <> {end} AND ({size} < {length} OR ({size} = {length} AND "
        f"({checkpoint} < {value} OR ({checkpoint} = {value} AND {sub})))))"
    )
    return f"({ahead})"
