"""Fixes of moto's DynamoDB that are installed in this process, where moto has a place for them.

moto is wrong about batches and conditions, and slow with large answers and wide items. Each fix depends on names inside of moto:
if this moto has others, the fix is left out, and a log record says which requests are served as moto serves them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

_NARROW_ATTRIBUTES_MAX = 64
_ROOM_BYTES = 405_000
_PLAIN_KINDS = frozenset({"S", "N", "BOOL", "NULL", "SS", "NS"})

_log = logging.getLogger("penstock_local")


def install_fixes() -> list[str]:
    """Install all fixes; a second call changes nothing. Return the effects of those that are left out."""
    left_out = []
    for install, effect in _FIXES.items():
        try:
            install()
        except (ImportError, AttributeError) as error:
            _log.info("%s: this moto has no place for the fix (%s)", effect, error)
            left_out.append(effect)
    return left_out


def _replace_method(owner: type, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a method by the result of `wrap(method)`; a second call changes nothing."""
    original = getattr(owner, name)
    if getattr(original, "is_of_penstock", False):
        return
    replacement = wrap(original)
    replacement.is_of_penstock = True  # a mark that it is in place
    setattr(owner, name, replacement)


# -- batches ------------------------------------------------------------------------------------------------


def _install_batch_writes() -> None:
    """Accept batch writes of equal items to two tables: moto takes them for one item that is written twice."""
    from moto.dynamodb.responses import DynamoHandler

    _replace_method(DynamoHandler, "_contains_duplicates", _pass_writes)


def _pass_writes(original: Any) -> Any:
    def contains_duplicates(self: Any, keys: list[Any]) -> bool:
        # Writes are given as texts, reads as keys. `moto_rules.check_by_tables` compares the writes of each table.
        is_write = bool(keys) and isinstance(keys[0], str)
        return not is_write and bool(original(self, keys))

    return contains_duplicates


# -- conditions ---------------------------------------------------------------------------------------------


def _install_comparisons() -> None:
    """Make conditions that compare values of different types false, as the service does.

    moto raises, so that a scan of rows of several kinds failed with its filter; it also raises for the size of a missing attribute,
    and takes true for the number 1 and a missing attribute for a NULL.
    """
    from moto.dynamodb import comparisons
    from moto.dynamodb.models.dynamo_type import DynamoType

    equalities: dict[type, Any] = {
        comparisons.OpEqual: partial(_equal_by_types, if_types_differ=False),
        comparisons.OpNotEqual: partial(_equal_by_types, if_types_differ=True),
    }
    for owner in [*comparisons.COMPARATOR_CLASS.values(), comparisons.FuncBetween]:
        _replace_method(owner, "expr", equalities.get(owner, _false_between_types))
    _replace_method(DynamoType, "compare", _false_between_types)


def _equal_by_types(original: Any, *, if_types_differ: bool) -> Any:
    @wraps(original)
    def compare(condition: Any, item: Any) -> Any:
        sides = (condition.lhs, condition.rhs)
        if all(hasattr(side, "get_type") for side in sides):  # a function, such as size, has none
            first, second = (side.get_type(item) for side in sides)
            if first != second:
                return if_types_differ
        return original(condition, item)

    return _false_between_types(compare)


def _false_between_types(original: Any) -> Any:
    @wraps(original)
    def compare(*arguments: Any) -> bool:
        try:
            return bool(original(*arguments))
        except (TypeError, AttributeError, ValueError):
            return False

    return compare


# -- wide items ---------------------------------------------------------------------------------------------


def _install_item_sizes() -> None:
    """Store items of many attributes in a time that grows with their number, not with its square.

    moto adds up the whole item each time that one attribute is set. Here a wide item is added up only when what
    was set since the last time could have made it too large.
    """
    from moto.dynamodb.models.dynamo_type import DynamoType, LimitedSizeDict
    from moto.dynamodb.models.utilities import bytesize

    def size_of(value: Any) -> int:
        return int(value.size() if type(value) is DynamoType else bytesize(str(value)))

    def with_room(original: Any) -> Any:
        def set_item(self: Any, key: str, value: Any) -> None:
            added = bytesize(key) + size_of(value)
            room = getattr(self, "room_bytes", 0) - added
            if len(self) < _NARROW_ATTRIBUTES_MAX or room < 0:
                original(self, key, value)
                room = _ROOM_BYTES - sum(bytesize(name) + size_of(item) for name, item in self.items())
            else:
                dict.__setitem__(self, key, value)
            self.room_bytes = room

        return set_item

    _replace_method(LimitedSizeDict, "__setitem__", with_room)


# -- large answers ------------------------------------------------------------------------------------------


def _install_serializer() -> None:
    """Write the attribute values of answers in one step.

    moto looks for each of the ten members that an attribute value may have under several names, one value at a time: most of
    the time of a scan. A value of text, numbers or flags already has its form on the wire, so it is passed on, also inside
    maps and lists; bytes become Base64. Sets of bytes, and values of an unexpected form, stay moto's.
    """
    from moto.core.serialize import SERVICE_SPECIFIC_SERIALIZERS, JSONSerializer

    class AttributeSerializer(JSONSerializer):
        def _serialize_type_structure(self, serialized: Any, value: Any, shape: Any, key: str) -> None:
            written = _wire_form(value, self._base64) if shape.name == "AttributeValue" else None
            if written is None:
                super()._serialize_type_structure(serialized, value, shape, key)
            else:
                self._default_serialize(serialized, written, shape, key)

    SERVICE_SPECIFIC_SERIALIZERS.setdefault("dynamodb", {}).setdefault("json", AttributeSerializer)


def _wire_form(value: Any, base64_of: Callable[[Any], str]) -> Any:
    """Return an attribute value in its form on the wire; None to leave it to moto."""
    if type(value) is not dict or len(value) != 1:
        return None
    ((kind, content),) = value.items()
    if kind in _PLAIN_KINDS:
        return value
    if kind == "B":
        return {kind: base64_of(content)}
    written: Any
    if kind == "M" and type(content) is dict:
        written = {name: _wire_form(inner, base64_of) for name, inner in content.items()}
        return None if None in written.values() else {kind: written}
    if kind == "L" and type(content) is list:
        written = [_wire_form(inner, base64_of) for inner in content]
        return None if None in written else {kind: written}
    return None


_FIXES: dict[Callable[[], None], str] = {
    _install_batch_writes: "a batch of equal items for two tables is refused",
    _install_comparisons: "conditions on values of different types are refused",
    _install_item_sizes: "items of thousands of attributes are slow",
    _install_serializer: "large scans are slow",
}
"""The fixes, each with the effect of leaving it out."""
