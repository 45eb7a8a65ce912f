"""The state folder's file of DynamoDB tables: the changes of each request, replayed at the next start.

A request is carried out by moto, and its changes are appended before it is answered. If moto refuses
it, or if the change cannot be written, moto's tables are restored: their state is always the one that was
acknowledged. CloudWatch and STS keep nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock_local import moto_tables
from penstock_local.errors import OptionError
from penstock_local.frames import Frame, FrameFile
from penstock_local.http import Response
from penstock_local.service_errors import RequestRefused
from penstock_local.state_folder import StateFolder
from penstock_local.table_image import Delta, Identity, Image, RegionImage, identity, is_removal

_FILE = "dynamodb.journal"
_DELTA = b"T"
_COMPACT_BYTES_MIN = 1024 * 1024
_READ_PREFIXES = ("BatchGet", "Describe", "Get", "List", "Query", "Scan", "TransactGet")
# these do not change items of existing tables
_TABLE_OPERATIONS = frozenset(
    {
        "CreateTable",
        "UpdateTable",
        "DeleteTable",
        "TagResource",
        "UntagResource",
        "UpdateTimeToLive",
        "UpdateContinuousBackups",
        "CreateBackup",
        "DeleteBackup",
        "RestoreTableFromBackup",
        "RestoreTableToPointInTime",
        "PutResourcePolicy",
        "DeleteResourcePolicy",
    }
)

log = logging.getLogger("penstock_local")

BackendOf = Callable[[str], moto_tables.Backend | None]
"""Returns moto's tables of a region; None for a region that moto does not know."""


class TableJournal:
    """Keeps the tables in a state folder; used from the thread that talks to moto, and only from it.

    Args:
        backend_of: Finds moto's tables.
    """

    def __init__(self, folder: StateFolder, backend_of: BackendOf) -> None:
        self._file = FrameFile(folder, _FILE)
        self._backend_of = backend_of
        self._image = Image()

    def load(self) -> None:
        """Restore the tables from the file.

        Raises:
            OptionError: The file is damaged, or cannot be read or written.
        """
        if self._file.create_if_missing(self._frames):
            return
        for at, kind, payload in self._file.frames():
            try:
                _apply(self._image, kind, payload)
            except (LookupError, ArithmeticError, ValueError, msgspec.MsgspecError) as error:
                raise self._file.damage_error(
                    at, f"a change does not fit those before it ({error!r})"
                ) from error
        for name, region in self._image.regions.items():
            if not region.tables and not region.extras:
                continue
            backend = self._backend_of(name)
            if backend is None:
                raise OptionError(f"{self._file.path} has tables in {name}, a region that moto does not know")
            _restore_region(backend, region)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def carry_out(
        self, region_name: str, operation: str, body: bytes, request: Callable[[], Response]
    ) -> Response:
        """Carry a request out and keep its changes.

        Args:
            region_name: The region it is for.
            body: Its JSON.
            request: Passes the request to moto.

        Returns:
            moto's answer.

        Raises:
            RequestRefused: The changes cannot be stored. moto's tables are as they were before.
        """
        backend = None if operation.startswith(_READ_PREFIXES) else self._backend_of(region_name)
        if backend is None:
            return request()
        region = self._image.regions.get(region_name) or RegionImage()
        before = {name: (table, _stream_length(table)) for name, table in backend.tables.items()}
        response = request()
        try:
            delta = _difference(backend, region_name, region, operation, _changeable_items(operation, body))
            if response.status == 200:
                self._keep_changes(delta)
            else:
                _undo_changes(backend, region, delta, before)
        except RequestRefused:
            _undo_changes(backend, region, delta, before)
            raise
        except Exception as error:
            # state of moto that cannot be kept is dropped: only the acknowledged state remains
            log.exception("what %s changed cannot be kept", operation)
            _restore_region(backend, region)
            raise RequestRefused(
                "InternalFailure", f"penstock-local cannot keep this: {error!r}", 500
            ) from error
        return response

    def _keep_changes(self, delta: Delta) -> None:
        if not delta:
            return
        self._file.append(_DELTA, msgspec.json.encode(delta))
        self._image.apply(delta)
        if self._file.size > max(_COMPACT_BYTES_MIN, 3 * self._image.live_bytes):
            self._file.compact(self._frames)

    def _frames(self) -> Iterator[Frame]:
        return ((_DELTA, msgspec.json.encode(delta)) for delta in self._image.deltas())


