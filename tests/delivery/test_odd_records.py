"""Records that no column fits: each is a dead letter with its reason, and the others of its batch are rows."""

from __future__ import annotations

import base64
import datetime as dt
import json
from pathlib import Path

import duckdb
import pytest

from penstock.errors import OptionError

DAY = dt.date(2026, 11, 25)


@pytest.fixture
def write(batches):
    """Delivers batches of texts; returns the table and the folder of dead letters."""

    def run(*given, **layout):
        delivery = batches(**layout)
        for each in given:
            delivery.write([record.encode(errors="surrogateescape") for record in each])
        return delivery.table, Path(delivery.letters)

    return run


def read(table, columns):
    return duckdb.sql(
        f"SELECT {columns} FROM read_parquet('{table}', union_by_name=true, hive_partitioning=true) ORDER BY id"
    ).fetchall()


def reasons(folder):
    letters = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return {
        base64.b64decode(each["data"]).decode(errors="surrogateescape"): each["reason"] for each in letters
    }


def test_a_new_field_with_the_name_of_a_computed_column_does_not_end_the_delivery(write):
    layout = {"partition-by": ["date(arrived) AS arrived_date", "date(created)"], "metadata": ["arrived"]}
    bad = {
        '{"id": 2, "arrived_date": "x"}': "field arrived_date is not a column: partition-by=date(arrived) makes a column of this name",
        '{"id": 3, "Arrived_Date": "x"}': "field Arrived_Date is not a column: partition-by=date(arrived) makes a column of this name",
        '{"id": 4, "_arrived": "x"}': "field _arrived is not a column: metadata makes a column of this name",
        '{"id": 5, "arrived": "x"}': "field arrived is not a column: partition-by=date(arrived) reads the source's column of this name; "
        "a field that is to take its place has to be in the schema",
        '{"id": 6, "created": "garbage"}': "partition column date: date(created) has no value for this record",
        '{"id": 7, "\\ud800": 1}': "field \\ud800 is not a column: a column needs a name, without control characters or lone surrogates",
    }
    good = ['{"id": 8, "note": "new", "sequenceNumber": "s", "data": 1, "a.b `c`": 2}']
    table, letters = write(['{"id": 1}'], [*bad, *good], **layout)
    assert reasons(letters) == bad
    assert read(table, 'id, arrived_date, date, note, sequenceNumber, data, "a.b `c`"') == [
        (1, DAY, None, None, None, None, None),
        (8, DAY, None, "new", "s", 1, 2),
    ]


def test_no_value_changes_on_its_way_into_a_column(write):
    columns = (
        "id BIGINT, n DOUBLE, t TIMESTAMP, s STRUCT<a: BIGINT>, m MAP<STRING, INT>, l ARRAY<MAP<STRING, DOUBLE>>, country STRING, "
        "note STRING, d DATE, z ARRAY<TIMESTAMP_NTZ>"
    )
    bad = [
        '{"id": 1, "n": 1e400}',
        '{"id": 2, "n": NaN}',
        '{"id": 3, "n": "NaN"}',
        '{"id": 4, "t": 1767225600000}',
        '{"id": 5, "s": {"a": 1, "a": 2}}',
        '{"id": 6, "m": {"k": 1, "k": 2}}',
        '{"id": 7, "l": [{"k": 1e400}]}',
        '{"id": 8, "country": ""}',
        '{"id": 99999999999999999999999}',
        '{"id": 9, "s": [1]}',
        r'{"id": 9, "country": "\ud83d"}',
        '{"id": 9} {"id": 9}',
        '{"id": 9},"_penstock_end":1}',
        '{"id": 9, "_penstock_end": 1} {}',
        '{"id": 9}, "x": {"id": 9}',
        '[{"id": 9}]',
        '{"id": 9',
        '{"id": 9,}',
        '{"id": 9, "note": "\udcff"}',
        '{"id": 9}\udce2',
        '{"id": 99',
        '{"id": 9,',
        '{"id": 9, "s": {"a": 1}]\n',
        '{"id": 9, "d": "10000-01-01"}',
        '{"id": 9, "d": "0000-12-31"}',
        '{"id": 9, "z": ["10000-01-01T00:00:00"]}',
        '{"id": 9, "t": -62135596801}',
    ]
    good = [
        '{"id": 10, "t": "2026-01-01T02:00:00+02:00"}',
        '{"id": 11, "t": "2026-01-01 00:00:00"}',
        '{"id": 12, "t": 1767225600}\n',
        r'{"id": 13, "n": 1e300, "m": {"k": 1, "K": 2}, "country": "a/b=c", "note": "\ud83d\ude00 \\ud83d"}',
        '{"id": 14, "d": "9999-12-31", "t": "0001-01-01T00:00:00Z", "z": ["9999-12-31T23:59:59.999999"]}',
    ]
    table, letters = write([*bad, *good], schema=columns, **{"partition-by": "country"})
    found = reasons(letters)
    assert sorted(found) == sorted(bad)
    assert found[bad[0]] == "field n: number inf does not fit DOUBLE"
    assert found[bad[1]] == "not JSON: NaN is not a number"
    assert found[bad[3]] == "field t: number 1767225600000 does not fit TIMESTAMP"
    assert found[bad[7]] == "partition column country: an empty text cannot be the name of a folder"
    moment = 1767225600.0
    assert read(table, "id, epoch(t)")[:-1] == [(10, moment), (11, moment), (12, moment), (13, None)]
    assert read(table, "id, epoch(t), d, z[1]::TEXT")[-1] == (
        14,
        -62135596800.0,
        dt.date.max,
        "9999-12-31 23:59:59.999999",
    )
    assert read(table, "id, n, country, note")[-2] == (13, 1e300, "a/b=c", "\U0001f600 \\ud83d")


