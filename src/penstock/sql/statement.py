"""Checks a statement with DuckDB's own parser, and finds the tables that it names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.core.keyword_options import check_unicode
from penstock.errors import OptionError, UsageError

if TYPE_CHECKING:
    import duckdb

_CATALOG_SCHEMAS: Final = frozenset({"information_schema", "pg_catalog"})


class StatementError(UsageError):
    """DuckDB refuses the statement. The message is DuckDB's own, of several lines, with a mark below the place."""


def named_tables(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[tuple[str, ...], ...]:
    """Return the names of a SELECT's tables in order, without its CTEs; each as its parts, such as (schema, name).

    Raises:
        StatementError: The statement cannot be parsed.
        OptionError: The statement is not a single SELECT.
    """
    import duckdb

    check_unicode("the query", sql)
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise StatementError(str(error)) from error
    if len(statements) != 1:
        raise OptionError(f"the query has {len(statements)} statements: expected one SELECT")
    (row,) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    document = json.loads(row[0])
    if document["error"]:
        raise OptionError(
            "only SELECT is allowed: a query reads streams and recordings and changes nothing "
            f"({document.get('error_message', '')})"
        )
    return tuple(dict.fromkeys(_find_tables(document["statements"], frozenset())))


def _find_tables(node: Any, ctes: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """Yield the names of the tables that a node of the parsed statement reads, except CTEs; `ctes` are the outer ones, in lower case."""
    if isinstance(node, list):
        for each in node:
            yield from _find_tables(each, ctes)
        return
    if not isinstance(node, dict):
        return
    if node.get("type") == "BASE_TABLE":
        path = _path_of(node)
        if not (len(path) == 1 and path[0].lower() in ctes) and path[0].lower() not in _CATALOG_SCHEMAS:
            yield path
    if node.get("type") == "RECURSIVE_CTE_NODE":
        ctes |= {str(node.get("cte_name", "")).lower()}
    # A CTE sees the CTEs before it, but not itself: one that is named like a stream may read this stream.
    entries = (node.get("cte_map") or {}).get("map", [])
    for entry in entries:
        yield from _find_tables(entry["value"], ctes)
        ctes |= {entry["key"].lower()}
    for key, value in node.items():
        if key != "cte_map":
            yield from _find_tables(value, ctes)


def _path_of(node: dict[str, Any]) -> tuple[str, ...]:
    """Return the parts of a table's name: DuckDB's list of them, or else its three fields."""
    qualified = node.get("qualified_name") or {}
    path = qualified.get("path") or [
        node.get("catalog_name", ""),
        node.get("schema_name", ""),
        node.get("table_name", ""),
    ]
    return tuple(str(part) for part in path if part)