def _apply(image: Image, kind: bytes, payload: bytes) -> None:
    if kind != _DELTA:
        raise ValueError(f"unknown kind {kind!r}")
    image.apply(msgspec.json.decode(payload, type=Delta))


# -- the changes of a request -------------------------------------------------------------------------------


def _changeable_items(operation: str, body: bytes) -> list[tuple[str, dict[str, Any]]] | None:
    """Return table and attributes (the key among them) of each item that a request can change; None if these are unknown."""
    with contextlib.suppress(msgspec.DecodeError, LookupError, TypeError, AttributeError):
        document = msgspec.json.decode(body)
        match operation:
            case "PutItem":
                return [(document["TableName"], document["Item"])]
            case "UpdateItem" | "DeleteItem":
                return [(document["TableName"], document["Key"])]
            case "BatchWriteItem":
                return [
                    (table, put["PutRequest"]["Item"] if "PutRequest" in put else put["DeleteRequest"]["Key"])
                    for table, puts in document["RequestItems"].items()
                    for put in puts
                ]
            case "TransactWriteItems":
                writes = [write for item in document["TransactItems"] for write in item.items()]
                return [
                    (write["TableName"], write["Item"] if kind == "Put" else write["Key"])
                    for kind, write in writes
                ]
    return None


def _difference(
    backend: moto_tables.Backend,
    region_name: str,
    region: RegionImage,
    operation: str,
    keys: list[tuple[str, dict[str, Any]]] | None,
) -> Delta:
    """Return the differences between moto's tables and the image, after a request that could change these keys."""
    places = None if keys is None else _table_keys(backend, keys)
    if places is not None:
        delta = Delta(region_name)
        for name, key in places:
            _compare_item(delta, region, name, key, moto_tables.find_item(backend.tables[name], key))
        if all(_has_same_count(backend, region, delta, name) for name, _ in places):
            return delta
        # moto has changed other items than those with these keys: compare everything
    return _whole_difference(backend, region_name, region, operation)


def _whole_difference(
    backend: moto_tables.Backend, region_name: str, region: RegionImage, operation: str
) -> Delta:
    """Return what differs between moto's tables and their image, after an operation that may have changed any of them."""
    delta = Delta(region_name)
    states = {name: moto_tables.table_state(table) for name, table in backend.tables.items()}
    for name in region.tables:
        if name not in states:
            delta.add_table(name, None)
    for name, state in states.items():
        known = region.tables.get(name)
        if known is None or known.state != state:
            delta.add_table(name, state)
        if known is None or operation not in _TABLE_OPERATIONS:
            _compare_items(delta, region, name, backend.tables[name])
    extras = moto_tables.extras_of(backend, region.extras)
    for name in {**region.extras, **extras}:
        if region.extras.get(name) != extras.get(name):
            delta.add_extra(name, extras.get(name))
    return delta


def _table_keys(
    backend: moto_tables.Backend, keys: list[tuple[str, dict[str, Any]]]
) -> list[tuple[str, list[Any]]] | None:
    """Return table name and key of each item once; None if a table or key cannot be found."""
    by_arn = {table.table_arn: table for table in backend.tables.values()}
    found: dict[tuple[str, Identity], list[Any]] = {}
    for name, attributes in keys:
        table = backend.tables.get(name) or by_arn.get(name)
        key = None if table is None else moto_tables.normal_key(table, attributes)
        if table is None or key is None:
            return None
        try:
            found[table.name, identity(key)] = key
        except (ArithmeticError, ValueError):
            return None
    return [(name, key) for (name, _), key in found.items()]


