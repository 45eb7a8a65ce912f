"""Implement the LeaseTable port over objects with conditional writes: one object for each lease.

An object holds a row as DynamoDB's JSON has it, as `penstock leases --save` prints it too. A write
is decided by the rule itself (`apply_write`) on the row as it was read, and is stored only if the object has not changed since.
"""

from __future__ import annotations

import base64
import random
import threading
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from penstock.aws.lease_codec import NotALease, read_item, write_item
from penstock.core.backoff import RetryPlan
from penstock.core.leases.lease import Lease, TablePart
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import LeaseWrite, Outcome, Refused
from penstock.errors import Rejected, Throttled
from penstock.ports.lease_table import LeaseScan, SkippedRow
from penstock.ports.object_store import OBJECT_BYTES_MAX, ObjectStore, StoredObject
from penstock.runtime.settled_writes import write_settled
from penstock.runtime.system_clock import SystemClock

_CLOCK: Final = SystemClock()
_CHANCE: Final = random.SystemRandom()
_SUFFIX: Final = ".json"


class _Row(Struct, frozen=True):
    """A lease, the tag of its object, and the attributes that this version does not know."""

    lease: Lease
    tag: str
    unknown_attributes: dict[str, Any]


class _UnreadableObject(Struct, frozen=True):
    """An object that cannot be read as a lease, as long as its tag is this one."""

    skipped_row: SkippedRow
    tag: str


class ObjectLeaseTable:
    """Implements `penstock.ports.lease_table.LeaseTable`; safe to use from several threads.

    Args:
        store: The store of the objects.
        retry_plan: When a write that lost against another one is tried again.
    """

    def __init__(self, store: ObjectStore, retry_plan: RetryPlan) -> None:
        self._store = store
        self._retry_plan = retry_plan
        self._lock = threading.Lock()
        # The rows as last read or written; another worker may have changed them since.
        self._rows: dict[str, _Row] = {}
        self._unreadable_objects: dict[str, _UnreadableObject] = {}  # of the last scan, by name
        self._row_count = 0

    def __repr__(self) -> str:
        """Show the bucket or folder."""
        return f"ObjectLeaseTable({self._store.url!r})"

    @property
    def name(self) -> str:
        return self._store.url

    @property
    def row_count(self) -> int:
        """The number of rows that the last scan found."""
        return self._row_count

    def ensure_exists(self) -> bool:
        """Create the folder, or check that the bucket can be used; return True if it holds nothing yet."""
        return self._store.prepare()

    # --- reading ------------------------------------------------------------------------------------------

    def scan(self, part: TablePart | None = None) -> LeaseScan:
        """Read every row, or those of a part. Only objects that have changed are fetched."""
        with self._lock:
            known, unreadable_objects = dict(self._rows), self._unreadable_objects
        tags = {name: each.tag for name, each in unreadable_objects.items()}
        tags |= {_name_of(key): row.tag for key, row in known.items()}
        read: dict[str, _Row] = {}
        skipped: dict[str, _UnreadableObject] = {}
        for name, stored in self._store.read_all(tags, _SUFFIX).items():
            key = _key_of(name)
            if not key:
                continue
            if stored is not None:
                try:
                    read[key] = _read(name, stored)
                except NotALease as error:
                    skipped[name] = _unreadable_object(name, stored, error)
            elif key in known and name == _name_of(key):
                read[key] = known[key]
            else:
                skipped[name] = unreadable_objects[name]
        leases = tuple(row.lease for key, row in read.items() if part is None or part.holds(key))
        rows = (each.skipped_row for each in skipped.values())
        with self._lock:
            # Rows written meanwhile are newer than the listing.
            kept = {key: row for key, row in self._rows.items() if known.get(key) is not row}
            self._rows = {**read, **kept}
            self._unreadable_objects = skipped
            self._row_count = len(read)
        return LeaseScan(leases, tuple(row for row in rows if part is None or part.holds(row.key)))

    def fetch(self, key: str) -> Lease | None:
        row = self._fetch(key)
        return None if row is None else row.lease

    def fetch_many(self, keys: Collection[str]) -> LeaseScan:
        leases, skipped = [], []
        for name, stored in self._store.read_many([_name_of(key) for key in keys]).items():
            try:
                row = _read(name, stored)
            except NotALease as error:
                skipped.append(_unreadable_object(name, stored, error).skipped_row)
            else:
                self._cache_row(row.lease.key, row)
                leases.append(row.lease)
        return LeaseScan(tuple(leases), tuple(skipped))

    def _fetch(self, key: str) -> _Row | None:
        name = _name_of(key)
        stored = self._store.read(name)
        try:
            row = None if stored is None else _read(name, stored)
        except NotALease as error:
            raise Rejected(
                f"lease table {self.name}, row {key!r} cannot be read as a lease: {error}; repair or delete the object",
                operation="read",
                resource=key,
            ) from error
        self._cache_row(key, row)
        return row

    def _cache_row(self, key: str, row: _Row | None) -> None:
        with self._lock:
            if row is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = row

    # --- writing ------------------------------------------------------------------------------------------

    def write(self, write: LeaseWrite) -> Outcome:
        return write_settled(
            write,
            fetch=self.fetch,
            send=self._send,
            retry_plan=self._retry_plan,
            clock=_CLOCK,
            chance=_CHANCE,
            table=self.name,
        )

    def _send(self, write: LeaseWrite, _previous_owner: str | None) -> Outcome:
        """Decide by the cached row first; a refusal or a lost race is decided again by the row as it is in the store."""
        with self._lock:
            row = self._rows.get(write.key)
        is_fresh, lost_count, began_s = False, 0, _CLOCK.monotonic_s()
        while True:
            if row is None or lost_count:
                row, is_fresh = self._fetch(write.key), True
            outcome = apply_write(None if row is None else row.lease, write)
            if isinstance(outcome, Refused):
                if is_fresh:
                    return outcome
                row = None  # the cached row may be old
                continue
            if self._put(write.key, row, outcome.lease):
                return outcome
            lost_count += 1
            delay_s = self._retry_plan.delay_s(lost_count, _CLOCK.monotonic_s() - began_s, _CHANCE.random())
            if delay_s is None:
                raise Throttled(
                    f"lease table {self.name}, row {write.key}: {type(write).__name__} lost against other writes each time; are "
                    "many workers writing this lease?",
                    operation="write",
                    resource=write.key,
                )
            _CLOCK.sleep(delay_s)

    def _put(self, key: str, row: _Row | None, lease: Lease | None) -> bool:
        """Write a lease over the row that was read, or delete that row if the lease is None; return False if the row has changed since."""
        name = _name_of(key)
        try:
            if lease is None:
                assert row is not None, f"lease {key}: there is no row to delete"
                is_done = self._store.delete(name, row.tag)
                written = None
            else:
                unknown_attributes = {} if row is None else row.unknown_attributes
                tag = self._store.write(
                    name, _encode(lease, unknown_attributes), None if row is None else row.tag
                )
                is_done = tag is not None
                written = None if tag is None else _Row(lease, tag, unknown_attributes)
        except BaseException:
            self._cache_row(key, None)  # the row is not known now
            raise
        self._cache_row(key, written)
        return is_done


