"""Implement the LeaseTable port over DynamoDB."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Literal

from msgspec import Struct, field

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
from penstock.core.keyword_options import check_above_zero, check_choice, check_range
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
_BACKUPS_UNAVAILABLE: Final = "ContinuousBackupsUnavailableException"
_CLOCK: Final = SystemClock()
_CHANCE: Final = random.SystemRandom()
_SEGMENT_COUNT_MAX: Final = 64  # a thread each
_BATCH_KEYS_MAX: Final = 100  # keys in one BatchGetItem
_FETCH_THREADS_MAX: Final = 16


class LeaseTableOptions(Struct, frozen=True):
    """How a lease table is created and read.

    Args:
        billing: `PAY_PER_REQUEST`, or `PROVISIONED` with the two capacities.
        read_capacity_units: Only for PROVISIONED.
        write_capacity_units: Only for PROVISIONED.
        point_in_time_recovery: Whether a new table has it.
        deletion_protection: Whether a new table has it.
        scan_segment_count: Parallel segments of a scan; 1 reads page by page.
        creation_deadline_s: Time for a table to become usable.
    """

    billing: Literal["PAY_PER_REQUEST", "PROVISIONED"] = "PAY_PER_REQUEST"
    read_capacity_units: int = 10
    write_capacity_units: int = 10
    tags: tuple[tuple[str, str], ...] = field(default=())
    point_in_time_recovery: bool = False
    deletion_protection: bool = False
    scan_segment_count: int = 1
    creation_deadline_s: float = 600.0

    def __post_init__(self) -> None:
        check_choice(self, "billing", "PAY_PER_REQUEST", "PROVISIONED")
        check_range(self, 1, None, "read_capacity_units", "write_capacity_units")
        check_range(self, 1, _SEGMENT_COUNT_MAX, "scan_segment_count")
        check_above_zero(self, "creation_deadline_s")


class DynamoLeaseTable:
    """Implements `penstock.ports.lease_table.LeaseTable`; safe to use from several threads.

    Args:
        name: The table's name; by KCL's convention the application's.
        table_options: How the table is created and read.
    """

    def __init__(
        self, name: str, options: AwsOptions, table_options: LeaseTableOptions | None = None
    ) -> None:
        self._name = name
        self._options = options
        self._table_options = LeaseTableOptions() if table_options is None else table_options
        self._keyed = KeyedTable(
            name, KEY, options, kind="lease table", way_out="choose another application name or lease table"
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
        began_s = time.monotonic()
        first, self._first_call = self._first_call, None
        table = self._keyed.describe() if first is None else first.result()
        made = table is None and self._make()
        if not self._keep_description(table):
            self._wait_until(began_s, lambda: self._keep_description(self._keyed.describe()), "usable")
        if made is not False and self._table_options.point_in_time_recovery:
            self._wait_until(began_s, self._switch_recovery_on, "ready for point-in-time recovery")
        return made is True

    def _wait_until(self, began_s: float, is_so: Callable[[], bool], state: str) -> None:
        self._keyed.wait_until(is_so, state, self._table_options.creation_deadline_s, began_s)

    def begin_describing(self) -> None:
        """Make the first DescribeTable in a thread, while the caller makes other calls; `ensure_exists` waits for its answer."""
        self._first_call = begin_on_daemon("penstock-table", self._keyed.describe)

    def take_description(self) -> Any:
        """Return the last description of the table and forget it; None if there is no new one, or the table is missing."""
        description, self._description = self._description, None
        return description

    def _keep_description(self, table: Any) -> bool:
        """Keep a description; return whether the table can be used."""
        self._description = table
        self._row_count = 0 if table is None else int(table.get("ItemCount", 0))
        return is_usable(table)

    def _switch_recovery_on(self) -> bool:
        try:
            self._keyed.call(
                "UpdateContinuousBackups",
                PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True},
            )
        except ServiceError as error:
            if error.code != _BACKUPS_UNAVAILABLE:  # a new table takes a while to get its backups
                raise
            return False
        return True

    def _make(self) -> bool | None:
        """Create the table: True if this call did, False if another worker was first, None if that is unknown."""
        options = self._table_options
        arguments: dict[str, Any] = {"BillingMode": options.billing}
        if options.billing == "PROVISIONED":
            arguments["ProvisionedThroughput"] = {
                "ReadCapacityUnits": options.read_capacity_units,
                "WriteCapacityUnits": options.write_capacity_units,
            }
        if options.tags:
            arguments["Tags"] = [{"Key": key, "Value": value} for key, value in options.tags]
        if options.deletion_protection:
            arguments["DeletionProtectionEnabled"] = True
        made = self._keyed.create(**arguments)
        if made:
            _log.info("made lease table %s", self._name)
        return made

    # --- reading ------------------------------------------------------------------------------------------

    @property
    def row_count(self) -> int:
        return self._row_count

    def scan(self, part: TablePart | None = None) -> LeaseScan:
        wanted: dict[str, Any] = {"ConsistentRead": part is None}
        count = self._table_options.scan_segment_count
        if part is not None and not part.is_whole_table:
            segments = [{**wanted, "Segment": part.number, "TotalSegments": part.count}]
        elif count > 1:
            segments = [{**wanted, "Segment": each, "TotalSegments": count} for each in range(count)]
        else:
            segments = [wanted]
        found = _map(self._scan_segment, segments, count)
        return _leases_and_skipped(item for items in found for item in items)

    def fetch_many(self, keys: Collection[str]) -> LeaseScan:
        """Read the rows of these keys, strongly consistent, a hundred in one call."""
        wanted = sorted(set(keys))
        if self._may_fetch_batches:
            chunks = [wanted[at : at + _BATCH_KEYS_MAX] for at in range(0, len(wanted), _BATCH_KEYS_MAX)]
            try:
                batches = _map(self._fetch_batch, chunks, _FETCH_THREADS_MAX)
                return _leases_and_skipped(item for items in batches for item in items)
            except AccessDenied as error:
                # The KCL never makes this call, so a policy that was written for the KCL does not allow it.
                self._may_fetch_batches = False
                _log.info("lease table %s is read row by row: %s", self._name, error)
        items = _map(self._fetch_item, wanted, _FETCH_THREADS_MAX)
        return _leases_and_skipped(item for item in items if item is not None)

    def _fetch_batch(self, keys: list[str]) -> list[Item]:
        request = {self._name: {"Keys": [{KEY: {"S": key}} for key in keys], "ConsistentRead": True}}
        answers = call_with_rows("BatchGetItem", f"lease table {self._name}", request, self._options)
        return [item for answer in answers for item in answer.get("Responses", {}).get(self._name, ())]

    def _fetch_item(self, key: str) -> Item | None:
        answer = self._keyed.call("GetItem", Key={KEY: {"S": key}}, ConsistentRead=True)
        item: Item | None = answer.get("Item")
        return item

    def _scan_segment(self, wanted: dict[str, Any]) -> list[Any]:
        pages = pages_of(partial(self._keyed.call, "Scan"), *TABLE_PAGING, **wanted)
        items: list[Any] = []
        for page in pages:
            items += page["Items"]
            if items and KEY not in items[0]:
                self._keyed.describe()  # raises: the table has another key
        return items

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
                self._keyed.call("PutItem", is_write=True, **_creation_of(write.lease))
                return Applied(write.lease)
            arguments: dict[str, Any] = {
                "Key": {KEY: {"S": write.key}},
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                **update_for(write, previous_owner).request(),
            }
            if isinstance(write, Delete):
                self._keyed.call("DeleteItem", is_write=True, **arguments)
                return Applied(None)
            arguments["ReturnValues"] = "ALL_NEW"
            answer = self._keyed.call("UpdateItem", is_write=True, **arguments)
            return Applied(self._read(write.key, answer["Attributes"], "UpdateItem"))
        except ServiceError as error:
            if error.code != _CONDITION_FAILED:
                raise
            return self._refused_write(write, error)

    def _refused_write(self, write: LeaseWrite, error: ServiceError) -> Refused:
        response = getattr(error.__cause__, "response", {})
        item = response.get("Item")
        row = self.fetch(write.key) if item is None else self._read(write.key, item, error.operation)
        judged = apply_write(row, write)
        # The row may have changed between the refusal and a read; then the counter was not as expected.
        return judged if isinstance(judged, Refused) else Refused(Refusal.COUNTER, row)


def _map(fetch: Callable[[Any], Any], parts: list[Any], thread_count: int) -> list[Any]:
    """Call `fetch` for each part; a single one needs no thread."""
    if len(parts) == 1:
        return [fetch(parts[0])]
    return map_on_daemons("penstock-fetch", thread_count, fetch, parts)


def _creation_of(lease: Lease) -> dict[str, Any]:
    return {
        "Item": write_item(lease),
        "ConditionExpression": "attribute_not_exists(#key)",
        "ExpressionAttributeNames": {"#key": KEY},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _leases_and_skipped(items: Iterable[Item]) -> LeaseScan:
    leases, skipped = [], []
    for item in items:
        if item.get(ENTITY, {}).get("S") in KCL3_ENTITIES:
            continue  # read by `penstock.aws.kcl3_tables`
        try:
            leases.append(read_item(item))
        except NotALease as error:
            skipped.append(SkippedRow(item.get(KEY, {}).get("S", "?"), str(error)))
    return LeaseScan(tuple(leases), tuple(skipped))
