"""Implement the LeaseTable port over DynamoDB."""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from penstock.aws.aws_options import AwsOptions
from penstock.aws.keyed_table import KeyedTable, is_usable
from penstock.aws.lease_codec import (
    ENTITY,
    KCL3_ENTITIES,
    KEY,
    Item,
    NotALease,
    read_item,
    write_item,
)
from penstock.aws.lease_expressions import update_for
from penstock.aws.service_calls import TABLE_PAGING, call_with_rows, pages_of
from penstock.core.leases.lease import Lease, TablePart
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import (
    Applied,
    Create,
    Delete,
    LeaseWrite,
    Outcome,
    Refusal,
    Refused,
)
from penstock.errors import AccessDenied, Rejected, ServiceError
from penstock.ports.lease_table import LeaseScan, SkippedRow
from penstock.runtime.settled_writes import write_settled
from penstock.runtime.system_clock import SystemClock
from penstock.runtime.threads import begin_on_daemon, map_on_daemons

_log: Final = logging.getLogger("penstock.aws")
_CONDITION_FAILED: Final = "ConditionalCheckFailedException"
_CLOCK: Final = SystemClock()
_CHANCE: Final = random.SystemRandom()
_BATCH_KEYS_MAX: Final = 100  # keys in one BatchGetItem
_FETCH: Final = "penstock-fetch"
_FETCH_THREADS_MAX: Final = 16
_USABLE_WITHIN_S: Final = 600.0