def _name_of(key: str) -> str:
    return quote(key, safe="") + _SUFFIX


def _key_of(name: str) -> str:
    return unquote(name.removesuffix(_SUFFIX))


def _encode(lease: Lease, unknown_attributes: dict[str, Any]) -> bytes:
    item = {**unknown_attributes, **write_item(lease)}
    return msgspec.json.format(msgspec.json.encode(item, enc_hook=_json_value), indent=1)


def _json_value(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a lease holds a {type(value).__name__}, which JSON cannot hold")


def _unreadable_object(name: str, stored: StoredObject, error: NotALease) -> _UnreadableObject:
    """Return the report of an object that is not a row. It names the lease's key, or the object if its name is not a lease's."""
    key = _key_of(name)
    return _UnreadableObject(SkippedRow(key if _name_of(key) == name else name, str(error)), stored.tag)


def _read(name: str, stored: StoredObject) -> _Row:
    """Return the row of a lease that an object holds.

    Raises:
        NotALease: The object is not a row, or the row of another lease.
    """
    key = _key_of(name)
    if _name_of(key) != name:
        raise NotALease(f"its name is not that of a lease's object ({_name_of(key)})")
    if stored.is_too_large:
        raise NotALease(f"it is larger than {OBJECT_BYTES_MAX} bytes, and no lease is")
    try:
        item = _with_bytes(msgspec.json.decode(stored.data))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise NotALease(f"it is not a JSON document: {error}") from error
    if not isinstance(item, dict) or not all(isinstance(value, dict) for value in item.values()):
        raise NotALease("it is not a row of a lease table")
    lease = read_item(item)
    if lease.key != key:
        raise NotALease(f"it holds the row of lease {lease.key}: was the object copied or renamed?")
    known = write_item(lease).keys()
    return _Row(lease, stored.tag, {name: value for name, value in item.items() if name not in known})


def _with_bytes(value: Any) -> Any:
    """Return a document with its binary attributes decoded: JSON holds them as Base64."""
    if isinstance(value, dict):
        if value.keys() == {"B"} and isinstance(value["B"], str):
            return {"B": base64.b64decode(value["B"], validate=True)}
        return {name: _with_bytes(each) for name, each in value.items()}
    return [_with_bytes(each) for each in value] if isinstance(value, list) else value
