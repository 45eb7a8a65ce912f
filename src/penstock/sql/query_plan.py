"""The part of a table that a query needs, from DuckDB's optimized plan of the query.

In it, DuckDB has computed constants such as `now() - INTERVAL 2 HOURS`, and has moved the conditions through joins, CTEs and
views as near to the scan as the query's meaning allows. Only conditions directly above a scan are used, and only if all of
their text is understood; every other condition narrows nothing. DuckDB applies all conditions again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from penstock.sql.columns import ARRIVAL, SHARD, TEXT, column_prefix

_INSTANT: Final = (
    r"'(?P<date>\d{4}-\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d)(?P<fraction>\.\d{1,6})?"
    r"(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d))?(?::?(?P<seconds>\d\d))?'"
    r"::(?:TIMESTAMP WITH TIME ZONE|TIMESTAMPTZ)"
)
_COLUMN: Final = r'"?(?P<column>t\d+_\w+)"?'
_COMPARISON: Final = re.compile(rf"{_COLUMN} ?(?P<operator>>=|<=|>|<|=) ?{_INSTANT}")
_FLIPPED_COMPARISON: Final = re.compile(rf"{_INSTANT} ?(?P<operator>>=|<=|>|<|=) ?{_COLUMN}")
_BETWEEN: Final = re.compile(rf"{_COLUMN} BETWEEN (?P<low>'[^']*'::[A-Z ]+?) AND (?P<high>'[^']*'::[A-Z ]+)")
_SHARD_IS: Final = re.compile(rf"{_COLUMN} ?= ?'(?P<shard>shardId-\d{{12}})'")
# The plan shows a column by its own name or by its name in the view.
_ARRIVAL_NAMES: Final = re.compile(rf"{ARRIVAL}\b|\barrived\b")
_FLIPPED_OPERATORS: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "=": "="}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class RowBounds(Struct, frozen=True):
    """Bounds of the rows of a table that a query can use; None bounds nothing.

    Args:
        from_ms: Only rows that arrived at this moment or later; milliseconds since the epoch.
        until_ms: Only rows that arrived before this moment.
        shard_id: Only rows of this shard.
    """

    from_ms: int | None = None
    until_ms: int | None = None
    shard_id: str | None = None

    def intersection(self, other: RowBounds) -> RowBounds:
        """Return bounds of the rows that both allow. If both name a shard, the result has the shard of `self`."""
        lows = [each for each in (self.from_ms, other.from_ms) if each is not None]
        highs = [each for each in (self.until_ms, other.until_ms) if each is not None]
        return RowBounds(max(lows, default=None), min(highs, default=None), self.shard_id or other.shard_id)

    def union(self, other: RowBounds) -> RowBounds:
        """Return bounds of the rows that at least one of them allows."""
        return RowBounds(
            None if self.from_ms is None or other.from_ms is None else min(self.from_ms, other.from_ms),
            None if self.until_ms is None or other.until_ms is None else max(self.until_ms, other.until_ms),
            self.shard_id if self.shard_id == other.shard_id else None,
        )


class TableUse(Struct, frozen=True):
    """How a query uses a table.

    Args:
        bounds: The rows that at least one of its scans needs.
        scan_count: How often the plan scans it.
        has_condition: Whether a scan has a condition on the arrival, even one that is not understood.
        uses_text: Whether a scan uses the column `text`.
    """

    bounds: RowBounds
    scan_count: int
    has_condition: bool
    uses_text: bool

    def union(self, other: TableUse) -> TableUse:
        """Return the use of the table by the scans of both."""
        return TableUse(
            self.bounds.union(other.bounds),
            self.scan_count + other.scan_count,
            self.has_condition or other.has_condition,
            self.uses_text or other.uses_text,
        )


class QueryPlan(Struct, frozen=True):
    """DuckDB's plan of a query.

    Args:
        uses: How each table is used, by its index. A table without an entry is not read, or its scans show no columns.
        scan_count: Scans of all tables.
        is_recursive: Whether the plan has a recursive part, which scans its tables more than once.
        operators: Names of the plan's operators.
    """

    uses: Mapping[int, TableUse]
    scan_count: int
    is_recursive: bool
    operators: frozenset[str]

    def may_read(self, index: int) -> bool:
        """Return whether the query may read a table: a scan shows columns of it, or some scan shows no columns at all."""
        return index in self.uses or self._has_unknown_scan

    @property
    def _has_unknown_scan(self) -> bool:
        return sum(use.scan_count for use in self.uses.values()) != self.scan_count

    def must_store(self, index: int) -> bool:
        """Return whether the rows of a table must be kept, since they may be needed more than once."""
        use = self.uses.get(index)
        return self.is_recursive or self._has_unknown_scan or (use is not None and use.scan_count > 1)


def parse_plan(explained: str, table_count: int) -> QueryPlan:
    """Read the answer of `EXPLAIN (FORMAT JSON)`."""
    uses: dict[int, TableUse] = {}
    scan_count = 0
    operators: set[str] = set()
    for node, conditions in _nodes(json.loads(explained), ()):
        name = str(node.get("name", "")).strip().upper()
        operators.add(name)
        if "ARROW_SCAN" not in name:
            continue
        scan_count += 1
        info = node.get("extra_info") or {}
        columns = _texts(info.get("Projections"))
        own_conditions = [*_texts(info.get("Filters")), *conditions]
        index = next(
            (each for each in range(table_count) if _has_word_from(column_prefix(each), columns)), None
        )
        if index is None:
            continue
        use = TableUse(
            _bounds_of_conditions(own_conditions, column_prefix(index)),
            1,
            any(_ARRIVAL_NAMES.search(text) for text in own_conditions),
            _has_word_from(column_prefix(index) + TEXT, columns),
        )
        uses[index] = use.union(uses[index]) if index in uses else use
    return QueryPlan(
        uses,
        scan_count,
        any("REC" in name.split("_") or "RECURSIVE" in name for name in operators),
        frozenset(operators),
    )


def _nodes(node: Any, conditions: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Yield each operator with the conditions of the filters directly above it."""
    if isinstance(node, list):
        for each in node:
            yield from _nodes(each, conditions)
        return
    yield node, conditions
    is_filter = str(node.get("name", "")).strip().upper() == "FILTER"
    below: tuple[str, ...] = ()
    if is_filter:
        info = node.get("extra_info") or {}
        below = (*conditions, *_texts(info.get("Expression", info.get("Expressions"))))
    for child in node.get("children") or ():
        yield from _nodes(child, below)


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def _has_word_from(name: str, texts: list[str]) -> bool:
    """Return whether a text has a word that begins with this name."""
    return any(re.search(rf"\b{re.escape(name)}", text) for text in texts)