class DynamoLeaseTable:
    """Implements `penstock.ports.lease_table.LeaseTable`; safe to use from several threads.

    Args:
        name: The table's name; by KCL's convention the application's.
    """

    def __init__(self, name: str, options: AwsOptions) -> None:
        self._name = name
        self._options = options
        self._keyed_table = KeyedTable(
            name, KEY, options, kind="lease table", remedy="choose another application name or lease table"
        )
        self._may_fetch_batches = True
        self._row_count = 0
        self._description: Any = None
        """The latest answer of DescribeTable; None after `take_description` has returned it."""
        self._first_call: Future[Any] | None = None

    def __repr__(self) -> str:
        """Show the table and its address, never the credentials."""
        return f"DynamoLeaseTable({self._name!r}, {self._options!r})"

    @property
    def name(self) -> str:
        return self._name

    # --- the table ----------------------------------------------------------------------------------------

    def ensure_exists(self) -> bool:
        first, self._first_call = self._first_call, None
        table = self._keyed_table.describe() if first is None else first.result()
        is_created = table is None and self._keyed_table.create()
        if is_created:
            _log.info("made lease table %s", self._name)
        if not is_usable(table):
            table = self._keyed_table.wait_until_usable(_USABLE_WITHIN_S)
        self._description, self._row_count = table, int(table.get("ItemCount", 0))
        return is_created is True

    def begin_describing(self) -> None:
        """Make the first DescribeTable in a thread, while the caller makes other calls; `ensure_exists` waits for its answer."""
        self._first_call = begin_on_daemon("penstock-table", self._keyed_table.describe)

    def take_description(self) -> Any:
        """Return the last description of the table and forget it; None if there is no new one, or the table is missing."""
        description, self._description = self._description, None
        return description

    # --- reading ------------------------------------------------------------------------------------------

    @property
    def row_count(self) -> int:
        return self._row_count

    def scan(self, part: TablePart | None = None) -> LeaseScan:
        arguments: dict[str, Any] = {"ConsistentRead": part is None}
        if part is not None and not part.is_whole_table:
            arguments |= {"Segment": part.number, "TotalSegments": part.count}
        items: list[Item] = []
        for page in pages_of(partial(self._keyed_table.call, "Scan"), TABLE_PAGING, **arguments):
            items += page["Items"]
            if items and KEY not in items[0]:
                self._keyed_table.describe()  # raises: the table has another key
        return _scan_of(items)

    def fetch_many(self, keys: Collection[str]) -> LeaseScan:
        """Read the rows of these keys, strongly consistent, a hundred in one call."""
        row_keys = sorted(set(keys))
        if self._may_fetch_batches:
            chunks = [row_keys[at : at + _BATCH_KEYS_MAX] for at in range(0, len(row_keys), _BATCH_KEYS_MAX)]
            try:
                batches = map_on_daemons(_FETCH, _FETCH_THREADS_MAX, self._fetch_batch, chunks)
                return _scan_of(item for items in batches for item in items)
            except AccessDenied as error:
                # The KCL never makes this call, so a policy that was written for the KCL does not allow it.
                self._may_fetch_batches = False
                _log.info("lease table %s is read row by row: %s", self._name, error)
        items = map_on_daemons(_FETCH, _FETCH_THREADS_MAX, self._fetch_item, row_keys)
        return _scan_of(item for item in items if item is not None)

    def _fetch_batch(self, keys: list[str]) -> list[Item]:
        request = {self._name: {"Keys": [{KEY: {"S": key}} for key in keys], "ConsistentRead": True}}
        answers = call_with_rows("BatchGetItem", f"lease table {self._name}", request, self._options)
        return [item for answer in answers for item in answer.get("Responses", {}).get(self._name, ())]

    def _fetch_item(self, key: str) -> Item | None:
        answer = self._keyed_table.call("GetItem", Key={KEY: {"S": key}}, ConsistentRead=True)
        item: Item | None = answer.get("Item")
        return item

    def fetch(self, key: str) -> Lease | None:
        item = self._fetch_item(key)
        if item is None:
            return None
        return self._read(key, item, "GetItem")

    def _read(self, key: str, item: Item, operation: str) -> Lease:
        try:
            return read_item(item)
        except NotALease as error:
            raise Rejected(
                f"lease table {self._name}, row {key!r} cannot be read as a lease: {error}; repair or delete the row",
                operation=operation,
                resource=key,
            ) from error

    # --- writing ------------------------------------------------------------------------------------------

    def write(self, write: LeaseWrite) -> Outcome:
        return write_settled(
            write,
            fetch=self.fetch,
            send=self._send,
            retry_plan=self._options.retry_plan,
            clock=_CLOCK,
            chance=_CHANCE,
            table=self._name,
        )

    def _send(self, write: LeaseWrite, previous_owner: str | None) -> Outcome:
        try:
            if isinstance(write, Create):
                self._keyed_table.call("PutItem", is_write=True, **_creation_of(write.lease))
                return Applied(write.lease)
            arguments: dict[str, Any] = {
                "Key": {KEY: {"S": write.key}},
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                **update_for(write, previous_owner).request(),
            }
            if isinstance(write, Delete):
                self._keyed_table.call("DeleteItem", is_write=True, **arguments)
                return Applied(None)
            arguments["ReturnValues"] = "ALL_NEW"
            answer = self._keyed_table.call("UpdateItem", is_write=True, **arguments)
            return Applied(self._read(write.key, answer["Attributes"], "UpdateItem"))
        except ServiceError as error:
            if error.code != _CONDITION_FAILED:
                raise
            return self._refused_write(write, error)

    def _refused_write(self, write: LeaseWrite, error: ServiceError) -> Refused:
        response = getattr(error.__cause__, "response", {})
        item = response.get("Item")
        row = self.fetch(write.key) if item is None else self._read(write.key, item, error.operation)
        outcome = apply_write(row, write)
        # The row may have changed between the refusal and a read; then the counter has changed.
        return outcome if isinstance(outcome, Refused) else Refused(Refusal.COUNTER, row)


def _creation_of(lease: Lease) -> dict[str, Any]:
    return {
        "Item": write_item(lease),
        "ConditionExpression": "attribute_not_exists(#key)",
        "ExpressionAttributeNames": {"#key": KEY},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _scan_of(items: Iterable[Item]) -> LeaseScan:
    leases, skipped_rows = [], []
    for item in items:
        if item.get(ENTITY, {}).get("S") in KCL3_ENTITIES:
            continue  # read by `penstock.aws.kcl3_tables`
        try:
            leases.append(read_item(item))
        except NotALease as error:
            skipped_rows.append(SkippedRow(item.get(KEY, {}).get("S", "?"), str(error)))
    return LeaseScan(tuple(leases), tuple(skipped_rows))
