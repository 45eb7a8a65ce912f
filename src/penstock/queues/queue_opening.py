"""Finds a queue by its name or ARN, and creates it if it does not exist."""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import NotFound, OptionError, ResourceBusy, Unavailable
from penstock.ports.clock import Clock
from penstock.ports.kinesis import Kinesis
from penstock.ports.queues import QueueDescription, Queues, QueueSummary
from penstock.queues.queue_options import QueueCreation

log: logging.Logger = logging.getLogger("penstock.queues")

_ACTIVE_WITHIN_S: Final = 300.0
_STATUS_POLL_S: Final = 1.0
_USABLE_STATUSES: Final = ("ACTIVE", "UPDATING")


def open_queue(
    queues: Queues, queue: str, creation: QueueCreation | None, kinesis: Kinesis | None, clock: Clock
) -> QueueDescription:
    """Find a queue, or create it from `creation` if it is missing; wait until it is ACTIVE and return its description.

    Args:
        queue: Name or ARN.
        creation: The queue to create if no queue has the name; None creates no queue.
        kinesis: Finds the ARN of the stream that `creation` names.
        clock: Its `sleep` is called between two checks of the queue's state.

    Raises:
        NotFound: There is no such queue, or it is being deleted.
        OptionError: The queue is on another stream; `creation` needs a name and `queue` is an ARN; or `kinesis` is needed to find
            the stream's ARN.
        Unavailable: The queue was not ACTIVE in time.
    """
    if queue.startswith("arn:"):
        if creation is not None:
            raise OptionError(
                f"queue={queue!r}: `create` needs the queue's name: the service makes the id in an ARN"
            )
        return _wait_until_active(queues, queue, clock)
    stream_arn = None if creation is None else _stream_arn(creation.stream, kinesis)
    found = find_queue(queues, queue)
    if found is None and creation is not None and stream_arn is not None:
        try:
            created = queues.create_queue(
                queue,
                stream_arn,
                creation.start,
                visibility_s=creation.visibility_timeout_s,
                dead_letters=creation.dead_letters,
                tags=creation.tags,
            )
            log.info("queue %s is created on %s", queue, stream_arn)
            return _wait_until_active(queues, created.arn, clock)
        except ResourceBusy:
            found = find_queue(queues, queue)  # another worker may have created the queue meanwhile
            if found is None:
                raise
    if found is None:
        known = ", ".join(sorted(each.name for each in queues.list_queues())) or "none"
        raise NotFound(
            f"there is no queue {queue} in this account and region (there are: {known}); create it with `penstock queues create`, or "
            "QueueConsumer(..., create={'stream': ...})",
            operation="ListQueues",
            resource=queue,
        )
    if stream_arn is not None and found.stream_arn != stream_arn:
        raise OptionError(
            f"queue {queue} is there, on stream {found.stream_arn}, and `create` names {stream_arn}: give another name, or leave "
            "`create` out"
        )
    return _wait_until_active(queues, found.arn, clock)


def find_queue(queues: Queues, name: str) -> QueueSummary | None:
    """Return the queue with a name, or None. Names are unique in an account and region."""
    return next((each for each in queues.list_queues() if each.name == name), None)


def _stream_arn(stream: str, kinesis: Kinesis | None) -> str:
    if stream.startswith("arn:"):
        return stream
    if kinesis is None:
        raise OptionError(
            f"stream={stream!r}: give its ARN, or QueueConsumerPorts(..., kinesis=...), which finds it"
        )
    return kinesis.fetch_summary(stream).arn


def _wait_until_active(queues: Queues, queue_arn: str, clock: Clock) -> QueueDescription:
    until_s = clock.monotonic_s() + _ACTIVE_WITHIN_S
    while True:
        described = queues.describe_queue(queue_arn)
        if described.status in _USABLE_STATUSES:
            return described
        if described.status == "DELETING":
            raise NotFound(
                f"queue {described.name} is being deleted", operation="DescribeQueue", resource=queue_arn
            )
        if clock.monotonic_s() >= until_s:
            raise Unavailable(
                f"queue {described.name} is still {described.status} after {_ACTIVE_WITHIN_S:.0f} s",
                operation="DescribeQueue",
                resource=queue_arn,
            )
        clock.sleep(_STATUS_POLL_S)