def _bounds_of_conditions(conditions: list[str], prefix: str) -> RowBounds:
    bounds = RowBounds()
    for condition in conditions:
        for part in _conjuncts(condition):
            bounds = bounds.intersection(_bounds_of_condition(part, prefix))
    return bounds


def _bounds_of_condition(text: str, prefix: str) -> RowBounds:
    """Return bounds of the rows for which a condition may hold; no bounds if a part of its text is not understood."""
    between = _BETWEEN.fullmatch(text)
    if between is not None and between["column"] == prefix + ARRIVAL:
        lower = _bounds_of_instant(">=", between["low"])
        return lower.intersection(_bounds_of_instant("<=", between["high"]))
    shard = _SHARD_IS.fullmatch(text)
    if shard is not None and shard["column"] == prefix + SHARD:
        return RowBounds(shard_id=shard["shard"])
    comparison = _COMPARISON.fullmatch(text)
    if comparison is not None and comparison["column"] == prefix + ARRIVAL:
        return _bounds_of_comparison(comparison["operator"], comparison)
    flipped = _FLIPPED_COMPARISON.fullmatch(text)
    if flipped is not None and flipped["column"] == prefix + ARRIVAL:
        return _bounds_of_comparison(_FLIPPED_OPERATORS[flipped["operator"]], flipped)
    return RowBounds()


def _bounds_of_instant(operator: str, instant: str) -> RowBounds:
    match = re.fullmatch(_INSTANT, instant)
    return RowBounds() if match is None else _bounds_of_comparison(operator, match)


def _bounds_of_comparison(operator: str, instant: re.Match[str]) -> RowBounds:
    """Return bounds of the rows for which `arrival <operator> instant` holds.

    Microseconds are rounded to milliseconds: down for a lower bound, up for an upper one. An upper bound is exclusive, so one
    millisecond is added.
    """
    local = datetime.fromisoformat(f"{instant['date']}T{instant['time']}{instant['fraction'] or ''}+00:00")
    ahead_of_utc = timedelta(
        hours=int(instant["hours"]),
        minutes=int(instant["minutes"] or 0),
        seconds=int(instant["seconds"] or 0),
    )
    if instant["sign"] == "-":
        ahead_of_utc = -ahead_of_utc
    micros = (local - _EPOCH - ahead_of_utc) // timedelta(microseconds=1)
    return RowBounds(
        from_ms=micros // 1000 if operator in (">", ">=", "=") else None,
        until_ms=-(-micros // 1000) + 1 if operator in ("<", "<=", "=") else None,
    )


def _conjuncts(text: str) -> Iterator[str]:
    """Yield the parts of a condition that AND joins; a part with OR stays whole."""
    text = text.strip()
    while _is_wrapped(text):
        text = text[1:-1].strip()
    if _BETWEEN.fullmatch(text):
        yield text
        return
    parts = _split(text, " AND ")
    if len(parts) == 1 or len(_split(text, " OR ")) > 1:
        yield text
        return
    for part in parts:
        yield from _conjuncts(part)


def _is_wrapped(text: str) -> bool:
    """Return whether one pair of parentheses encloses the whole text."""
    if not text.startswith("("):
        return False
    return all(depth > 0 for place, depth in _depths(text) if place < len(text) - 1) and text.endswith(")")


def _split(text: str, word: str) -> list[str]:
    """Split at a word outside of parentheses and quotes."""
    parts, begin = [], 0
    for place, depth in _depths(text):
        if depth == 0 and place >= begin and text.startswith(word, place):
            parts.append(text[begin:place])
            begin = place + len(word)
    return [*parts, text[begin:]]


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Yield the place of each character outside of quotes, with the depth of parentheses after it."""
    depth, quote = 0, ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
            continue
        if character in "'\"":
            quote = character
            continue
        depth += {"(": 1, ")": -1}.get(character, 0)
        yield place, depth
