"""Enhanced fan-out: registered consumers and SubscribeToShard. Not served yet; the dispatch table leads here."""

from __future__ import annotations

from typing import NoReturn

from penstock.local.operations.call import Call
from penstock.local.replies import Refusal

OPERATIONS = (
    "RegisterStreamConsumer",
    "DeregisterStreamConsumer",
    "DescribeStreamConsumer",
    "ListStreamConsumers",
    "SubscribeToShard",
)


def refuse(call: Call) -> NoReturn:
    """Answer an enhanced fan-out operation.

    Raises:
        Refusal: Always: HTTP 501, which clients do not retry.
    """
    raise Refusal(
        "NotImplementedException",
        f"penstock local does not serve {call.operation}: enhanced fan-out is not there yet; read with GetRecords.",
        status=501,
    )
