"""What queues publish to CloudWatch: sums by the call, and how many records are in each state by the minute."""

from __future__ import annotations

import pytest

from penstock_local.faults import Fault
from queue_rig import QueueRig, knows_queues

pytestmark = knows_queues
MINUTE_MS = 60_000


@pytest.fixture
def queues(rig) -> QueueRig:
    return QueueRig(rig)


def sums(queues: QueueRig, arn: str, *metrics: str, stat: str = "Sum") -> list[list[float]]:
    """The values of a queue's metrics, oldest first."""
    rig = queues.rig
    dimensions = [
        {"Name": "QueueId", "Value": arn.rpartition("/")[2]},
        {"Name": "QueueName", "Value": "q"},
    ]
    queries = [
        {
            "Id": f"q{n}",
            "MetricStat": {
                "Metric": {"Namespace": "AWS/Kinesis", "MetricName": metric, "Dimensions": dimensions},
                "Period": 60,
                "Stat": stat,
            },
        }
        for n, metric in enumerate(metrics)
    ]
    answer = rig.client("cloudwatch").get_metric_data(
        MetricDataQueries=queries,
        StartTime=rig.moment(rig.clock.now_ms() - 3_600_000),
        EndTime=rig.moment(rig.clock.now_ms() + MINUTE_MS),
        ScanBy="TimestampAscending",
    )
    return [each["Values"] for each in answer["MetricDataResults"]]


def next_minute(queues: QueueRig) -> None:
    queues.clock.advance((MINUTE_MS - queues.clock.now_ms() % MINUTE_MS) / 1000)


def test_a_queue_publishes_receives_and_acknowledgements(rig, queues):
    arn = queues.create()
    next_minute(queues)
    queues.put(b"a", b"b", b"c")
    records = queues.receive(arn)
    queues.acknowledge(arn, *records[:2])
    rig.faults.add(Fault("empty", "ReceiveQueueRecords"))
    queues.receive(arn)
    found = sums(queues, arn, "ReceivedQueueRecords", "AcknowledgedQueueRecords", "EmptyReceives")
    assert found == [[3.0], [2.0], [1.0]]
    next_minute(queues)
    queues.receive(arn)
    assert sums(queues, arn, "ReceivedQueueRecords") == [[3.0, 1.0]]


def test_a_queue_publishes_its_records_by_state_once_a_minute(queues):
    once = {"DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": 1}}
    arn = queues.create(QueueAttributes=once)
    next_minute(queues)
    queues.put(*(b"%d" % i for i in range(6)))
    queues.receive(arn, Limit=1, VisibilityTimeoutSeconds=0)
    queues.receive(arn, Limit=2, VisibilityTimeoutSeconds=600)
    next_minute(queues)
    queues.clock.advance(1)
    levels = ("VisibleQueueRecords", "InFlightQueueRecords", "VisibleDeadLetterQueueRecords")
    found = [values[-2:] for values in sums(queues, arn, *levels, stat="Maximum")]
    assert found == [[0.0, 3.0], [0.0, 2.0], [0.0, 1.0]]
    assert {count for values in sums(queues, arn, *levels, stat="SampleCount") for count in values} == {1.0}


def test_the_metrics_of_a_queue_are_listed(rig, queues):
    arn = queues.create()
    queues.put(b"a")
    queues.receive(arn)
    answer = rig.client("cloudwatch").list_metrics(
        Namespace="AWS/Kinesis", Dimensions=[{"Name": "QueueName", "Value": "q"}]
    )
    names = {each["MetricName"] for each in answer["Metrics"]}
    assert "ReceivedQueueRecords" in names
    assert {each["Name"] for each in answer["Metrics"][0]["Dimensions"]} == {"QueueName", "QueueId"}
