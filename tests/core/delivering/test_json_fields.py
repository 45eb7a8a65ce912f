"""New fields of JSON records, and the reasons of dead letters."""

from __future__ import annotations

import json

import pytest

from penstock.core.delivering.definition import parse_delivery
from penstock.core.delivering.json_fields import (
    COLUMNS_MAX,
    TableColumns,
    explain_misfit,
    infer_columns,
    infer_fields,
)
from penstock.core.delivering.new_names import column_name_rule


def test_new_fields_get_the_type_that_all_their_values_have():
    records = [
        {"a": 1, "b": 1, "c": True, "d": "x", "e": None, "f": {"x": 1}, "g": 2**70},
        {"a": 2, "b": 1.5, "c": 1, "d": "y", "e": None, "f": [1], "g": 1},
    ]
    assert infer_columns(map(json.dumps, records), columns=["d"]) == {
        "a": "BIGINT",
        "b": "DOUBLE",
        "c": "STRING",
        "e": "STRING",
        "f": "STRING",
        "g": "STRING",
    }


def test_a_field_that_differs_in_case_becomes_no_column():
    assert infer_columns(['{"ID": 1, "x": 1, "X": 2, "": 3}', "no JSON", "[1]"], columns=["id"]) == {
        "X": "BIGINT"
    }


def test_columns_are_bounded():
    text = json.dumps({f"f{number}": 1 for number in range(COLUMNS_MAX + 5)})
    assert len(infer_columns([text], columns=["id"])) == COLUMNS_MAX - 1


TYPES = {
    "id": "bigint",
    "tiny": "tinyint",
    "rate": "float",
    "ok": "boolean",
    "inner": "struct<a:int>",
    "at": "timestamp",
    "s": "string",
}
UNSURE = ", or Spark cannot read the record: a name or a number is too long, or it is nested too deeply"
KNOWN = TableColumns(TYPES, {"inner": {"a": None, "deep": {"x": None}}})


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
        (b'{"id": 9223372036854775808}', "field id: number 9223372036854775808 does not fit BIGINT"),
        (b'{"id": -' + b"9" * 5_000 + b"}", "field id: number -inf does not fit BIGINT"),
        (
            b'{"note": ' + b"9" * 5_000 + b"}",
            "Spark cannot read it: a name or a number is too long, or it is nested too deeply",
        ),
        (b'{"tiny": 128}', "field tiny: number 128 does not fit TINYINT"),
        (b'{"rate": 1e300}', "field rate: number 1e+300 does not fit FLOAT"),
        (
            b'{"tiny": -128, "rate": 3.4028234e38, "at": "x"}',
            f"field at: text 'x' does not fit TIMESTAMP{UNSURE}",
        ),
        (b'{"ok": 1}', "field ok: number 1 does not fit BOOLEAN"),
        (b'{"inner": [1]}', "field inner: array does not fit STRUCT<A:INT>"),
        (b'{"ID": 1}', "field ID is not a column: column id differs in case"),
        (rb'{"id": 1, "s": "\\\ud83d"}', "a text has half a surrogate pair, which is not valid Unicode"),
        (rb'{"id": 1, "note": "\ud83d"}', "a text has half a surrogate pair, which is not valid Unicode"),
        (b'{"at": "no moment"}', f"field at: text 'no moment' does not fit TIMESTAMP{UNSURE}"),
        (b'{"at": "no moment", "note": 1}', f"field at: text 'no moment' does not fit TIMESTAMP{UNSURE}"),
        (
            b'{"at": "x", "inner": {"a": "x"}}',
            f"a value does not fit its column: one of at (TIMESTAMP), inner (STRUCT<A:INT>){UNSURE}",
        ),
        (b'{"inner": {"a": 1, "a": 2}}', "field inner.a is there twice"),
        (b'{"inner": {"A": 1}}', "field inner.A is not a column: field a differs in case"),
        (
            b'{"id": 1}',
            "Spark cannot read it: a name or a number is too long, or it is nested too deeply",
        ),
    ],
)
def test_a_dead_letter_has_its_reason(data, reason):
    assert explain_misfit(data, KNOWN) == reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"note": 1}', "field note is not a column"),
        (b'{"inner": {"b": 1}}', "field inner.b is not a column"),
        (b'{"inner": {"deep": {"x": 1, "y": 2}}}', "field inner.deep.y is not a column"),
    ],
)
def test_a_record_that_is_only_too_new_has_the_field_as_its_reason(data, reason):
    assert explain_misfit(data, KNOWN, is_unknown=True) == reason


def test_a_table_with_all_its_columns_refuses_the_next_one():
    full = TableColumns({f"f{number}": "bigint" for number in range(COLUMNS_MAX)})
    assert explain_misfit(b'{"note": 1}', full, is_unknown=True) == (
        "field note is not a column: a table has at most 1,000 columns"
    )


def test_a_new_field_in_a_struct_of_a_lake_table_is_added_by_the_user():
    names = column_name_rule(parse_delivery({"stream": "orders", "to": "/l", "format": "delta"}), {})
    known = TableColumns(
        {"inner": "struct<a:int>"}, {"inner": {"a": None}}, names.refusal, names.inner_refusal
    )
    assert explain_misfit(b'{"inner": {"b": 1}}', known, is_unknown=True) == (
        "field inner.b is not a column: add it to the table with ALTER TABLE … ADD COLUMN inner.b and a type, then to the schema, and deliver "
        "the dead letters again with --redeliver"
    )


def test_new_fields_of_structs_get_types_as_new_columns_do():
    records = [
        {"place": {"lat": 1.5, "height": 2, "LAT": 1, "": 1, "geo": {"x": 1, "y": [1]}}},
        {"place": {"height": 2.5, "geo": None}},
        {"place": [1], "other": {"z": 1}},
        {"place": None},
    ]
    structs = {("place",): ["lat", "geo"], ("place", "geo"): ["x"], ("other",): ["z"]}
    assert infer_fields(map(json.dumps, records), structs) == {
        ("place",): {"height": "DOUBLE"},
        ("place", "geo"): {"y": "STRING"},
    }
    assert infer_fields(map(json.dumps, records), structs, lambda name, path: path) == {}


def test_of_fields_that_differ_only_in_case_the_most_frequent_one_becomes_the_column():
    records = ['{"ID": "x"}', '{"id": 1}', '{"id": 2, "ID": 3}', '{"id": 4}']
    assert infer_columns(records, ()) == {"id": "BIGINT"}
