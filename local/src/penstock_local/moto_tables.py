"""A DynamoDB table of moto as a document and back, whatever requests made it.

The requests that would make a table again are not kept: moto accepts table shapes by UpdateTable that it
refuses in CreateTable, and it gives a new table a new creation time and a new stream. The state of its objects
is kept instead. moto is imported late: a server that is asked for Kinesis only never pays for it.
"""

from __future__ import annotations

import base64
import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

import msgspec

Backend = Any
"""moto's tables of one account and region (`DynamoDBBackend`)."""

Table = Any
"""One table of moto."""

_MOMENT = "$moment"
_INDEXES = ("indexes", "global_indexes")
# made again with the table, or kept elsewhere
_NOT_KEPT = {"items", "stream_shard", "lambda_event_source_mappings", "account_id", *_INDEXES}


# -- a table without its items ------------------------------------------------------------------------------


def table_state(table: Table) -> bytes:
    """Return everything about a table but its items."""
    state: dict[str, Any] = {"class": type(table).__name__, "fields": _fields(table, _NOT_KEPT)}
    for kind in _INDEXES:
        state[kind] = [_fields(index, set()) for index in getattr(table, kind)]
    return msgspec.json.encode(state, order="deterministic")


def make_table(state: bytes, account: str) -> Table:
    """Return an empty table in this state."""
    models = _models()
    document = msgspec.json.decode(state)
    fields = document["fields"]
    keys = (("hash_key_attr", "hash_key_type"), ("range_key_attr", "range_key_type"))
    # the definitions that moto shows may lack the keys after an UpdateTable, and its constructor needs them
    known = [
        {"AttributeName": fields[name], "AttributeType": fields[kind]}
        for name, kind in keys
        if fields[name] is not None
    ]
    known_classes = {each.__name__: each for each in (models.Table, *models.Table.__subclasses__())}
    table_class = known_classes[document["class"]]
    table = table_class.__new__(table_class)
    models.Table.__init__(table, fields["name"], account, fields["region_name"], fields["schema"], known)
    renew_table(table, state)
    return table


def renew_table(table: Table, state: bytes) -> None:
    """Put a table in this state; its items stay."""
    models = _models()
    document = msgspec.json.decode(state)
    table.__dict__.update(_restore_fields(document["fields"]))
    kinds = (models.LocalSecondaryIndex, models.GlobalSecondaryIndex)
    for attribute, kind in zip(_INDEXES, kinds, strict=True):
        setattr(table, attribute, [_index(kind, fields) for fields in document[attribute]])
    if table.stream_specification["StreamEnabled"] and table.stream_shard is None:
        table.stream_shard = models.StreamShard(table.account_id, table)
        # its records are not kept; new ones must not reuse their numbers
        table.stream_shard.starting_sequence_number += time.time_ns() // 1000


def _index(kind: Any, fields: dict[str, Any]) -> Any:
    index = kind(fields["name"], fields["schema"], fields["projection"], fields["table_key_attrs"])
    index.__dict__.update(_restore_fields(fields))
    return index


# -- items --------------------------------------------------------------------------------------------------


def normal_key(table: Table, attributes: dict[str, Any]) -> list[Any] | None:
    """Return the key in a request's attributes as `key_of` would; None if they have no key of the table."""
    try:
        return [_json_value(_moto_value(attributes[name])) for name in table.table_key_attrs]
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def find_item(table: Table, key: list[Any]) -> Any | None:
    """Return the item with this key (attribute values), or None."""
    found = table.items.get(_moto_value(key[0]))
    return found if found is None or not table.range_key_attr else found.get(_moto_value(key[1]))


def set_item(table: Table, key: list[Any], attributes: dict[str, Any] | None) -> None:
    """Store an item without moto's checks; attributes of None remove it."""
    from moto.dynamodb.models.dynamo_type import Item

    hash_key, *ranges = (_moto_value(part) for part in key)
    entries, entry_key = (
        (table.items[hash_key], ranges[0]) if table.range_key_attr else (table.items, hash_key)
    )
    if attributes is None:
        entries.pop(entry_key, None)
        return
    item = Item(hash_key, ranges[0] if ranges else None, {})
    for name, value in attributes.items():
        # not by `item.attrs[name]`, which measures the whole item for every attribute
        dict.__setitem__(item.attrs, name, _moto_value(value))
    entries[entry_key] = item


