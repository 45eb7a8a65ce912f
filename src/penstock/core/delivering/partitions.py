"""Partition columns of a table: an expression and the name of its folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from penstock.errors import OptionError

_COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CALL: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*\(\s*[A-Za-z_][A-Za-z0-9_.]*\s*\)")
_NAMED_EXPRESSION: Final = re.compile(
    r"(?P<expression>.*\S)\s+as\s+(?P<name>[A-Za-z_][A-Za-z0-9_]*)", re.IGNORECASE | re.DOTALL
)

_TEXT: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_QUOTED: Final = re.compile(rf"{_TEXT.pattern}|`[^`]*`")
_NAME: Final = re.compile(r"`([^`]+)`|(?<![\w.])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?!\w)(?!\s*\()")


class PartitionColumn(Struct, frozen=True):
    """One partition column.

    Args:
        name: Name of the column, and of the folder before `=`.
        expression: In Spark's SQL, over the source's columns, `arrived`, and the fields of the record.
    """

    name: str
    expression: str

    @property
    def is_plain(self) -> bool:
        """Whether the column is a column of the row, not computed from others."""
        return self.expression == self.name

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names in the expression that may be columns; a struct's field follows after a dot."""
        found = _NAME.findall(_TEXT.sub("''", self.expression))
        return tuple(dict.fromkeys(quoted or plain for quoted, plain in found))

    @property
    def field(self) -> str | None:
        """The column of an expression with a single column, such as `country` or `date(created)`; None for other expressions."""
        if _COLUMN.fullmatch(self.expression) or _CALL.fullmatch(self.expression):
            return self.column_names[0].partition(".")[0]
        return None


def _has_comma(text: str) -> bool:
    """Return whether a text has a comma outside brackets, names and texts of SQL."""
    depth = 0
    for char in _QUOTED.sub("", text):
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            return True
    return False


def parse_partitions(texts: Iterable[str]) -> tuple[PartitionColumn, ...]:
    """Return partition columns as typed: `country`, `date(arrived)` or `substr(id, 1, 2) AS head`.

    Raises:
        OptionError: An expression without a name, a name twice, or several expressions in one text.
    """
    columns: list[PartitionColumn] = []
    for text in texts:
        if _has_comma(text):
            raise OptionError(
                f"partition-by={text}: each expression stands alone; write several as a list, [{text}], or repeat --partition-by"
            )
        named = _NAMED_EXPRESSION.fullmatch(text)
        call = _CALL.fullmatch(text)
        if named is not None:
            column = PartitionColumn(named["name"], named["expression"])
        elif _COLUMN.fullmatch(text):
            column = PartitionColumn(text, text)
        elif call is not None:
            column = PartitionColumn(call[1].lower(), text)
        else:
            raise OptionError(f"partition-by={text}: name the column, for instance `{text} AS part`")
        if column.name.lower() in {each.name.lower() for each in columns}:
            raise OptionError(
                f"partition-by: two columns are named {column.name}; name one with `expression AS name`"
            )
        columns.append(column)
    return tuple(columns)
