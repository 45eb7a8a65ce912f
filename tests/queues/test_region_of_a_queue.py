"""A queue of a stream that is named by its ARN: the region is that of the ARN. The oldest botocore has no queues."""

from __future__ import annotations

from penstock import QueueConsumer


def test_a_queue_is_found_in_the_region_of_its_arn(local_kinesis):
    kinesis = local_kinesis.client("kinesis", region_name="ap-southeast-2")
    kinesis.create_stream(StreamName="tasks", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    kinesis.get_waiter("stream_exists").wait(StreamName="tasks", WaiterConfig={"Delay": 1})
    stream = kinesis.describe_stream_summary(StreamName="tasks")["StreamDescriptionSummary"]["StreamARN"]
    kinesis.put_record(StreamName="tasks", Data=b"task 1", PartitionKey="k")
    create = {"stream": stream, "starting_position": "TRIM_HORIZON"}
    for record in QueueConsumer("invoices", create=create, wait_time_s=1):
        assert record.data == b"task 1"
        break
