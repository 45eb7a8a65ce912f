"""Implement the Kcl3Tables port over DynamoDB.

KCL 3.5 keeps everything in the lease table, distinguished by `entityType`. KCL 3.0 to 3.4 have two separate tables,
`<application>-CoordinatorState` and `<application>-WorkerMetricStats`. Applications that began with these tables keep them until
the rows are moved (row `TableMigration3.5`). If the lease table has no index of owners, no KCL 3 worker has ever run.

Source:
    KCL 3.5.1: names, types and conditions of every attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec import Struct

from penstock.aws.aws_options import AwsOptions
from penstock.aws.kinesis import server_ms_of
from penstock.aws.lease_codec import ENTITY, KEY, METRICS_ENTITY, OWNER, Item
from penstock.aws.service_calls import TABLE_PAGING, call_operation, pages_of
from penstock.core.leases.kcl3_fleet import Kcl3Rows, LeaderLock, WorkerStats
from penstock.errors import AccessDenied, ServiceError

INDEX: Final = "LeaseOwnerToLeaseKeyIndex"
_STATE_KEY: Final = "key"
_METRICS_KEY: Final = "wid"
_LEADER: Final = "Leader"
_VERSION: Final = "Migration3.0"
_MIGRATION_KEY: Final = "TableMigration3.5"
_LAST_UPDATE: Final = "lut"
_SAMPLES: Final = "sts"
_LIMITS: Final = "opr"
_PROPERTIES: Final = "properties"
_LIBRARY: Final = "library"  # a property of ours
_METRICS_MIGRATION: Final = frozenset({"TABLE_MIGRATION_STATUS_PENDING", "TABLE_MIGRATION_STATUS_COMPLETE"})


class _Place(Struct, frozen=True):
    """The table that holds rows of one kind, and the name of its key."""

    table: str
    key: str


class _Layout(Struct, frozen=True):
    """The fleet's client version and leader's lock, each None without a row; and the table of the workers' metrics."""

    version: str | None
    leader: LeaderLock | None
    metrics: _Place


