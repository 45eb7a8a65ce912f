"""Columns from a JSON Schema."""

from __future__ import annotations

import pytest

from penstock.core.delivering.json_schema_columns import columns_of_json_schema, is_json_schema


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        ({"type": "integer"}, "BIGINT"),
        ({"type": ["null", "number"]}, "DOUBLE"),
        ({"type": ["integer", "number"]}, "DOUBLE"),
        ({"type": ["integer", "string"]}, "STRING"),
        ({"type": "boolean"}, "BOOLEAN"),
        ({"type": "string", "format": "date-time"}, "TIMESTAMP"),
        ({"type": "string", "format": "date"}, "DATE"),
        ({"enum": ["a", 1]}, "STRING"),
        ({"type": "array", "items": {"type": "integer"}}, "ARRAY<BIGINT>"),
        ({"type": "array"}, "STRING"),
        ({"type": "object"}, "STRING"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "MAP<STRING, DOUBLE>"),
        ({"type": "object", "properties": {"a`b": {"type": "string"}}}, "STRUCT<`a``b`: STRING>"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "BIGINT"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "STRING"),
        ({"$ref": "#/definitions/money"}, "DOUBLE"),
        ({"$ref": "#/definitions/missing"}, "STRING"),
        ({"$ref": "#/definitions/itself"}, "STRING"),
        ({"$ref": "https://example.com/other"}, "STRING"),
        (True, "STRING"),
    ],
)
def test_each_node_has_a_type(node, kind):
    definitions = {"money": {"type": "number"}, "itself": {"$ref": "#/definitions/itself"}}
    document = {"type": "object", "properties": {"x": node}, "definitions": definitions}
    assert is_json_schema(document)
    assert columns_of_json_schema(document) == f"`x` {kind}"


def test_a_schema_that_contains_itself_ends_in_a_text():
    node = {"type": "object", "properties": {"inner": {"$ref": "#"}}}
    assert columns_of_json_schema(node).count("STRUCT") == 20


def test_names_and_types_are_no_json_schema():
    assert not is_json_schema({"id": "BIGINT", "type": "STRING"})
    with pytest.raises(ValueError, match="no properties"):
        columns_of_json_schema({"type": "object"})
