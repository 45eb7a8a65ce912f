"""A server with an on-demand stream and queues on it, for tests that move the clock themselves."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_local import request_model

knows_queues = pytest.mark.skipif(
    "ListQueues" not in request_model.operations(), reason="this botocore has no queues in its service model"
)


class QueueRig:
    """One stream and its queues.

    Args:
        rig: The server of a test of `tests/local`; its clock stands still.
        name: The stream's name.
    """

    def __init__(self, rig: Any, name: str = "s") -> None:
        self.rig = rig
        self.clock = rig.clock
        self.kinesis = rig.kinesis
        self.stream = name
        rig.kinesis.create_stream(StreamName=name, StreamModeDetails={"StreamMode": "ON_DEMAND"})
        rig.settle()
        self.stream_arn = rig.summary(name)["StreamARN"]

    def create(self, name: str = "q", *, start: dict[str, Any] | None = None, **options: Any) -> str:
        """Create a queue that is ACTIVE on return; returns its ARN."""
        configuration: dict[str, Any] = {"StreamARN": self.stream_arn}
        if start is not None:
            configuration["StartingPosition"] = start
        made = self.kinesis.create_queue(QueueName=name, StreamConfigurationList=[configuration], **options)
        self.rig.settle()
        return str(made["QueueDescription"]["QueueARN"])

    def put(self, *data: bytes) -> None:
        """Put records, each with its data as its key."""
        self.kinesis.put_records(
            StreamName=self.stream, Records=[{"Data": each, "PartitionKey": each.decode()} for each in data]
        )

    def receive(self, queue: str, *, dead: bool = False, **options: Any) -> list[dict[str, Any]]:
        """Receive records; without any that are visible, the call waits until the clock is moved."""
        call = self.kinesis.receive_dead_letter_queue_records if dead else self.kinesis.receive_queue_records
        return list(call(QueueARN=queue, **options)["QueueRecords"])

    def counts(self, name: str = "q") -> tuple[int, int, int]:
        """Return how many records of a queue are visible, in flight, and visible as dead letters."""
        queue = self.rig.server.state()["streams"][self.stream]["queues"][name]
        return queue["visible"], queue["in_flight"], queue["dead_letters"]

    def describe(self, queue: str) -> dict[str, Any]:
        return dict(self.kinesis.describe_queue(QueueARN=queue)["QueueDescription"])

    def acknowledge(self, queue: str, *records: dict[str, Any], dead: bool = False) -> list[str]:
        """Acknowledge records; returns ok or the code of each failure."""
        kinesis = self.kinesis
        call = kinesis.acknowledge_dead_letter_queue_records if dead else kinesis.acknowledge_queue_records
        return outcomes(records, call(QueueARN=queue, Entries=[handle(each) for each in records]))

    def set_visibility(
        self, queue: str, seconds: int, *records: dict[str, Any], dead: bool = False
    ) -> list[str]:
        """Set the visibility timeout of records; returns ok or the code of each failure."""
        kinesis = self.kinesis
        call = (
            kinesis.update_dead_letter_queue_records_visibility
            if dead
            else kinesis.update_queue_records_visibility
        )
        entries = [{**handle(each), "VisibilityTimeoutSeconds": seconds} for each in records]
        return outcomes(records, call(QueueARN=queue, Entries=entries))


def handle(record: dict[str, Any]) -> dict[str, str]:
    return {"ReceiptHandle": record["ReceiptHandle"]}


def outcomes(records: tuple[dict[str, Any], ...], answer: dict[str, Any]) -> list[str]:
    """The result of each entry: `ok`, or the code of its failure."""
    failed = {each["ReceiptHandle"]: each["ErrorCode"] for each in answer["Failed"]}
    found = {each["ReceiptHandle"]: "ok" for each in answer["Successful"]}
    return [(found | failed)[each["ReceiptHandle"]] for each in records]
