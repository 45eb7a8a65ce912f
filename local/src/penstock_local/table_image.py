"""The state folder's image of DynamoDB: tables, items, backups and policies as documents, and changes of them.

Pure: this module uses neither moto nor files. The image has the acknowledged state. After every request moto's tables
must agree with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec

_GONE = b"null"
_FRAME_ITEMS = 500

Identity = tuple[tuple[str, Any], ...]
"""A value that is equal for equal keys of items: 1 and 1.0 are the same key."""


class Delta(msgspec.Struct, omit_defaults=True):
    """The changes of one request in one region.

    Attributes:
        tables: State by name of each table that is new or changed; `null` for one that is gone.
        items: Table, key and attributes of each item that is new or changed; `null` for one that is gone.
        extras: Backups and policies by name; `null` for one that is gone.
    """

    region: str
    tables: dict[str, msgspec.Raw] = {}
    items: list[tuple[str, msgspec.Raw, msgspec.Raw]] = []
    extras: dict[str, msgspec.Raw] = {}

    def __bool__(self) -> bool:
        return bool(self.tables or self.items or self.extras)

    def add_table(self, name: str, state: bytes | None) -> None:
        """Add the new state of a table; None removes the table."""
        self.tables[name] = msgspec.Raw(_GONE if state is None else state)

    def add_item(self, table: str, key: list[Any], attributes: bytes | None) -> None:
        """Add the new attributes of an item; None removes the item."""
        self.items.append(
            (
                table,
                msgspec.Raw(msgspec.json.encode(key)),
                msgspec.Raw(_GONE if attributes is None else attributes),
            )
        )

    def add_extra(self, name: str, state: bytes | None) -> None:
        """Add the new state of a backup or policy; None removes it."""
        self.extras[name] = msgspec.Raw(_GONE if state is None else state)


@dataclass(slots=True)
class TableImage:
    """A table: its state, and key and attributes of each item as JSON."""

    state: bytes
    items: dict[Identity, tuple[bytes, bytes]] = field(default_factory=dict)


@dataclass(slots=True)
class RegionImage:
    """The tables of a region by name, in their order, and its backups and policies."""

    tables: dict[str, TableImage] = field(default_factory=dict)
    extras: dict[str, bytes] = field(default_factory=dict)

    def attributes(self, table: str, key: list[Any]) -> bytes | None:
        """Return an item's attributes; None when there is no such item."""
        known = self.tables.get(table)
        found = None if known is None else known.items.get(identity(key))
        return None if found is None else found[1]


@dataclass(slots=True)
class Image:
    """All tables, by region.

    Attributes:
        live_bytes: Estimated size of the whole image when written.
    """

    regions: dict[str, RegionImage] = field(default_factory=dict)
    live_bytes: int = 0

    def apply(self, delta: Delta) -> None:
        """Apply a change.

        Raises:
            LookupError: The change is about a table that does not exist.
        """
        region = self.regions.setdefault(delta.region, RegionImage())
        for name, raw in delta.tables.items():
            state = _bytes_or_none(raw)
            if state is None:
                gone = region.tables.pop(name)
                self.live_bytes -= len(gone.state) + sum(map(_item_bytes, gone.items.values()))
            elif name in region.tables:
                self.live_bytes += len(state) - len(region.tables[name].state)
                region.tables[name].state = state
            else:
                self.live_bytes += len(state)
                region.tables[name] = TableImage(state)
        for name, raw_key, raw in delta.items:
            self._apply_item(region.tables[name], bytes(raw_key), _bytes_or_none(raw))
        for name, raw in delta.extras.items():
            before = region.extras.pop(name, b"")
            extra = _bytes_or_none(raw)
            if extra is not None:
                region.extras[name] = extra
            self.live_bytes += len(extra or b"") - len(before)

    def _apply_item(self, table: TableImage, key: bytes, attributes: bytes | None) -> None:
        item_identity = identity(msgspec.json.decode(key))
        before = table.items.get(item_identity)
        if before is not None:
            self.live_bytes -= _item_bytes(before)
        if attributes is None:
            del table.items[item_identity]
            return
        table.items[item_identity] = after = (key, attributes)
        self.live_bytes += _item_bytes(after)

    def deltas(self) -> Iterator[Delta]:
        """Return changes that make this image from an empty one."""
        for region_name, region in self.regions.items():
            for name, table in region.tables.items():
                delta = Delta(region_name)
                delta.add_table(name, table.state)
                yield delta
                items = [
                    (name, msgspec.Raw(key), msgspec.Raw(attributes))
                    for key, attributes in table.items.values()
                ]
                for begin in range(0, len(items), _FRAME_ITEMS):
                    yield Delta(region_name, items=items[begin : begin + _FRAME_ITEMS])
            for name, state in region.extras.items():
                delta = Delta(region_name)
                delta.add_extra(name, state)
                yield delta


def identity(key: list[Any]) -> Identity:
    """Return a value that is equal for equal keys.

    Raises:
        ValueError: The parts are not attribute values that a key may have (or `ArithmeticError`, for a number).
    """
    found: list[tuple[str, Any]] = []
    for part in key:
        match part:
            case {"N": str(value)}:
                found.append(("N", Decimal(value)))
            case {"S": str(value)}:
                found.append(("S", value))
            case {"B": str(value)}:
                found.append(("B", value))
            case _:
                raise ValueError(f"{part!r} is not a key")
    return tuple(found)


def is_removal(raw: msgspec.Raw) -> bool:
    """Return whether a value of a `Delta` stands for a removal."""
    return bytes(raw) == _GONE


def _bytes_or_none(raw: msgspec.Raw) -> bytes | None:
    return None if is_removal(raw) else bytes(raw)


def _item_bytes(item: tuple[bytes, bytes]) -> int:
    return len(item[0]) + len(item[1])