def test_a_record_that_looks_like_its_fields_loses_nothing(write):
    columns = "id BIGINT, n DOUBLE, ok BOOLEAN, s STRING, t STRING"
    bad = [
        '{"id": 1, "s": "x", "s": "x"}',
        '{"id": 1, "s": "x", "u": "y"}',
        '{"id":1,"s":"x","u":1}',
        '{"u": 1, "id": 1}',
        r'{"id": 1, "s": "x\", \"u\": \"y", "u": "y"}',
        r'{"id": 1, "\u0073": "x", "s": "x"}',
        '{"id": 1, "s": "\udcff"}',
        '{"id": 1, "s": "\udced\udca0\udc80"}',
        '{"id": 1, "s": "x"}}',
        '{"id": 1, "s": "x"}\n{"id": 2}\n',
        '{"id": 1, "s": "x"\n',
        '{"id": 1, "n": Infinity}',
        '{"id": 1, "n": 1e999}',
        '{"id": 1.0}',
        '{"id": 1, "ok": "true"}',
        '{ } {"id": 1}',
        "{",
        "}",
        "\n",
        "",
    ]
    good = [
        ('{"id": 10, "n": 0.5, "ok": true, "s": "ü \ufffd", "t": ""}', 0.5, True, "ü \ufffd", ""),
        ('{"id":11,"n":1e7,"s":"a: b","t":"x"}', 1e7, None, "a: b", "x"),
        ('{"id": 12, "s": 5, "t": {"a": 1}}', None, None, "5", '{"a":1}'),
        ('{"id": 13, "n": null, "s": "x"}\n', None, None, "x", None),
        ('{"t": "x", "id": 14}\n\n', None, None, None, "x"),
        ('{"id":15,"n":-0.0,"ok":false}\n', -0.0, False, None, None),
    ]
    table, letters = write([*bad, *(line for line, *_ in good)], schema=columns, evolve="refuse")
    assert sorted(reasons(letters)) == sorted(bad)
    assert read(table, "id, n, ok, s, t") == [
        (number, *values) for number, (_, *values) in enumerate(good, start=10)
    ]


def test_the_names_of_fields_are_not_read_again_in_a_record_that_equals_its_fields(running_spark):
    from penstock.delivery.json_rows import columns_of, with_verdict

    values = {"id": 1, "n": 0.5, "ok": True, "s": "ü"}
    texts = [json.dumps(values, ensure_ascii=False), json.dumps(values, separators=(",", ":"))]
    texts = [*texts, json.dumps({"id": 2}) + "\n", "{}", json.dumps({"s": "a\nb"}), json.dumps({"u": 1})]
    rows = running_spark.createDataFrame([(text.encode(),) for text in texts], "data BINARY")
    verdicts = with_verdict(rows, columns_of("id BIGINT, n DOUBLE, ok BOOLEAN, s STRING"))
    found = [tuple(row) for row in verdicts.select("_penstock_keys", "_penstock_verdict").collect()]
    names = ["id", "n", "ok", "s"]
    others = [(names, "fits"), (None, "fits"), (None, "fits"), (["s"], "fits"), (["u"], "unknown field")]
    assert found == [(None, "fits"), *others]


