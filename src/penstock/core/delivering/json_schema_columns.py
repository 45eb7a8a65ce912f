"""Columns of a table from a JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.core.delivering.sql_names import quote_name

_DEPTH_MAX: Final = 20
_TEXT: Final = "STRING"
_SCALAR_TYPES: Final = {"integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
_FORMATS: Final = {"date-time": "TIMESTAMP", "date": "DATE"}


def is_json_schema(document: Any) -> bool:
    """Return whether a JSON value is a JSON Schema, not an object with names and types of columns."""
    return isinstance(document, Mapping) and (
        "$schema" in document
        or document.get("type") == "object"
        or isinstance(document.get("properties"), Mapping)
    )


def columns_of_json_schema(document: Mapping[str, Any]) -> str:
    """Return the columns of a JSON Schema, as in SQL.

    Values without one clear type become STRING columns with their JSON text.

    Raises:
        ValueError: It describes no objects with properties.
    """
    node = _resolve_node(document, document, 0)
    properties = node.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        raise ValueError("the JSON Schema names no properties")
    return ", ".join(
        f"{quote_name(name)} {_column_type(each, document, 0)}" for name, each in properties.items()
    )


def _column_type(node: Any, root: Mapping[str, Any], depth: int) -> str:
    node = _resolve_node(node, root, depth)
    kind = _node_type(node)
    if kind in _SCALAR_TYPES:
        return _SCALAR_TYPES[kind]
    if depth < _DEPTH_MAX and kind == "object":
        return _struct_or_map_type(node, root, depth)
    if depth < _DEPTH_MAX and kind == "array" and isinstance(node.get("items"), Mapping):
        return f"ARRAY<{_column_type(node['items'], root, depth + 1)}>"
    return _FORMATS.get(str(node.get("format")), _TEXT) if kind == "string" else _TEXT


def _struct_or_map_type(node: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
    properties, further = node.get("properties"), node.get("additionalProperties")
    if isinstance(properties, Mapping) and properties:
        fields = (
            f"{quote_name(name)}: {_column_type(each, root, depth + 1)}" for name, each in properties.items()
        )
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(further, Mapping) and further:
        return f"MAP<STRING, {_column_type(further, root, depth + 1)}>"
    return _TEXT


def _node_type(node: Mapping[str, Any]) -> str:
    """Return a node's type other than null; empty if it has several, or none."""
    kinds = node.get("type")
    found = {each for each in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(each, str)}
    found -= {"null"}
    if found == {"integer", "number"}:
        return "number"
    return next(iter(found)) if len(found) == 1 else ""


def _resolve_node(node: Any, root: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
    """Follow a node's references, and choices between null and one other node; return the node at their end."""
    for _ in range(_DEPTH_MAX):
        if not isinstance(node, Mapping):
            return {}
        reference = node.get("$ref")
        choices = next((node[word] for word in ("anyOf", "oneOf", "allOf") if word in node), None)
        if isinstance(reference, str) and reference.startswith("#") and depth < _DEPTH_MAX:
            node = _node_at(root, reference)
        elif "type" not in node and isinstance(choices, list):
            others = [each for each in choices if each != {"type": "null"}]
            if len(others) != 1:
                return {}
            node = others[0]
        else:
            return node
    return {}


def _node_at(root: Mapping[str, Any], reference: str) -> Any:
    node: Any = root
    for word in reference.removeprefix("#").split("/"):
        if word:
            node = node.get(word.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
    return node
