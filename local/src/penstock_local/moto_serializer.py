"""Writes the attribute values of moto's DynamoDB answers in one step.

moto looks for each of the ten members that an attribute value may have under several names, one value at a time: most of
the time of a scan. A value of text, numbers or flags already has its form on the wire, so it is passed on, also inside
maps and lists; bytes become Base64. Sets of bytes, and values of an unexpected form, stay moto's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("penstock_local")
_PLAIN = frozenset({"S", "N", "BOOL", "NULL", "SS", "NS"})


def install_serializer() -> bool:
    """Install the serializer for DynamoDB in this process's moto; a second call changes nothing.

    Returns:
        False if this moto has no place for it: then its own serializer does the work, more slowly.
    """
    try:
        from moto.core.serialize import SERVICE_SPECIFIC_SERIALIZERS, JSONSerializer
    except ImportError:
        _log.info("this moto takes no serializer for a service: large scans are slow")
        return False

    class AttributeSerializer(JSONSerializer):
        def _serialize_type_structure(self, serialized: Any, value: Any, shape: Any, key: str) -> None:
            written = _wire_form(value, self._base64) if shape.name == "AttributeValue" else None
            if written is None:
                super()._serialize_type_structure(serialized, value, shape, key)
            else:
                self._default_serialize(serialized, written, shape, key)

    SERVICE_SPECIFIC_SERIALIZERS.setdefault("dynamodb", {}).setdefault("json", AttributeSerializer)
    return True


def _wire_form(value: Any, base64_of: Callable[[Any], str]) -> Any:
    """Return an attribute value in its form on the wire; None to leave it to moto."""
    if type(value) is not dict or len(value) != 1:
        return None
    ((kind, content),) = value.items()
    if kind in _PLAIN:
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
