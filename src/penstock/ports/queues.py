"""The service's queues that Penstock needs.

Implemented by `penstock.aws.queues` over boto3, and for tests in memory (tests/memory_queues.py). tests/contract runs the same
tests over both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from penstock.core.queueing.queue_events import EntryOutcome

QueueStatus: TypeAlias = Literal["CREATING", "ACTIVE", "UPDATING", "DELETING"]


class ReceivedRecord(Struct, frozen=True):
    """One delivery of a Kinesis record: perhaps an aggregate of many user records.

    Args:
        handle: The receipt handle, which names this delivery only.
        record_id: The same in every delivery, and in every queue of the stream.
        partition_key: None on streams whose record distribution the service manages.
        data: The blob.
        arrival_s: When the stream took it in; seconds since the epoch, UTC.
        first_receive_s: When it was first received from the queue; seconds since the epoch, UTC.
        receive_count: Receives without an acknowledgement, this one included.
    """

    handle: str
    record_id: str
    partition_key: str | None
    data: bytes
    arrival_s: float
    first_receive_s: float
    receive_count: int


class QueueStart(Struct, frozen=True):
    """The position in the stream at which a queue begins: LATEST, TRIM_HORIZON, or AT_TIMESTAMP with a moment."""

    type: Literal["LATEST", "TRIM_HORIZON", "AT_TIMESTAMP"] = "LATEST"
    timestamp_ms: int | None = None


class DeadLetterRule(Struct, frozen=True):
    """A record becomes a dead letter after `receive_count_max` receives. None: records never become dead letters."""

    receive_count_max: int | None


class QueueSummary(Struct, frozen=True):
    """A queue as ListQueues shows it."""

    name: str
    arn: str
    status: QueueStatus
    created_ms: int
    stream_arn: str


class QueueDescription(QueueSummary, frozen=True):
    """A queue as DescribeQueue shows it."""

    start: QueueStart
    visibility_s: int
    dead_letters: DeadLetterRule


class EntryResult(Struct, frozen=True):
    """The answer to one receipt handle of a call. `code` and `message` are the service's reason if this handle failed."""

    outcome: EntryOutcome
    code: str = ""
    message: str = ""


class FinishedRecords(Protocol):
    """A durable memory of records that are done, for handlers that must not see a record twice.

    Implemented by `penstock.aws.finished_table` in DynamoDB, and by users.

    Several threads call the methods at once. If a call raises, the error is logged and counted, and the memory counts as empty.
    """

    def fetch_finished(self, record_ids: Sequence[str]) -> Collection[str]:
        """Return the ids of the records that are done. `record_ids` has at most ten."""

    def put_finished(self, record_ids: Sequence[str]) -> None:
        """Remember these records, ten at most, as done. Called before they are acknowledged."""


class Queues(Protocol):
    """Queues and their records. Every method is safe to call from several threads and has a deadline.

    Calls on records are sent once, without a retry: the caller sets the pace. Control calls retry throttling.

    With `is_dead`, a method works on the dead letters of the queue. A handle is valid only with the `is_dead` of its receive.

    Raises (every method):
        Throttled, Unavailable, UnknownRefusal: Nothing happened.
        UnknownOutcome: The call was sent and not answered: it may have been applied.
        NotFound, AccessDenied, Rejected, ResourceBusy: At once.
        UsageError: The installed SDK has no queues.
    """

    def receive(
        self,
        queue_arn: str,
        limit: int,
        wait_s: int,
        visibility_s: int | None = None,
        *,
        is_dead: bool = False,
    ) -> Sequence[ReceivedRecord]:
        """Receive up to `limit` records (1 to 10); wait for the first one up to `wait_s` (1 to 20).

        After `UnknownOutcome`, records may be invisible although no consumer has received them.
        """

    def acknowledge(
        self, queue_arn: str, handles: Sequence[str], *, is_dead: bool = False
    ) -> Sequence[EntryResult]:
        """Acknowledge up to ten records; return one result for each handle, in order."""

    def set_visibility(
        self, queue_arn: str, handles: Sequence[str], seconds: Sequence[int], *, is_dead: bool = False
    ) -> Sequence[EntryResult]:
        """Make up to ten records visible again, each after its number of `seconds` from now; return one result for each, in order."""

    def restore(self, queue_arn: str, handles: Sequence[str]) -> Sequence[EntryResult]:
        """Return up to ten dead letters to the queue, with a receive count of 0."""

    def create_queue(
        self,
        name: str,
        stream_arn: str,
        start: QueueStart,
        *,
        visibility_s: int | None = None,
        dead_letters: DeadLetterRule | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> QueueDescription:
        """Begin to create a queue.

        Raises:
            ResourceBusy: There is a queue of this name, or the stream is being changed.
        """

    def describe_queue(self, queue_arn: str) -> QueueDescription:
        """Describe a queue."""

    def list_queues(self, stream_arn: str | None = None) -> Collection[QueueSummary]:
        """Return the queues of the region, or those of one stream."""

    def update_queue(
        self, queue_arn: str, *, visibility_s: int | None = None, dead_letters: DeadLetterRule | None = None
    ) -> QueueDescription:
        """Begin to change a queue; None leaves a value as it is."""

    def delete_queue(self, queue_arn: str) -> None:
        """Begin to delete a queue. Its receipt handles become invalid. The stream and the stream's records stay."""