def test_a_filter_on_the_verdict_does_not_copy_the_parse(running_spark):
    from penstock.delivery.json_rows import columns_of, rows_where, with_verdict

    rows = running_spark.createDataFrame([(b"{}",)], "data BINARY")
    verdicts = with_verdict(rows, columns_of("id BIGINT, n DOUBLE, s STRING"))
    rule = "spark.sql.optimizer.avoidDoubleFilterEval"  # of Spark 4.2
    running_spark.conf.set(rule, "false")
    try:
        found = rows_where(verdicts, verdicts["_penstock_verdict"] != "fits")
        plan = found._jdf.queryExecution().optimizedPlan().toString()
    finally:
        running_spark.conf.unset(rule)
    assert plan.count("from_json") == 1


def test_odd_names_of_columns_come_from_a_file(write, tmp_path):
    names = {
        "id": "BIGINT",
        "a.b": "STRING",
        "c d": "DOUBLE",
        "e`f": "INT",
        "größe": "STRING",
        "_penstock_end": "INT",
    }
    file = tmp_path / "columns.json"
    file.write_text(json.dumps(names))
    values = {"id": 1, "a.b": "x", "c d": 0.5, "e`f": 7, "größe": "L", "_penstock_end": 3}
    table, letters = write([json.dumps(values), "{}", " { } \n"], schema=str(file))
    assert reasons(letters) == {}
    assert read(table, 'id, "a.b", "c d", "e`f", "größe", "_penstock_end"') == [
        tuple(values.values()),
        (None,) * 6,
        (None,) * 6,
    ]


def test_a_partition_column_that_no_record_has_yet_is_a_text(write):
    table, _ = write(['{"id": 1}'], ['{"id": 2, "country": "de"}'], **{"partition-by": "country"})
    assert read(table, "id, country") == [(1, None), (2, "de")]


def test_a_partition_without_a_possible_folder_makes_a_dead_letter_and_does_not_end_the_delivery(write):
    values = {
        1: "x" * 300,
        2: "a/" * 80,
        3: "a\0b",
        4: "__HIVE_DEFAULT_PARTITION__",
        5: "x" * 240,
        6: "größe/=%",
    }
    lines = [json.dumps({"id": number, "country": value}) for number, value in values.items()]
    table, letters = write(lines, **{"partition-by": "country"})
    found = {json.loads(data)["id"]: reason for data, reason in reasons(letters).items()}
    long = "partition column country: the name of its folder would have more than 255 bytes"
    assert found == {
        1: long,
        2: long,
        3: "partition column country: a text with a NUL cannot be the name of a folder",
        4: "partition column country: this text is the name of the folder of null",
    }
    assert read(table, "id, country") == [(5, values[5]), (6, values[6])]


def test_a_record_without_a_possible_folder_is_a_dead_letter_also_without_a_schema(write):
    table, letters = write(
        ["y" * 300, "short"], schema="raw", **{"partition-by": "decode(data, 'UTF-8') AS text"}
    )
    assert list(reasons(letters)) == ["y" * 300]
    rows = duckdb.sql(f"SELECT text, data FROM read_parquet('{table}', hive_partitioning=true)").fetchall()
    assert rows == [("short", b"short")]


def test_a_field_that_only_a_broken_record_has_is_not_its_reason(write):
    bad = r'{"id": 1, "note": "\ud83d"}'
    table, letters = write(['{"id": 2}', bad])
    assert reasons(letters) == {bad: "a text has half a surrogate pair, which is not valid Unicode"}
    assert read(table, "*") == [(2,)]


def test_an_unknown_field_is_found_however_the_record_is_written(write):
    columns = "id BIGINT, t TIMESTAMP, note STRING, s STRUCT<a: BIGINT, b: STRING>"
    bad = [
        '{"id": 1, "x": 1}',
        '{"id" : 2, "x"\t: 1}',
        '{"id": null, "x": 3}',
        '{"id": 4, "id": null}',
        '{"id": 4, "x": null}',
        r'{"note": "\":", "x": 1}',
        '{"x": 5}',
        '{"s": {"a": 6, "x": 1}}',
        '{"s": {"x": 1}, "id": null}',
        '{"id": 7, "s": {"a": 1, "a": null}}',
        r'{"\u0069d": 8, "x": 1}',
        '{"note": {"id": 1}, "x": 1}',
        '{"ID": 9}',
        '[{"id": 9}]',
        ' [{"id": 9}]',
    ]
    good = [
        r'{"note": "a\":b, \"x\":1", "id": 10}',
        '{"id"\n:\n11, "t" :"2026-01-01T00:00:00Z"}',
        '{"id": 12, "s": null, "note": null}',
        ' {"id": 13}',
        '{"id": 14, "s": {"a": 1, "b": "x:y"}, "t": "2026-01-01 00:00:00"}',
        '{"id":15,"note":{"x":1}}',
    ]
    table, letters = write([*bad, *good], schema=columns, evolve="refuse")
    assert sorted(reasons(letters)) == sorted(bad)
    assert read(table, "id, note, s.b") == [
        (10, 'a":b, "x":1', None),
        (11, None, None),
        (12, None, None),
        (13, None, None),
        (14, None, "x:y"),
        (15, '{"x":1}', None),
    ]