def _has_same_count(backend: moto_tables.Backend, region: RegionImage, delta: Delta, name: str) -> bool:
    """Return whether moto's table has as many items as the image will have after the change."""
    image = region.tables.get(name)
    known = {} if image is None else image.items
    changed = [
        (identity(msgspec.json.decode(key)), is_removal(raw))
        for table, key, raw in delta.items
        if table == name
    ]
    removed = sum(gone for _, gone in changed)
    added = sum(not gone and place not in known for place, gone in changed)
    return len(backend.tables[name]) == len(known) + added - removed


def _compare_item(delta: Delta, region: RegionImage, name: str, key: list[Any], item: Any | None) -> None:
    attributes = None if item is None else moto_tables.attributes_of(item)
    if attributes != region.attributes(name, key):
        delta.add_item(name, key if item is None else moto_tables.key_of(item), attributes)


def _compare_items(delta: Delta, region: RegionImage, name: str, table: moto_tables.Table) -> None:
    for item in moto_tables.items_of(table):
        _compare_item(delta, region, name, moto_tables.key_of(item), item)
    known = region.tables.get(name)
    for key, _ in [] if known is None else known.items.values():
        place = msgspec.json.decode(key)
        if moto_tables.find_item(table, place) is None:
            delta.add_item(name, place, None)


# -- restoring ----------------------------------------------------------------------------------------------


def _undo_changes(
    backend: moto_tables.Backend,
    region: RegionImage,
    delta: Delta,
    before: dict[str, tuple[moto_tables.Table, int | None]],
) -> None:
    """Restore moto's tables from the image, where they differ from it.

    Args:
        backend: moto's tables.
        region: The image.
        delta: Where they differ.
        before: The tables before the request, and how many records the stream of each had; None without one.
    """
    for name in delta.tables:
        known = region.tables.get(name)
        if known is None:
            del backend.tables[name]
            continue
        if name not in backend.tables:
            # the table itself, because its stream is kept nowhere else
            backend.tables[name] = before[name][0]
            _compare_items(delta, region, name, backend.tables[name])
        moto_tables.renew_table(backend.tables[name], known.state)
    for name, raw_key, _ in delta.items:
        if name in region.tables:
            key = msgspec.json.decode(raw_key)
            attributes = region.attributes(name, key)
            document = None if attributes is None else msgspec.json.decode(attributes)
            moto_tables.set_item(backend.tables[name], key, document)
    for name in delta.extras:
        moto_tables.set_extra(backend, name, region.extras.get(name))
    for name in region.tables if delta.tables else ():
        # listed in the order that they were made in
        backend.tables.move_to_end(name)
    for name, table in backend.tables.items():
        if name in before:
            _forget_stream_records(table, before[name][1])


def _restore_region(backend: moto_tables.Backend, region: RegionImage) -> None:
    """Rebuild everything in moto from the image."""
    backend.tables.clear()
    backend.backups.clear()
    for name in region.tables:
        _restore_table(backend, region, name)
    for name, state in region.extras.items():
        moto_tables.set_extra(backend, name, state)


def _restore_table(backend: moto_tables.Backend, region: RegionImage, name: str) -> None:
    known = region.tables[name]
    table = moto_tables.make_table(known.state, backend.account_id)
    for key, attributes in known.items.values():
        moto_tables.set_item(table, msgspec.json.decode(key), msgspec.json.decode(attributes))
    backend.tables[name] = table


def _stream_length(table: moto_tables.Table) -> int | None:
    return None if table.stream_shard is None else len(table.stream_shard.items)


def _forget_stream_records(table: moto_tables.Table, length: int | None) -> None:
    """Remove the records that a refused request added to the table's stream."""
    if table.stream_shard is None:
        return
    if length is None:
        table.stream_shard = None
    else:
        del table.stream_shard.items[length:]
