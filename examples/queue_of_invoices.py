"""Bill invoices from a queue: slow work in parallel, one that fails once, one that can never succeed, and the way back for it.

python queue_of_invoices.py --local
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import threading
from collections import Counter

import boto3

from penstock import Producer, QueueConsumer, QueueRecord, Reject

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--local", action="store_true", help="run on an embedded Kinesis with sample data")
parser.add_argument("--stream", default="orders", help="an on-demand stream (default: orders)")
args = parser.parse_args()

INVOICES = 40
attempts: Counter[int] = Counter()
billed: set[int] = set()
everything = threading.Event()


def bill(record: QueueRecord) -> None:
    """Bill one invoice. A return acknowledges it, an exception brings it back later, `Reject` makes it a dead letter."""
    invoice = json.loads(record.data)
    number = invoice["number"]
    attempts[number] += 1
    if "cents" not in invoice:
        raise Reject(f"invoice {number} has no amount")
    if number == 7 and attempts[number] == 1:
        raise ConnectionError("the bank does not answer")
    billed.add(number)
    if len(billed) == INVOICES - 1:
        everything.set()


def dead_letters(queue: str) -> list[int]:
    """Return the numbers of the invoices that are dead letters, and leave them so."""
    kinesis = boto3.client("kinesis")
    (arn,) = (
        each["QueueARN"] for each in kinesis.list_queues()["QueueSummaries"] if each["QueueName"] == queue
    )
    answer = kinesis.receive_dead_letter_queue_records(
        QueueARN=arn, Limit=10, WaitTimeSeconds=5, VisibilityTimeoutSeconds=0
    )
    return [json.loads(each["Data"])["number"] for each in answer["QueueRecords"]]


def main() -> None:
    """Put invoices into the stream, and consume the queue until all are billed but one."""
    with Producer(stream=args.stream, aggregation=False) as producer:
        for number in range(INVOICES):
            amount = {} if number == 13 else {"cents": 100 * number}
            producer.put(
                json.dumps({"number": number, **amount}).encode(), partition_key=f"customer-{number % 7}"
            )
    create = {"stream": args.stream, "starting_position": "TRIM_HORIZON"}
    with QueueConsumer("invoices", bill, create=create, concurrency=10, backoff_min_s=1, wait_time_s=1):
        everything.wait(120)
    print(f"{len(billed)} invoices billed, number 7 at attempt {attempts[7]}")
    print(f"dead letters: {dead_letters('invoices')}")


with contextlib.ExitStack() as stack:
    if args.local:
        from penstock_local import LocalKinesis

        server = stack.enter_context(LocalKinesis())
        os.environ.update(server.environ())
        kinesis = server.client("kinesis")
        kinesis.create_stream(StreamName=args.stream, StreamModeDetails={"StreamMode": "ON_DEMAND"})
        kinesis.get_waiter("stream_exists").wait(StreamName=args.stream, WaiterConfig={"Delay": 1})
    main()
