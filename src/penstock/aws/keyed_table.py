"""A DynamoDB table whose key is one text: find it, create it, and wait until it can be used."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.aws.aws_options import AwsOptions
from penstock.aws.service_calls import call_operation
from penstock.errors import NotFound, Rejected, ResourceBusy, Unavailable, UnknownOutcome

_USABLE_STATUSES: Final = ("ACTIVE", "UPDATING")


def has_key(key_schema: Iterable[Mapping[str, str]], key: str) -> bool:
    """Return whether the only key of a table is this attribute."""
    return [(part["AttributeName"], part["KeyType"]) for part in key_schema] == [(key, "HASH")]


class KeyedTable:
    """One table.

    Args:
        kind: What the table is, for messages.
        remedy: The remedy if the table has another key.
    """

    def __init__(self, name: str, key: str, options: AwsOptions, *, kind: str, remedy: str) -> None:
        self._name = name
        self._key = key
        self._options = options
        self._kind = kind
        self._remedy = remedy

    def call(self, operation: str, **arguments: Any) -> Any:
        """Call an operation on the table, as `call_operation` does."""
        resource = f"{self._kind} {self._name}"
        return call_operation(
            "dynamodb", operation, resource, self._options, TableName=self._name, **arguments
        )

    def describe(self) -> Any:
        """Return DynamoDB's description; None if there is no such table.

        Raises:
            Rejected: The table has another key.
        """
        try:
            table = self.call("DescribeTable")["Table"]
        except NotFound:
            return None
        if not has_key(table["KeySchema"], self._key):
            names = ", ".join(part["AttributeName"] for part in table["KeySchema"])
            raise Rejected(
                f"DynamoDB table {self._name} is not a {self._kind}: its key is {names}, not {self._key}; {self._remedy}",
                operation="DescribeTable",
                resource=self._name,
            )
        return table

    def create(self) -> bool | None:
        """Create the table, paid per request: True if this call did, False if another worker was first, None if that is unknown."""
        try:
            self.call(
                "CreateTable",
                is_write=True,
                KeySchema=[{"AttributeName": self._key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": self._key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        except ResourceBusy:
            return False
        except UnknownOutcome:
            return None  # the wait that follows shows whether it is there
        return True

    def wait_until_usable(self, within_s: float) -> Any:
        """Wait until the table can be read and written; return its description.

        Raises:
            Unavailable: It cannot be used in time.
        """
        deadline_s = time.monotonic() + within_s
        pause_s = 0.05
        while not is_usable(table := self.describe()):
            if time.monotonic() > deadline_s:
                status = "missing" if table is None else table["TableStatus"]
                raise Unavailable(
                    f"{self._kind} {self._name} is not usable after {within_s:g} s (its status is {status}); look at it in DynamoDB",
                    operation="DescribeTable",
                    resource=self._name,
                )
            time.sleep(pause_s)
            pause_s = min(2.0, pause_s * 2)
        return table


def is_usable(table: Any) -> bool:
    """Return whether a table can be read and written, by its description; False for None, a missing table."""
    return table is not None and table["TableStatus"] in _USABLE_STATUSES
