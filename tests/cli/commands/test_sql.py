"""`penstock sql`: a SELECT over streams, as a user types it."""

from __future__ import annotations

import base64
import csv
import io
import json
import sys

import pytest

pytest.importorskip("duckdb")

import pyarrow.parquet as pq

from cli.commands.support import penstock, put, wait_until_active
from penstock import Producer


@pytest.fixture
def put_json(kinesis):
    def put(stream, *documents):
        records = [
            {
                "Data": document if isinstance(document, bytes) else json.dumps(document).encode(),
                "PartitionKey": f"k{n}",
            }
            for n, document in enumerate(documents)
        ]
        assert (
            kinesis.client("kinesis").put_records(StreamName=stream, Records=records)["FailedRecordCount"]
            == 0
        )

    return put


@pytest.fixture
def shop(kinesis, put_json, request):
    orders, payments = (f"{name}-{abs(hash(request.node.name))}" for name in ("orders", "payments"))
    kinesis.create_stream(orders, 3)
    kinesis.create_stream(payments, 2)
    put_json(orders, *({"order": n, "amount": 10 * n} for n in range(20)))
    put_json(payments, *({"order": n, "state": "paid" if n % 2 else "open"} for n in range(0, 20, 3)))
    return f'"{orders}"', f'"{payments}"'


JOIN = """
    SELECT p.json->>'state' AS state, count(*) AS orders, sum((o.json->>'amount')::INT) AS amount
    FROM {0} o JOIN {1} p ON o.json->>'order' = p.json->>'order'
    WHERE o.arrived > now() - INTERVAL 2 HOURS AND p.arrived > now() - INTERVAL 2 HOURS
    GROUP BY 1 ORDER BY 1
"""
JOINED = [{"state": "open", "orders": 4, "amount": 360}, {"state": "paid", "orders": 3, "amount": 270}]


def test_two_streams_are_joined(shop, capsys):
    status, out, err = penstock(capsys, "sql", JOIN.format(*shop), "--format", "json")
    assert (status, [json.loads(line) for line in out.splitlines()]) == (0, JOINED)
    assert err.count("reads 3 shards from") == 1
    assert err.count("reads 2 shards from") == 1


def test_a_user_in_another_time_zone_gets_the_same_answer(shop, capsys, new_york):
    status, out, _ = penstock(capsys, "sql", JOIN.format(*shop), "--json")
    assert (status, [json.loads(line) for line in out.splitlines()]) == (0, JOINED)


def lines_of(capsys, *arguments):
    status, out, err = penstock(capsys, "sql", *arguments, "--format", "json")
    assert status == 0, err
    return [json.loads(line) for line in out.splitlines()], err


def test_records_that_are_not_utf_8_have_no_text_and_are_counted(stream, put_json, capsys):
    put_json(stream, {"n": 1}, b"\xff\xfe", b"plain", b"1e999")
    lines, err = lines_of(capsys, f"SELECT text, json, data FROM {stream} ORDER BY data")
    assert [(line["text"], line["json"]) for line in lines] == [
        ("1e999", float("inf")),
        ("plain", None),
        ('{"n": 1}', {"n": 1}),
        (None, None),
    ]
    assert base64.b64decode(lines[-1]["data"]) == b"\xff\xfe"
    assert "1 of the records read are not UTF-8" in err
    _, err = lines_of(capsys, f"SELECT count(*) FROM {stream}")
    assert "UTF-8" not in err


def test_aggregates_are_taken_apart(kinesis, stream, capsys):
    with Producer(stream, aggregation=True) as producer:
        for n in range(100):
            producer.put(b"%d" % n, partition_key="k")
    stored = sum(shard["records"] for shard in kinesis.state()["streams"][stream]["shards"].values())
    lines, _ = lines_of(
        capsys,
        f"SELECT count(*) n, count(DISTINCT text) texts, max(subSequenceNumber) > 0 subs FROM {stream}",
    )
    assert stored < 100
    assert lines == [{"n": 100, "texts": 100, "subs": True}]


def test_a_reshard_leaves_no_gap_and_repeats_nothing(kinesis, stream, capsys):
    client = kinesis.client("kinesis")
    put(kinesis, stream, 50, "a")
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125))
    wait_until_active(client, stream)
    put(kinesis, stream, 50, "b")
    client.merge_shards(
        StreamName=stream, ShardToMerge="shardId-000000000004", AdjacentShardToMerge="shardId-000000000005"
    )
    wait_until_active(client, stream)
    put(kinesis, stream, 50, "c")
    lines, _ = lines_of(capsys, f"SELECT count(*) n, count(DISTINCT text) texts FROM {stream}")
    assert lines == [{"n": 150, "texts": 150}]


