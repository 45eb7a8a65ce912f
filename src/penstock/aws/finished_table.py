"""The durable memory of a queue's consumer in a DynamoDB table.

::

    done = FinishedRecordsTable("finished", queue="invoices")
    done.create_table()  # once; an existing table is used unchanged
    QueueConsumer("invoices", handle, finished=done).run()
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any, Final

from penstock.aws.aws_options import parse_connection
from penstock.aws.keyed_table import KeyedTable, is_usable
from penstock.aws.service_calls import TRANSIENT, call_with_rows
from penstock.core.keyword_options import merge_connection
from penstock.errors import OptionError, UnknownOutcome

_log: Final = logging.getLogger("penstock.aws")

_KEY: Final = "record"
_EXPIRES: Final = "expires"
_KEEP_S_DEFAULT: Final = 7 * 86_400.0
_ANSWER_WITHIN_S: Final = 3.0
"""Deadline of a call. Records wait for the calls before they are handled and acknowledged, while their visibility timeouts run."""
_CREATED_WITHIN_S: Final = 300.0
_RETRIED_ERRORS: Final = (*TRANSIENT, UnknownOutcome)  # a row may be written twice


class FinishedRecordsTable:
    """Implements `penstock.FinishedRecords` with a DynamoDB table. Safe to use from several threads.

    Each record that is done is one row: the queue and the record's id, and the time at which DynamoDB may delete it. Receives
    of ten records make one strongly consistent BatchGetItem, acknowledgements of ten records one BatchWriteItem.

    A table that is slow or unreachable delays a record for a few seconds at most. Then the consumer logs and counts the failure, and goes on
    as if the memory were empty.

    Args:
        table: Name of the table. Several queues may share one.
        queue: Name of the queue, a part of each row's key: a record has the same id in every queue of its stream.
        keep_s: Rows expire after this many seconds: at least the stream's retention, after which no record is delivered any more.
        region: AWS region; None: as boto3 finds it.
        endpoint_url: For instance that of `penstock local`; None: as boto3 finds it.
        connection: Further connection options (docs/api.md). `deadline_s`, `read_timeout_s` and `connect_timeout_s` are at most 3 s.

    Raises:
        OptionError: A connection option is unknown, or an argument has a bad value.
    """

    def __init__(
        self,
        table: str,
        queue: str,
        *,
        keep_s: float = _KEEP_S_DEFAULT,
        region: str | None = None,
        endpoint_url: str | None = None,
        connection: Mapping[str, Any] | None = None,
    ) -> None:
        if not (table and queue and isinstance(table, str) and isinstance(queue, str)):
            raise OptionError(f"table={table!r}, queue={queue!r}: both must be named")
        given_s: Any = keep_s
        if not isinstance(given_s, Real) or not keep_s > 0:
            raise OptionError(f"keep_s={keep_s}: expected more than 0")
        options = parse_connection(merge_connection(connection, region=region, endpoint_url=endpoint_url))
        self._keyed_table = KeyedTable(
            table, _KEY, options, kind="memory of finished records", remedy="choose another name"
        )
        self._options = dataclasses.replace(
            options,
            connect_timeout_s=min(options.connect_timeout_s, _ANSWER_WITHIN_S),
            read_timeout_s=min(options.read_timeout_s, _ANSWER_WITHIN_S),
            deadline_s=min(options.deadline_s, _ANSWER_WITHIN_S),
        )
        self._table = table
        self._queue = queue.rpartition("/")[2] if queue.startswith("arn:") else queue
        self._keep_s = keep_s

    def __repr__(self) -> str:
        """Show the table and its address, never the credentials."""
        return f"FinishedRecordsTable({self._table!r}, queue={self._queue!r}, {self._options!r})"

    # --- the port -------------------------------------------------------------------------------------

    def fetch_finished(self, record_ids: Sequence[str]) -> Collection[str]:
        """Return the ids of the records that are done. `record_ids` has at most a hundred.

        Raises:
            Throttled, Unavailable, AccessDenied, NotFound, Rejected: The table gave no answer in time, or none at all.
        """
        ids = {self._key_of(record_id): record_id for record_id in record_ids}
        if not ids:
            return ()
        request = {
            self._table: {
                "Keys": [{_KEY: {"S": key}} for key in ids],
                "ConsistentRead": True,
                "ProjectionExpression": "#k",
                "ExpressionAttributeNames": {"#k": _KEY},
            }
        }
        return [
            ids[row[_KEY]["S"]]
            for answer in self._send_all("BatchGetItem", request)
            for row in answer.get("Responses", {}).get(self._table, ())
        ]

    def put_finished(self, record_ids: Sequence[str]) -> None:
        """Remember at most 25 records as done.

        Raises:
            Throttled, Unavailable, UnknownOutcome, AccessDenied, NotFound, Rejected: Some rows may not be written.
        """
        if not record_ids:
            return
        expires = {"N": str(int(time.time() + self._keep_s))}
        puts = [
            {"PutRequest": {"Item": {_KEY: {"S": self._key_of(record_id)}, _EXPIRES: expires}}}
            for record_id in dict.fromkeys(record_ids)
        ]
        self._send_all("BatchWriteItem", {self._table: puts}, is_write=True)

    def _key_of(self, record_id: str) -> str:
        return f"{self._queue}#{record_id}"

    def _send_all(self, operation: str, request: Any, *, is_write: bool = False) -> list[Any]:
        return call_with_rows(
            operation,
            f"table {self._table}",
            request,
            self._options,
            is_write=is_write,
            retried=_RETRIED_ERRORS,
        )

    # --- the table ------------------------------------------------------------------------------------

    def create_table(self) -> bool:
        """Create the table, paid per request, if it does not exist; wait until it is ACTIVE and let DynamoDB delete expired rows.

        Returns:
            Whether this call created it. A table that exists is left unchanged, also its expiry.

        Raises:
            Rejected: A table of this name has another key.
            ServiceError: A call failed, or the table was not ACTIVE in five minutes (`Unavailable`).
        """
        table = self._keyed_table.describe()
        is_created = table is None and self._keyed_table.create()
        if not is_usable(table):
            self._keyed_table.wait_until_usable(_CREATED_WITHIN_S)
        if is_created is False:
            return False  # if another process was first, it switches the expiry on
        expiry = {"Enabled": True, "AttributeName": _EXPIRES}
        self._keyed_table.call("UpdateTimeToLive", TimeToLiveSpecification=expiry)
        _log.info("table %s is created, and its rows expire", self._table)
        return True
