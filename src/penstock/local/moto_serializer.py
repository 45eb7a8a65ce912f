"""Writes the attribute values of moto's DynamoDB answers in one step.

moto looks for each of the ten members that an attribute value may have under several names, one value at a time: most of
the time of a scan. A value of text, numbers or flags already stands as the wire wants it, so it is passed on; binary
values, lists and maps stay moto's.
"""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger("penstock.local")
_PLAIN = frozenset({"S", "N", "BOOL", "NULL", "SS", "NS"})


def install_serializer() -> bool:
    """Install the serializer for DynamoDB in this process's moto; a second call changes nothing.

    Returns:
        False where this moto has no place for it: then its own serializer does the work, more slowly.
    """
    try:
        from moto.core.serialize import SERVICE_SPECIFIC_SERIALIZERS, JSONSerializer
    except ImportError:
        _log.info("this moto takes no serializer for a service: large scans are slow")
        return False

    class AttributeSerializer(JSONSerializer):
        def _serialize_type_structure(self, serialized: Any, value: Any, shape: Any, key: str) -> None:
            if shape.name == "AttributeValue" and type(value) is dict and value.keys() <= _PLAIN:
                self._default_serialize(serialized, value, shape, key)
            else:
                super()._serialize_type_structure(serialized, value, shape, key)

    SERVICE_SPECIFIC_SERIALIZERS.setdefault("dynamodb", {}).setdefault("json", AttributeSerializer)
    return True