RECURSION = """
    WITH RECURSIVE r AS (SELECT 1 i UNION ALL SELECT i + 1 FROM r, (SELECT count(*) c FROM {0}) WHERE i < c)
    SELECT count(*) n FROM r
"""


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT count(*) n FROM {0} a JOIN {0} b USING (partitionKey)", 20),
        ("WITH x AS (FROM {0}) SELECT count(*) n FROM x a, x b", 400),
        ("SELECT count(*) n FROM (FROM {0} UNION ALL FROM {0})", 40),
        ("SELECT count(*) n FROM {0} WHERE text IS NOT NULL AND arrived >= (SELECT max(arrived) FROM {0}) - INTERVAL 1 HOUR", 20),
        (RECURSION, 20),
    ],
)  # fmt: skip
def test_a_query_may_use_a_stream_more_than_once(stream, kinesis, capsys, sql, answer):
    put(kinesis, stream, 20)
    lines, _ = lines_of(capsys, sql.format(stream))
    assert lines == [{"n": answer}]


def test_the_command_says_what_it_reads(shop, capsys):
    orders, _ = shop
    _, err = lines_of(capsys, f"SELECT count(*) FROM {orders}")
    assert "reads 3 shards from the oldest record (retention 24 h) until" in err
    assert "the query has no lower bound for arrived" in err
    _, err = lines_of(capsys, f"SELECT count(*) FROM {orders} WHERE arrived::DATE >= today() - 1")
    assert "conditions on arrived are not a lower bound that limits the read" in err
    _, err = lines_of(capsys, f"SELECT count(*) FROM {orders} WHERE arrived > now() - INTERVAL 3 DAYS")
    assert "lower bound for arrived is before the oldest record" in err
    lines, err = lines_of(capsys, f"SELECT text FROM {orders} WHERE arrived > now() + INTERVAL 1 HOUR")
    assert (lines, "nothing is read" in err) == ([], True)


def test_an_unknown_stream_is_an_error_with_the_nearest_name(shop, capsys):
    name = shop[0].strip('"').replace("orders", "ordesr")
    status, out, err = penstock(capsys, "sql", f'SELECT * FROM "{name}"')
    assert (status, out) == (1, "")
    assert f"Stream {name} " in err
    assert err.endswith(f"; did you mean {name.replace('ordesr', 'orders')}?\n")
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"  # asked for in its region
    assert "the region (eu-west-1)" in penstock(capsys, "sql", f'SELECT * FROM "{arn}"')[2]
    status, _, err = penstock(capsys, "sql", "SELECT * FROM '/etc/passwd'")
    assert (status, "not a name of a stream" in err) == (2, True)


def test_an_error_of_duckdb_has_its_mark(capsys, stream):
    status, _, err = penstock(capsys, "sql", f"SELECT nope FROM {stream}")
    assert status == 2
    assert err.splitlines()[-2:] == [f"LINE 1: SELECT nope FROM {stream}", "               ^^^^"]


def test_a_table_of_csv_and_of_parquet(kinesis, stream, put_json, capsys, tmp_path):
    put_json(stream, {"a": 1}, {"a": 2})
    sql = (
        f"SELECT (json->>'a')::INT AS a, text, NULL AS none, INTERVAL 90 MINUTE AS i FROM {stream} ORDER BY a"
    )
    _, out, _ = penstock(capsys, "sql", sql)
    assert out.splitlines() == [
        "a  text      none  i",
        "-  --------  ----  --------",
        '1  {"a": 1}        01:30:00',
        '2  {"a": 2}        01:30:00',
    ]
    status, out, _ = penstock(capsys, "sql", sql, "-o", "x.csv")
    assert (status, out) == (0, "")
    assert list(csv.reader(io.StringIO((tmp_path / "x.csv").read_text()))) == [
        ["a", "text", "none", "i"],
        ["1", '{"a": 1}', "", "01:30:00"],
        ["2", '{"a": 2}', "", "01:30:00"],
    ]
    assert penstock(capsys, "sql", f"SELECT arrived, text FROM {stream}", "-o", "x.parquet")[0] == 0
    table = pq.read_table(tmp_path / "x.parquet")
    assert sorted(table["text"].to_pylist()) == ['{"a": 1}', '{"a": 2}']
    assert table.schema.field("arrived").type.tz is not None
    status, _, err = penstock(capsys, "sql", f"SELECT error(text) FROM {stream}", "-o", "y.parquet")
    assert (status, [path.name for path in tmp_path.iterdir() if path.name.startswith("y")]) == (2, []), err


def test_control_characters_of_a_record_do_not_reach_the_terminal(stream, put_json, capsys):
    put_json(stream, b"\x1b[2J\xe2\x80\xae", {"k": "\x1b\u202e"})
    for form in ("table", "json"):
        _, out, _ = penstock(capsys, "sql", f"SELECT data, text, json FROM {stream}", "--format", form)
        assert not set(out) & {"\x1b", "\u202e"}, form


