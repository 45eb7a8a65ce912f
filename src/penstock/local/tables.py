"""The state folder's file of DynamoDB tables: the requests that made them, replayed at the next start.

Every request that changed something is appended, before it is answered, as one line. At an orderly stop,
and when the file has grown long, it is written anew as the requests that would make the tables as they
are. CloudWatch and STS keep nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import OptionError

_READING = ("BatchGet", "Describe", "Get", "List", "Query", "Scan", "TransactGet")
_LINES_MAX = 5000
_WRITE_ITEMS_MAX = 25
_TABLE_MEMBERS = ("AttributeDefinitions", "KeySchema", "TableName", "DeletionProtectionEnabled")
_INDEX_MEMBERS = ("IndexName", "KeySchema", "Projection")

Send = Callable[[str, str, bytes], tuple[int, bytes]]
"""Carries one DynamoDB request out: region, operation, body; answers status and body."""

log = logging.getLogger("penstock.local")


class TableJournal:
    """Keeps the tables in a folder; used from the thread that talks to moto, and only from it.

    Args:
        folder: The state folder, which exists.
        send: Carries requests out.
    """

    def __init__(self, folder: Path, send: Send) -> None:
        self._path = folder / "dynamodb.jsonl"
        self._send = send
        self._lines = 0
        self._regions: set[str] = set()
        self._fd = -1

    def load(self) -> None:
        """Make the tables again.

        Raises:
            OptionError: The file is damaged, or a request in it is refused.
        """
        raw = self._path.read_bytes() if self._path.exists() else b""
        lines = raw.split(b"\n")
        # what follows the last line end was never acknowledged
        if lines.pop():
            log.warning("%s: its last line was cut short by a crash and is dropped", self._path)
        for number, line in enumerate(lines, 1):
            try:
                region, operation, body = msgspec.json.decode(line, type=tuple[str, str, str])
            except msgspec.DecodeError as error:
                raise OptionError(f"{self._path} is damaged in line {number}: {error}") from error
            status, answer = self._send(region, operation, body.encode())
            if status != 200:
                raise OptionError(f"{self._path}: line {number} ({operation}) is refused: {answer.decode()}")
            self._regions.add(region)
        self.compact()

    def succeeded(self, region: str, operation: str, body: bytes) -> None:
        """Keep a request that was carried out; one that only reads is ignored."""
        if operation.startswith(_READING):
            return
        self._regions.add(region)
        self._write(self._fd, region, operation, body)
        self._lines += 1
        if self._lines > _LINES_MAX:
            self.compact()

    def close(self) -> None:
        """Write the file anew and close it."""
        if self._fd >= 0:
            self.compact()
            os.close(self._fd)
            self._fd = -1

    def compact(self) -> None:
        """Write the file anew, as the requests that make the tables as they are."""
        fresh = self._path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        for region in sorted(self._regions):
            for table in self._all(region, "ListTables", {}, "TableNames", "ExclusiveStartTableName"):
                for operation, document in self._making(region, table):
                    self._write(fd, region, operation, msgspec.json.encode(document))
        fresh.rename(self._path)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._lines = 0

    def _write(self, fd: int, region: str, operation: str, body: bytes) -> None:
        line = memoryview(msgspec.json.encode([region, operation, body.decode()]) + b"\n")
        begin = os.fstat(fd).st_size
        try:
            while line:
                line = line[os.write(fd, line) :]
        except OSError:
            os.ftruncate(fd, begin)
            raise

    # -- what a table is ------------------------------------------------------------------------------------

    def _ask(self, region: str, operation: str, document: dict[str, Any]) -> dict[str, Any]:
        status, body = self._send(region, operation, msgspec.json.encode(document))
        if status != 200:
            raise OptionError(f"the tables cannot be saved: {operation} is refused: {body.decode()}")
        return dict(msgspec.json.decode(body))

    def _all(
        self, region: str, operation: str, document: dict[str, Any], member: str, cursor: str
    ) -> list[Any]:
        found: list[Any] = []
        last = "LastEvaluatedTableName" if operation == "ListTables" else "LastEvaluatedKey"
        page: dict[str, Any] = {last: None}
        while last in page:
            more = {} if page[last] is None else {cursor: page[last]}
            page = self._ask(region, operation, {**document, **more})
            found.extend(page[member])
        return found

    def _making(self, region: str, table: str) -> list[tuple[str, dict[str, Any]]]:
        described = self._ask(region, "DescribeTable", {"TableName": table})["Table"]
        found = [("CreateTable", _create_request(described))]
        tags = self._ask(region, "ListTagsOfResource", {"ResourceArn": described["TableArn"]})["Tags"]
        if tags:
            found.append(("TagResource", {"ResourceArn": described["TableArn"], "Tags": tags}))
        expiry = self._ask(region, "DescribeTimeToLive", {"TableName": table})["TimeToLiveDescription"]
        if expiry.get("AttributeName"):
            enabled = {"AttributeName": expiry["AttributeName"], "Enabled": True}
            found.append(("UpdateTimeToLive", {"TableName": table, "TimeToLiveSpecification": enabled}))
        backups = self._ask(region, "DescribeContinuousBackups", {"TableName": table})
        recovery = backups["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
        if recovery.get("PointInTimeRecoveryStatus") == "ENABLED":
            on = {"PointInTimeRecoveryEnabled": True}
            found.append(
                ("UpdateContinuousBackups", {"TableName": table, "PointInTimeRecoverySpecification": on})
            )
        items = self._all(region, "Scan", {"TableName": table}, "Items", "ExclusiveStartKey")
        for begin in range(0, len(items), _WRITE_ITEMS_MAX):
            puts = [{"PutRequest": {"Item": item}} for item in items[begin : begin + _WRITE_ITEMS_MAX]]
            found.append(("BatchWriteItem", {"RequestItems": {table: puts}}))
        return found


def _create_request(described: dict[str, Any]) -> dict[str, Any]:
    request = {name: described[name] for name in _TABLE_MEMBERS if name in described}
    on_demand = described.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST"
    request["BillingMode"] = "PAY_PER_REQUEST" if on_demand else "PROVISIONED"
    if not on_demand:
        request["ProvisionedThroughput"] = _throughput(described)
    for kind in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes"):
        indexes = []
        for index in described.get(kind) or ():
            made = {name: index[name] for name in _INDEX_MEMBERS if name in index}
            if kind == "GlobalSecondaryIndexes" and not on_demand:
                made["ProvisionedThroughput"] = _throughput(index)
            indexes.append(made)
        if indexes:
            request[kind] = indexes
    if described.get("StreamSpecification", {}).get("StreamEnabled"):
        request["StreamSpecification"] = described["StreamSpecification"]
    return request


def _throughput(described: dict[str, Any]) -> dict[str, int]:
    units = described.get("ProvisionedThroughput", {})
    return {name: max(1, units.get(name, 1)) for name in ("ReadCapacityUnits", "WriteCapacityUnits")}
