"""Names of new fields that no column of a table may have, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from unicodedata import category

from msgspec import Struct

from penstock.core.delivering.definition import LAKES, METADATA, Delivery
from penstock.core.delivering.lake_table import may_be_column_name

_SOURCE: Final = frozenset(name.lower() for name in (*METADATA, *METADATA.values(), "data"))

_NO_NAME: Final = "a column needs a name, without control characters or lone surrogates"


class ColumnNameRule(Struct, frozen=True):
    """The rule for the names of new columns. Executors get a copy of it.

    Args:
        taken_names: Names that no new column may have, in lower case, each with the reason.
        is_lake: Whether the format refuses some characters.
    """

    taken_names: dict[str, str]
    is_lake: bool = False

    def refusal(self, name: str) -> str | None:
        """Return why a new field becomes no column; None if it may become one."""
        if not _is_name(name):
            return _NO_NAME
        if self.is_lake and not may_be_column_name(name):
            return "a column of this format has no blank, dot, backquote or any of ,;{}()= in its name"
        return self.taken_names.get(name.lower())

    def inner_refusal(self, name: str, path: str) -> str | None:
        """Return why a new field inside a struct is not added to it; None if it may be.

        Args:
            path: Names of the column and the structs, then its own, with dots.
        """
        if self.is_lake:
            return (
                f"add it to the table with ALTER TABLE … ADD COLUMN {path} and a type, then to the schema, and deliver the dead letters "
                "again with --redeliver"
            )
        return None if _is_name(name) else _NO_NAME


def _is_name(name: str) -> bool:
    return bool(name) and all(category(each) not in ("Cc", "Cs") for each in name)


def column_name_rule(delivery: Delivery, unreadable: Mapping[str, str]) -> ColumnNameRule:
    """Return the rule for the names of a delivery's new columns.

    A new column does not get the name of a computed partition column. Nor does it get the name of a source column that a partition
    expression reads: in expressions a field hides the source's column of the same name, so the partitions would change.

    Args:
        unreadable: The table's columns that no field can fill: type by name.
    """
    taken = {
        name.lower(): f"the table's column of this name is {kind.upper()}, which no field of JSON can fill"
        for name, kind in unreadable.items()
    }
    for part in delivery.partitions:
        for name in {each.partition(".")[0].lower() for each in part.column_names} & _SOURCE:
            taken[name] = (
                f"partition-by={part.expression} reads the source's column of this name; a field that is to take its place has "
                "to be in the schema"
            )
    for part in delivery.partitions:
        if not part.is_plain:
            taken[part.name.lower()] = f"partition-by={part.expression} makes a column of this name"
    for name in delivery.metadata:
        taken[f"_{name}".lower()] = "metadata makes a column of this name"
    return ColumnNameRule(taken, delivery.format in LAKES)