def test_a_recording_is_a_table_too(kinesis, stream, put_json, capsys):
    put_json(stream, *({"n": n} for n in range(20)))
    assert penstock(capsys, "record", stream, "--since", "1h", "-o", "incident.penstock")[0] == 0
    put_json(stream, {"n": 20})
    sql = f"SELECT l.json->>'n' AS n FROM {stream} l ANTI JOIN 'incident.penstock' r USING (sequenceNumber)"
    lines, err = lines_of(capsys, sql)
    assert lines == [{"n": "20"}]
    assert "incident.penstock: reads 20 records of this recording" in err
    arguments = (
        "SELECT count(*) n FROM yesterday WHERE arrived < now() - INTERVAL 1 HOUR",
        "--recording",
        "yesterday=incident.penstock",
    )
    lines, err = lines_of(capsys, *arguments)
    assert (lines, "yesterday: reads 0 records" in err) == ([{"n": 0}], True)
    status, _, err = penstock(capsys, "sql", "SELECT 1 FROM 'none.penstock'")
    assert (status, "none.penstock" in err) == (1, True)


def test_columns_of_the_same_name_get_a_number(stream, put_json, capsys):
    put_json(stream, {"n": 1})
    lines, _ = lines_of(
        capsys, f"SELECT a.text, b.text, 1 AS text FROM {stream} a JOIN {stream} b USING (partitionKey)"
    )
    assert lines == [{"text": '{"n": 1}', "text_1": '{"n": 1}', "text_2": 1}]


@pytest.mark.parametrize("package", ["duckdb", "pyarrow"])
def test_a_missing_package_is_one_sentence(stream, capsys, monkeypatch, package):
    for name in [
        name for name in sys.modules if name.startswith("penstock.sql") or name == "penstock.arrow_table"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    status, _, err = penstock(capsys, "sql", f"SELECT 1 FROM {stream}")
    assert status == 1
    assert (
        err
        == f"penstock sql: `penstock sql` needs the package {package}, which is not installed: pip install 'penstock[sql]'\n"
    )


def test_a_query_can_be_piped(stream, put_json, capsys, monkeypatch):
    put_json(stream, {"n": 1})
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"SELECT text FROM {stream}\n"))
    lines, _ = lines_of(capsys, "-")
    assert lines == [{"text": '{"n": 1}'}]


def test_infinite_and_local_moments_are_shown(capsys):
    lines, _ = lines_of(
        capsys,
        "SELECT 'infinity'::TIMESTAMPTZ a, '-infinity'::TIMESTAMP b, TIMESTAMP '2026-03-01 12:00' c, "
        "TIMESTAMPTZ '2026-03-01 12:00:00+00' d, NULL::TIMESTAMPTZ e, DATE '2026-03-01' f, TIME '12:00' g, "
        "'-infinity'::DATE h, DATE '10000-01-01' i, NULL::DATE j, '44-03-15 (BC)'::DATE k, "
        "TIMESTAMP '10000-01-01 12:00' l, TIMESTAMPTZ '9999-12-31 23:00:00+00' m",
        "--time-zone",
        "Asia/Kolkata",
    )
    assert lines == [
        {
            "a": "infinity",
            "b": "-infinity",
            "c": "2026-03-01T12:00:00.000",
            "d": "2026-03-01T17:30:00.000+05:30",
            "e": None,
            "f": "2026-03-01",
            "g": "12:00:00.000",
            "h": "-infinity",
            "i": "10000-01-01",
            "j": None,
            "k": "-0043-03-15",
            "l": "10000-01-01T12:00:00.000000",
            "m": "10000-01-01T04:30:00.000000+0530",
        }
    ]


@pytest.mark.parametrize("output", ["table", "csv", "json"])
def test_a_moment_that_python_does_not_have_inside_a_value_is_a_wrong_query(capsys, output):
    status, _, err = penstock(capsys, "sql", "SELECT ['infinity'::DATE]", "--format", output)
    assert (status, "cast it to VARCHAR" in err) == (2, True)


def test_types_that_arrow_does_not_have_are_text(capsys):
    lines, _ = lines_of(
        capsys,
        "SELECT '12345678901234567890123456789012345678901234567890'::BIGNUM a, '101'::BIT b, 1 c, '340282366920938463463374607431768211455'::UHUGEINT d",
    )
    assert lines == [
        {
            "a": "12345678901234567890123456789012345678901234567890",
            "b": "101",
            "c": 1,
            "d": "340282366920938463463374607431768211455",
        }
    ]


def test_a_query_without_a_stream_cannot_be_followed(capsys):
    status, _, err = penstock(capsys, "sql", "SELECT 1", "--follow")
    assert (status, "reads no stream" in err) == (2, True)