def test_new_fields_of_a_struct_are_added_to_it(batches):
    columns = "id BIGINT, place STRUCT<lat: DOUBLE, geo: STRUCT<x: INT>>, list ARRAY<STRUCT<a: INT>>"
    delivery = batches(schema=columns)
    delivery.write([b'{"id": 1, "place": {"lat": 1.5}}', b'{"id": 2, "place": null}'])
    new = {"lat": 2, "height": 8, "tags": ["a"], "geo": {"x": 1, "z": "deep"}}
    delivery.write(
        [json.dumps({"id": 3, "place": new, "note": "top"}).encode(), b'{"id": 4, "place": {"LAT": 1}}']
    )
    delivery.write([b'{"id": 5, "place": {"height": "tall"}}'])
    query = "SELECT id, place.height, place.tags, place.geo.z, note FROM read_parquet('{}', union_by_name=true) ORDER BY id"
    assert duckdb.sql(query.format(delivery.table)).fetchall() == [
        (1, None, None, None, None),
        (2, None, None, None, None),
        (3, 8, '["a"]', "deep", "top"),
    ]
    assert delivery.reports[1].new_columns == ("place", "note")
    found = reasons(Path(delivery.letters))
    assert (
        found['{"id": 4, "place": {"LAT": 1}}']
        == "field place.LAT is not a column: field lat differs in case"
    )
    assert found['{"id": 5, "place": {"height": "tall"}}'].startswith(
        "field place: object does not fit STRUCT<"
    )


def test_a_folder_with_signs_of_patterns_is_a_folder(batches, tmp_path):
    delivery = batches(to=f"{tmp_path}/a b[1]{{2}}*?#%20", schema="id BIGINT", evolve="refuse")
    delivery.write([b'{"id": 1}', b'{"note": 2}'])
    delivery.redeliver()
    files = [path.name for path in tmp_path.rglob("*.parquet")]
    assert files == ["part-orders-000000000-00000.parquet"]
    assert reasons(Path(delivery.letters)) == {'{"note": 2}': "field note is not a column"}


def test_a_redelivery_leaves_the_dead_letters_of_others(batches, tmp_path):
    shared = {"dead-letters": f"{tmp_path}/dead", "evolve": "refuse"}
    other = batches(to=f"{tmp_path}/other", name="other", schema="id BIGINT", **shared)
    other.write([b'{"note": 1}'])
    delivery = batches(schema="id BIGINT", **shared)
    delivery.write([b'{"id": "x"}'])
    mended = batches(schema="id STRING, note BIGINT", **shared)
    mended.redeliver()
    assert reasons(tmp_path / "dead") == {'{"note": 1}': "field note is not a column"}
    assert read(mended.table, "id") == [("x",)]


@pytest.mark.parametrize(
    ("schema", "expression", "message"),
    [
        ("id BIGINT, place STRUCT<a: INT>", "place", "cannot be the name of a folder"),
        ("id BIGINT, tags ARRAY<STRING>", "explode(tags) AS tag", "partition-by: .*GENERATOR"),
        ("raw", "explode(array(1, 2)) AS twice", "partition-by: .*GENERATOR"),
        ("id BIGINT", "count(id) AS n", "partition-by: "),
        ("Country STRING, id BIGINT", "country", None),
    ],
)
def test_a_partition_that_is_no_single_value_is_refused_before_the_first_write(
    running_spark, schema, expression, message
):
    from penstock.core.delivering.definition import parse_delivery
    from penstock.delivery.opening import _check_partition_expressions, parse_schema

    delivery = parse_delivery({"stream": "orders", "to": "/l", "schema": schema, "partition-by": expression})
    if message is None:
        _check_partition_expressions(running_spark, delivery, parse_schema(delivery))
        return
    with pytest.raises(OptionError, match=message):
        _check_partition_expressions(running_spark, delivery, parse_schema(delivery))


def test_the_columns_of_a_schema_are_made_for_its_first_batch_only(batches, monkeypatch):
    delivery = batches(schema="id BIGINT", **{"partition-by": ["date(arrived)"]})
    delivery.write([b'{"id": 1}'])

    def is_called(*_args, **_options):
        raise AssertionError("a column was made again")

    for name in ("from_json", "expr", "when", "count_if"):
        monkeypatch.setattr(f"pyspark.sql.functions.{name}", is_called)
    delivery.write([b'{"id": 2}'])
    assert read(delivery.table, "id") == [(1,), (2,)]