def items_of(table: Table) -> Iterator[Any]:
    """Return all items of a table."""
    for found in table.items.values():
        if table.range_key_attr:
            yield from found.values()
        else:
            yield found


def key_of(item: Any) -> list[Any]:
    """Return the key of an item: one or two attribute values."""
    return [_json_value(part) for part in (item.hash_key, item.range_key) if part is not None]


def attributes_of(item: Any) -> bytes:
    """Return the attributes of an item as JSON."""
    return msgspec.json.encode({name: _json_value(value) for name, value in item.attrs.items()})


# -- backups and policies -----------------------------------------------------------------------------------


def extras_of(backend: Backend, known: dict[str, bytes]) -> dict[str, bytes]:
    """Return the encoded backups and policies by names for `set_extra`. A backup never changes, so one in `known` is not encoded again."""
    found = {}
    for arn, backup in backend.backups.items():
        name = f"backup {arn}"
        found[name] = known.get(name) or _backup_state(backup)
    for arn, policy in getattr(backend, "resource_policies", {}).items():
        found[f"policy {arn}"] = msgspec.json.encode(_fields(policy, set()), order="deterministic")
    return found


def set_extra(backend: Backend, name: str, state: bytes | None) -> None:
    """Put the backup or policy of this name into moto; a state of None removes it."""
    models = _models()
    kind, arn = name.split(" ", 1)
    entries = backend.backups if kind == "backup" else backend.resource_policies
    if state is None:
        entries.pop(arn, None)
        return
    document = msgspec.json.decode(state)
    if kind == "policy":
        entry = models.ResourcePolicy(document["resource_arn"], document["policy_doc"])
        entry.__dict__.update(_restore_fields(document))
    else:
        table = make_table(msgspec.json.encode(document["table"]), backend.account_id)
        for key, attributes in document["items"]:
            set_item(table, key, attributes)
        entry = models.Backup(backend.account_id, backend.region_name, document["fields"]["name"], table)
        entry.__dict__.update(_restore_fields(document["fields"]))
    entries[arn] = entry


def _backup_state(backup: Any) -> bytes:
    items = [[key_of(item), msgspec.Raw(attributes_of(item))] for item in items_of(backup.table)]
    fields = _fields(backup, {"table"})
    return msgspec.json.encode(
        {"fields": fields, "table": msgspec.Raw(table_state(backup.table)), "items": items}
    )


def _models() -> Any:
    from moto.dynamodb.models import table

    return table


# -- values -------------------------------------------------------------------------------------------------


def _fields(found: Any, skipped_names: set[str]) -> dict[str, Any]:
    return {name: _json_value(value) for name, value in vars(found).items() if name not in skipped_names}


def _json_value(value: Any) -> Any:
    """Return a value of moto as JSON has it."""
    from moto.dynamodb.models.dynamo_type import DynamoType

    if isinstance(value, DynamoType):
        return {value.type: _json_value(value.value)}
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return {name: _json_value(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_json_value(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return {_MOMENT: value.isoformat()}
    raise TypeError(f"moto holds a {type(value).__name__}, which the state folder cannot keep")


def _restore_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _restore_moments(value) for name, value in fields.items()}


def _restore_moments(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_MOMENT}:
            return dt.datetime.fromisoformat(value[_MOMENT])
        return {name: _restore_moments(each) for name, each in value.items()}
    return [_restore_moments(each) for each in value] if isinstance(value, list) else value


def _moto_value(document: Any) -> Any:
    """Return an attribute value of JSON as a value of moto."""
    from moto.dynamodb.models.dynamo_type import DynamoType

    return DynamoType(_decode_binary(document))


def _decode_binary(document: dict[str, Any]) -> dict[str, Any]:
    """Return an attribute value whose binary parts are bytes instead of Base64."""
    ((kind, value),) = document.items()
    match kind:
        case "B":
            return {kind: base64.b64decode(value)}
        case "BS":
            return {kind: [base64.b64decode(each) for each in value]}
        case "M":
            return {kind: {name: _decode_binary(each) for name, each in value.items()}}
        case "L":
            return {kind: [_decode_binary(each) for each in value]}
        case _:
            return document
