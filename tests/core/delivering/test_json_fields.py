"""New fields of JSON records, and the reasons of dead letters."""

from __future__ import annotations

import json

import pytest

from penstock.core.delivering.json_fields import COLUMNS_MAX, explain, infer_columns


def test_new_fields_get_the_type_that_all_their_values_have():
    records = [
        {"a": 1, "b": 1, "c": True, "d": "x", "e": None, "f": {"x": 1}, "g": 2**70},
        {"a": 2, "b": 1.5, "c": 1, "d": "y", "e": None, "f": [1], "g": 1},
    ]
    assert infer_columns(map(json.dumps, records), known=["d"]) == {
        "a": "BIGINT",
        "b": "DOUBLE",
        "c": "STRING",
        "e": "STRING",
        "f": "STRING",
        "g": "STRING",
    }


def test_a_field_that_differs_in_case_becomes_no_column():
    assert infer_columns(['{"ID": 1, "x": 1, "X": 2, "": 3}', "no JSON", "[1]"], known=["id"]) == {
        "X": "BIGINT"
    }


def test_columns_are_bounded():
    text = json.dumps({f"f{number}": 1 for number in range(COLUMNS_MAX + 5)})
    assert len(infer_columns([text], known=["id"])) == COLUMNS_MAX - 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff{}", "not UTF-8: byte 0"),
        (b"bad", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"id": 1} x', "not JSON: Extra data: line 1 column 11 (char 10)"),
        (b"[" * 100_000, "not JSON: nested too deeply"),
        (b"null", "a JSON null instead of an object"),
        (b"[1]", "a JSON array instead of an object"),
        (b'{"id": 1, "id": 2}', "field id is there twice"),
        (b'{"id": "q"}', "field id: text 'q' does not fit BIGINT"),
        (b'{"id": 1.5}', "field id: number 1.5 does not fit BIGINT"),
        (b'{"ok": 1}', "field ok: number 1 does not fit BOOLEAN"),
        (b'{"inner": [1]}', "field inner: array does not fit STRUCT<A:INT>"),
        (b'{"ID": 1}', "field ID is no column: column id differs in case"),
        (b'{"note": 1}', "field note is no column"),
        (rb'{"id": 1, "s": "\\\ud83d"}', "a text has half a surrogate pair, which is no valid Unicode"),
        (
            b'{"at": "no moment"}',
            "a value does not fit its column, or an object in it has a field without one",
        ),
    ],
)
def test_a_dead_letter_has_its_reason(data, reason):
    types = {"id": "bigint", "ok": "boolean", "inner": "struct<a:int>", "at": "timestamp", "s": "string"}
    assert explain(data, types) == reason