class DynamoKcl3Tables:
    """Implements `penstock.ports.kcl3_tables.Kcl3Tables`; safe to use from several threads.

    Args:
        lease_table: The lease table's name; the tables of KCL 3.0 to 3.4 are named after it.
        take_description: Returns DynamoDB's description of the lease table if there is a new one, which saves a call; else None.
    """

    def __init__(
        self, lease_table: str, options: AwsOptions, take_description: Callable[[], Any] | None = None
    ) -> None:
        self._lease_table = lease_table
        self._options = options
        self._take_description = take_description
        self._leases = _Place(lease_table, KEY)
        self._state = _Place(f"{lease_table}-CoordinatorState", _STATE_KEY)
        self._metrics = self._leases  # until `fetch` finds the table of KCL 3.0 to 3.4
        self._server_ms: int | None = None  # the service's clock at its last answer

    def _call(self, operation: str, table: str, **arguments: Any) -> Any:
        answer = call_operation(
            "dynamodb", operation, f"table {table}", self._options, TableName=table, **arguments
        )
        self._server_ms = server_ms_of(answer)
        return answer

    # --- reading ------------------------------------------------------------------------------------------

    def fetch(self, workers: Collection[str] | None = ()) -> Kcl3Rows:
        """Fetch KCL 3's client version, the leader's lock, and the metrics of the leader and of `workers` (None: of all)."""
        status = self._index_status()
        if status is None:
            return Kcl3Rows()
        layout = self._fetch_layout()
        self._metrics = layout.metrics
        if workers is None:
            items = list(self._scan_metrics(layout.metrics))
        else:
            names = {*workers, *(() if layout.leader is None else (layout.leader.owner,))}
            found = (self._item(layout.metrics, name) for name in sorted(names))
            items = [item for item in found if item is not None]
        stats = tuple(_read_stats(item, layout.metrics.key) for item in items if _LAST_UPDATE in item)
        has_index = status == "ACTIVE"
        return Kcl3Rows(layout.version, layout.leader, stats, has_index, self._server_ms)

    def _index_status(self) -> str | None:
        table = None if self._take_description is None else self._take_description()
        if table is None:
            table = self._call("DescribeTable", self._lease_table)["Table"]
        for index in table.get("GlobalSecondaryIndexes", ()):
            if index["IndexName"] == INDEX:
                return str(index["IndexStatus"])
        return None

    def _fetch_layout(self) -> _Layout:
        """Read the fleet's version and leader from the lease table, else from the tables of KCL 3.0 to 3.4; find the table of the metrics."""
        version = self._item(self._leases, _VERSION)
        leader = self._item(self._leases, _LEADER)
        if version is not None and leader is not None:
            return _Layout(_text(version, "cv"), _read_lock(leader), self._leases)
        try:
            old_rows = {name: self._item(self._state, name) for name in (_VERSION, _LEADER, _MIGRATION_KEY)}
        except AccessDenied:
            if version is None:
                raise  # the version may be in the other table
            old_rows = {}
        version = version or old_rows.get(_VERSION)
        leader = leader or old_rows.get(_LEADER)
        has_old_tables = any(item is not None for item in old_rows.values())
        are_metrics_moved = _text(old_rows.get(_MIGRATION_KEY) or {}, "tm") in _METRICS_MIGRATION
        metrics = self._leases
        if has_old_tables and not are_metrics_moved:
            metrics = _Place(f"{self._lease_table}-WorkerMetricStats", _METRICS_KEY)
        return _Layout(
            None if version is None else _text(version, "cv"),
            None if leader is None else _read_lock(leader),
            metrics,
        )

    def _item(self, place: _Place, key: str) -> Item | None:
        """Read one row; None also if its table does not exist."""
        try:
            answer = self._call("GetItem", place.table, Key={place.key: {"S": key}}, ConsistentRead=True)
        except ServiceError as error:
            if error.code != "ResourceNotFoundException":
                raise
            return None
        item: Item | None = answer.get("Item")
        return item

    def _scan_metrics(self, place: _Place) -> Iterator[Item]:
        pages = pages_of(
            partial(self._call, "Scan", place.table),
            TABLE_PAGING,
            ConsistentRead=True,
            FilterExpression="attribute_exists(#reported)",
            ExpressionAttributeNames={"#reported": _LAST_UPDATE},
        )
        return (item for page in pages for item in page["Items"])

    def find_keys_of(self, worker: str) -> frozenset[str]:
        """Return the keys of the leases whose owner is this worker, by the index."""
        pages = pages_of(
            partial(self._call, "Query", self._lease_table),
            TABLE_PAGING,
            IndexName=INDEX,
            KeyConditionExpression="#owner = :worker",
            ExpressionAttributeNames={"#owner": OWNER},
            ExpressionAttributeValues={":worker": {"S": worker}},
        )
        return frozenset(item[KEY]["S"] for page in pages for item in page["Items"])

    # --- writing ------------------------------------------------------------------------------------------

    def report(self, stats: WorkerStats) -> None:
        """Write a worker's metrics to the table in which the last `fetch` found the others'."""
        place = self._metrics
        values: dict[str, Any] = {
            _LAST_UPDATE: {"N": str(stats.reported_s)},
            _SAMPLES: {"M": {name: _numbers(samples) for name, samples in stats.samples.items()}},
            _LIMITS: {"M": {name: _numbers([limit]) for name, limit in stats.limits.items()}},
            _PROPERTIES: {"M": {_LIBRARY: {"S": "penstock"}}},
            ENTITY: {"S": METRICS_ENTITY},
        }
        names = {f"#{number}": name for number, name in enumerate(values)}
        self._call(
            "UpdateItem",
            place.table,
            Key={place.key: {"S": stats.worker}},
            UpdateExpression="SET " + ", ".join(f"{name} = :{name[1:]}" for name in names),
            ExpressionAttributeNames=names,
            ExpressionAttributeValues={f":{name[1:]}": values[names[name]] for name in names},
        )

    def withdraw(self, worker: str) -> None:
        """Delete a worker's metrics, unless the row is of another kind."""
        place = self._metrics
        try:
            self._call(
                "DeleteItem",
                place.table,
                Key={place.key: {"S": worker}},
                ConditionExpression="attribute_exists(#reported)",
                ExpressionAttributeNames={"#reported": _LAST_UPDATE},
            )
        except ServiceError as error:
            if error.code not in ("ConditionalCheckFailedException", "ResourceNotFoundException"):
                raise


def _text(item: Item | Mapping[str, Any], name: str) -> str | None:
    value = item.get(name, {}).get("S")
    return None if value is None else str(value)


def _read_lock(item: Item) -> LeaderLock:
    # The lock's library stores its numbers as text.
    return LeaderLock(
        _text(item, "ownerName") or "",
        _text(item, "recordVersionNumber") or "",
        float(_text(item, "leaseDuration") or 0) / 1000,
        is_released=_text(item, "isReleased") == "1",
    )


def _read_stats(item: Item, key: str) -> WorkerStats:
    def lists(name: str) -> dict[str, list[float]]:
        found = item.get(name, {}).get("M", {})
        return {metric: [float(value["N"]) for value in values["L"]] for metric, values in found.items()}

    return WorkerStats(
        item[key]["S"],
        int(item[_LAST_UPDATE]["N"]),
        lists(_SAMPLES),
        {metric: limits[0] for metric, limits in lists(_LIMITS).items() if limits},
        is_penstock=_LIBRARY in item.get(_PROPERTIES, {}).get("M", {}),
    )


def _numbers(values: Collection[float]) -> dict[str, Any]:
    return {"L": [{"N": f"{value:g}" if value == int(value) else f"{value:.6f}"} for value in values]}
