"""Implement the LeaseTable port over objects with conditional writes: one object for each lease.

An object holds a row as DynamoDB's JSON has it, so that `penstock leases --save` and people read the same everywhere. A write
is decided by the rule itself (`apply_write`) on the row as it was read, and stands only if the object has not changed since.
"""

from __future__ import annotations

import base64
import random
import threading
import time
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from penstock.aws.lease_codec import NotALease, read_item, write_item
from penstock.core.backoff import GiveUp, RetryPlan
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_rules import apply_write, shows
from penstock.core.leases.lease_writes import Applied, LeaseWrite, Outcome, Refused
from penstock.core.leases.table_part import TablePart
from penstock.errors import Rejected, Throttled, UnknownOutcome
from penstock.ports.lease_table import LeaseScan, SkippedRow
from penstock.ports.object_store import ObjectStore, StoredObject

_SUFFIX: Final = ".json"


class _Row(Struct, frozen=True):
    """A lease, the tag of its object, and the attributes that this version does not know."""

    lease: Lease
    tag: str
    unknown: dict[str, Any]


class ObjectLeaseTable:
    """Implements `penstock.ports.lease_table.LeaseTable`; safe to use from several threads.

    Args:
        store: Where the objects are.
        retry_plan: When a write is tried again that lost against another one.
    """

    def __init__(self, store: ObjectStore, retry_plan: RetryPlan) -> None:
        self._store = store
        self._retry_plan = retry_plan
        self._lock = threading.Lock()
        self._rows: dict[
            str, _Row
        ] = {}  # as they were read or written last; another worker may have changed them
        self._row_count = 0

    def __repr__(self) -> str:
        """Show where it is."""
        return f"ObjectLeaseTable({self._store.url!r})"

    @property
    def name(self) -> str:
        """Where it is."""
        return self._store.url

    @property
    def row_count(self) -> int:
        """How many rows the last scan found."""
        return self._row_count

    def ensure_exists(self) -> bool:
        """Make the folder, or see that the bucket can be used; True when no lease is there yet."""
        return self._store.prepare()

    # --- reading ------------------------------------------------------------------------------------------

    def scan(self, part: TablePart | None = None) -> LeaseScan:
        """Read every row, or those of a part. Only rows that have changed are fetched."""
        with self._lock:
            known = dict(self._rows)
        found = self._store.read_all({_name_of(key): row.tag for key, row in known.items()})
        leases, skipped = [], []
        read: dict[str, _Row] = {}
        for name, stored in found.items():
            key = _key_of(name)
            if stored is None:
                read[key] = known[key]
            else:
                try:
                    read[key] = _read(stored)
                except NotALease as error:
                    skipped.append(SkippedRow(key, str(error)))
        for key, row in read.items():
            if part is None or part.holds(key):
                leases.append(row.lease)
        with self._lock:
            # What was written meanwhile is newer than the listing.
            kept = {key: row for key, row in self._rows.items() if known.get(key) is not row}
            self._rows = {**read, **kept}
            self._row_count = len(found)
        if part is not None:
            skipped = [row for row in skipped if part.holds(row.key)]
        return LeaseScan(tuple(leases), tuple(skipped))

    def fetch(self, key: str) -> Lease | None:
        """Read one row."""
        row = self._fetch(key)
        return None if row is None else row.lease

    def fetch_many(self, keys: Collection[str]) -> LeaseScan:
        """Read the rows with these keys."""
        leases, skipped = [], []
        for name, stored in self._store.read_many([_name_of(key) for key in keys]).items():
            key = _key_of(name)
            try:
                row = _read(stored)
            except NotALease as error:
                skipped.append(SkippedRow(key, str(error)))
            else:
                self._keep(key, row)
                leases.append(row.lease)
        return LeaseScan(tuple(leases), tuple(skipped))

    def _fetch(self, key: str) -> _Row | None:
        stored = self._store.read(_name_of(key))
        try:
            row = None if stored is None else _read(stored)
        except NotALease as error:
            raise Rejected(
                f"lease table {self.name}, row {key!r} cannot be read as a lease: {error}; repair or delete the object",
                operation="read",
                resource=key,
            ) from error
        self._keep(key, row)
        return row

    def _keep(self, key: str, row: _Row | None) -> None:
        with self._lock:
            if row is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = row

    # --- writing ------------------------------------------------------------------------------------------

    def write(self, write: LeaseWrite) -> Outcome:
        """Do one conditional write; if its answer is lost, read the row back."""
        with self._lock:
            row = self._rows.get(write.key)
        lost_answer: UnknownOutcome | None = None
        is_fresh, attempt, began_s = False, 0, time.monotonic()
        while True:
            if row is None or attempt:
                row, is_fresh = self._fetch(write.key), True
            lease = None if row is None else row.lease
            if lost_answer is not None and shows(lease, write):
                return Applied(lease)
            outcome = apply_write(lease, write)
            if isinstance(outcome, Refused) and is_fresh:
                return outcome
            attempt += 1
            if isinstance(outcome, Refused):
                continue  # what was known of the row may be old
            try:
                if self._put(write.key, row, outcome.lease):
                    return outcome
            except UnknownOutcome as error:
                lost_answer = error
            self._pause(write, attempt, began_s, lost_answer)

    def _pause(
        self, write: LeaseWrite, attempt: int, began_s: float, lost_answer: UnknownOutcome | None
    ) -> None:
        decision = self._retry_plan.decide(attempt, time.monotonic() - began_s, random.random())
        if isinstance(decision, GiveUp):
            raise self._unsettled(write, lost_answer) from lost_answer
        time.sleep(decision.delay_s)

    def _unsettled(self, write: LeaseWrite, lost_answer: UnknownOutcome | None) -> Throttled | UnknownOutcome:
        what = f"lease table {self.name}, row {write.key}: {type(write).__name__}"
        if lost_answer is None:
            return Throttled(
                f"{what} lost against other writes each time; are many workers writing this lease?",
                operation="write",
                resource=write.key,
            )
        return UnknownOutcome(
            f"{what} was sent and could not be settled; read the row before acting on it",
            operation="write",
            resource=write.key,
        )

    def _put(self, key: str, row: _Row | None, lease: Lease | None) -> bool:
        """Let a lease stand where a row was read; False when that one does not stand any more."""
        name = _name_of(key)
        try:
            if lease is None:
                assert row is not None, f"lease {key}: nothing can be deleted where nothing stands"
                is_done = self._store.delete(name, row.tag)
                written = None
            else:
                unknown = {} if row is None else row.unknown
                tag = self._store.write(name, _encode(lease, unknown), None if row is None else row.tag)
                is_done = tag is not None
                written = None if tag is None else _Row(lease, tag, unknown)
        except BaseException:
            self._keep(key, None)  # nobody knows what stands
            raise
        self._keep(key, written)
        return is_done


