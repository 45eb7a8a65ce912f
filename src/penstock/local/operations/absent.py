"""Operations of the service that this server does not have: named, so that a client learns what is missing."""

from __future__ import annotations

from typing import NoReturn

from penstock.local.operations.call import Call
from penstock.local.replies import Refusal

_CHANNELS = "channels (delivery to S3 by the service) are not there"
_QUEUES = "queues on streams are not there"

OPERATIONS = {
    **dict.fromkeys(
        ("CreateChannel", "DeleteChannel", "DescribeChannel", "ListChannels", "UpdateChannel"), _CHANNELS
    ),
    **dict.fromkeys(
        (
            "AcknowledgeDeadLetterQueueRecords",
            "AcknowledgeQueueRecords",
            "CreateQueue",
            "DeleteQueue",
            "DescribeQueue",
            "ListQueues",
            "ReceiveDeadLetterQueueRecords",
            "ReceiveQueueRecords",
            "RestoreDeadLetterQueueRecords",
            "UpdateDeadLetterQueueRecordsVisibility",
            "UpdateQueue",
            "UpdateQueueRecordsVisibility",
        ),
        _QUEUES,
    ),
}


def refuse(call: Call) -> NoReturn:
    """Answer an operation that is not there.

    Raises:
        Refusal: Always: HTTP 501, which clients do not retry.
    """
    raise not_served(f"penstock local does not serve {call.operation}: {OPERATIONS[call.operation]}.")


def not_served(message: str) -> Refusal:
    """Something that the service has and this server has not."""
    return Refusal("NotImplementedException", message, status=501)
