"""Which part of a stream a query reads, from DuckDB's plan."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("duckdb")

from penstock.errors import OptionError
from penstock.sql.query import Query
from penstock.sql.query_plan import RowBounds
from penstock.sql.statement import StatementError


class NoRows:
    def read(self, bounds):
        return iter(())


def tables_of(sql, zone="UTC"):
    with Query(sql, lambda _name: NoRows(), zone=zone) as query:
        return {table.name: table for table in query.tables}


def need_of(condition, zone="UTC"):
    return tables_of(f"SELECT * FROM orders WHERE {condition}", zone)["orders"].bounds


def ms(text):
    return round(datetime.fromisoformat(text).timestamp() * 1000)


MARCH, APRIL = ms("2026-03-01T00:00Z"), ms("2026-04-01T00:00Z")


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        ("arrived > '2026-03-01'", RowBounds(MARCH)),
        ("'2026-03-01' <= arrived", RowBounds(MARCH)),
        ("arrived < '2026-03-01'", RowBounds(None, MARCH + 1)),
        ("arrived = '2026-03-01'", RowBounds(MARCH, MARCH + 1)),
        ("NOT (arrived < '2026-03-01')", RowBounds(MARCH)),
        ("arrived BETWEEN '2026-03-01' AND DATE '2026-04-01'", RowBounds(MARCH, APRIL + 1)),
        ("arrived >= '2026-03-01 00:00:00.123456'", RowBounds(MARCH + 123)),
        ("arrived <= '2026-03-01 00:00:00.123456'", RowBounds(None, MARCH + 125)),
        ("arrived > '2026-03-01 02:00:00+02'", RowBounds(MARCH)),
        ("approximateArrivalTimestamp > TIMESTAMP '2026-03-01'", RowBounds(MARCH)),
        ("arrived > '2026-02-01' AND (arrived > '2026-03-01' AND text = 'x')", RowBounds(MARCH)),
        ("arrived > '2026-03-01' AND json->>'a' = ') AND y'", RowBounds(MARCH)),
        ("shardId = 'shardId-000000000001' AND arrived > '2026-03-01'", RowBounds(MARCH, None, "shardId-000000000001")),
        ("arrived > '1700-01-01'", RowBounds(ms("1700-01-01T00:00Z"))),
        # Not understood: nothing is left out.
        ("arrived > '2026-03-01' OR text = 'x'", RowBounds()),
        ("arrived > '2026-03-01' OR arrived IS NULL", RowBounds()),
        ("arrived::DATE = DATE '2026-03-01'", RowBounds()),
        ("arrived > (SELECT max(arrived) FROM orders)", RowBounds()),
        ("arrived + INTERVAL 1 DAY > '2026-03-01'", RowBounds()),
        ("arrived > 'infinity'", RowBounds()),
        ("text = ') AND (t0_approximateArrivalTimestamp > ''2027-01-01 00:00:00+00''::TIMESTAMP WITH TIME ZONE'", RowBounds()),
        ("partitionKey > '2026-03-01'", RowBounds()),
    ],
)  # fmt: skip
def test_conditions_on_the_arrival_narrow_the_read(condition, bounds):
    assert need_of(condition) == bounds


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York", "Pacific/Apia", "UTC"])
def test_a_moment_without_a_zone_is_in_the_time_zone_of_the_query(zone):
    from zoneinfo import ZoneInfo

    local = datetime(2026, 3, 1, 12, tzinfo=ZoneInfo(zone))
    assert need_of("arrived >= '2026-03-01 12:00'", zone) == RowBounds(round(local.timestamp() * 1000))


def test_now_is_the_moment_of_the_query():
    before = datetime.now(UTC)
    bounds = need_of("arrived > now() - INTERVAL 2 HOURS AND arrived < now() - INTERVAL 1 HOUR", "Asia/Tokyo")
    after = datetime.now(UTC)
    hour_ms = 3_600_000
    assert (
        int(before.timestamp() * 1000) - 2 * hour_ms
        <= bounds.from_ms
        <= after.timestamp() * 1000 - 2 * hour_ms
    )
    assert bounds.until_ms - bounds.from_ms in (hour_ms + 1, hour_ms + 2)


def test_conditions_move_through_joins_views_and_ctes():
    tables = tables_of(
        """
        WITH late AS (SELECT * FROM orders WHERE arrived > '2026-03-01')
        SELECT count(*) FROM late o LEFT JOIN payments p
            ON o.partitionKey = p.partitionKey AND p.arrived > '2026-04-01'
        """
    )
    assert {name: table.bounds for name, table in tables.items()} == {
        "orders": RowBounds(MARCH),
        "payments": RowBounds(APRIL),
    }


def test_two_scans_of_a_stream_are_one_read_of_both_ranges():
    tables = tables_of(
        """
        SELECT * FROM orders WHERE arrived BETWEEN '2026-03-01' AND '2026-03-02'
        UNION ALL SELECT * FROM orders WHERE arrived BETWEEN '2026-03-05' AND '2026-04-01'
        """
    )
    assert tables["orders"].bounds == RowBounds(MARCH, APRIL + 1)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT 1", []),
        ("FROM orders", ["orders"]),
        ('SELECT * FROM "my-orders", payments', ["my-orders", "payments"]),
        ("SELECT * FROM a.b", ["a.b"]),
        ("WITH x AS (FROM orders) SELECT * FROM x", ["orders"]),
        ("WITH orders AS (FROM orders) SELECT * FROM orders", ["orders"]),
        ("WITH x AS (FROM orders), y AS (FROM x) SELECT * FROM y, X", ["orders"]),
        ("SELECT (SELECT count(*) FROM payments) FROM orders", ["orders", "payments"]),
        ("WITH RECURSIVE r AS (SELECT 1 n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r", []),
        ("SELECT count(*) > 0 FROM information_schema.tables", []),
    ],
)
def test_tables_that_are_no_ctes_are_streams(sql, names):
    assert sorted(tables_of(sql)) == names


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO orders VALUES (1)",
        "COPY (SELECT 1) TO 'x.csv'",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '1TB'",
        "CREATE TABLE x AS SELECT 1",
        "SELECT 1; SELECT 2",
        "PRAGMA version",
        "",
    ],
)
def test_anything_but_one_select_is_refused(sql, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError):
        tables_of(sql)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM glob('{file}')",
        "SELECT getenv('HOME')",
        "WITH x AS (SELECT * FROM read_blob('{file}')) SELECT * FROM x",
        "SELECT * FROM query('SELECT * FROM read_text(''{file}'')')",
    ],
)
def test_a_query_reads_no_files(sql, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("secret\n1\n")
    with (
        pytest.raises(StatementError),
        Query(sql.format(file=secret), lambda _name: NoRows()) as query,
    ):
        list(query.results())


def test_a_variable_of_the_program_is_no_table():
    orders = [1]  # noqa: F841 - a name in reach of DuckDB's search for variables
    with Query("SELECT count(*) FROM orders", lambda _name: NoRows()) as query:
        counts = [row["count_star()"] for rows in query.results() for row in rows.to_pylist()]
    assert counts == [0]


def test_an_error_shows_the_place_in_the_users_own_lines():
    with pytest.raises(StatementError) as error:
        tables_of("SELECT\n  nope\nFROM orders")
    assert "LINE 2:   nope" in str(error.value).splitlines()
    assert "EXPLAIN" not in str(error.value)


def test_names_that_differ_only_in_case_are_refused():
    with pytest.raises(OptionError, match="orders and Orders"):
        tables_of("SELECT * FROM orders, Orders")