def _name_of(key: str) -> str:
    return quote(key, safe="") + _SUFFIX


def _key_of(name: str) -> str:
    return unquote(name.removesuffix(_SUFFIX))


def _encode(lease: Lease, unknown: dict[str, Any]) -> bytes:
    item = {**unknown, **write_item(lease)}
    return msgspec.json.format(msgspec.json.encode(item, enc_hook=_no_json), indent=1)


def _no_json(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a lease holds a {type(value).__name__}, which JSON cannot hold")


def _read(stored: StoredObject) -> _Row:
    try:
        item = _with_bytes(msgspec.json.decode(stored.data))
    except (msgspec.DecodeError, ValueError) as error:
        raise NotALease(f"it is no JSON document: {error}") from error
    if not isinstance(item, dict) or not all(isinstance(value, dict) for value in item.values()):
        raise NotALease("it is no row of a lease table")
    lease = read_item(item)
    known = write_item(lease).keys()
    return _Row(lease, stored.tag, {name: value for name, value in item.items() if name not in known})


def _with_bytes(value: Any) -> Any:
    """Return a document with its binary attributes as bytes, which JSON has as base64."""
    if isinstance(value, dict):
        if value.keys() == {"B"} and isinstance(value["B"], str):
            return {"B": base64.b64decode(value["B"], validate=True)}
        return {name: _with_bytes(each) for name, each in value.items()}
    return [_with_bytes(each) for each in value] if isinstance(value, list) else value
