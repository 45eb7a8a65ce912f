"""Write records and wait for every acknowledgement: Penstock's producers, boto3, async-kinesis and aiokpl.

Every writer sends the same records (one of 10,000 keys) after a thousand that warm it up. What arrived is counted afterwards.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

from program import Figures, Meter, run

KEYS = 10_000
DATA_BYTES = 100
WARM_UP = 1000


def records(count: int) -> Iterator[tuple[bytes, str]]:
    """Yield data and key of each record, the same for every writer."""
    padding = "x" * (DATA_BYTES - 10)
    for number in range(count):
        yield f"{number:010d}{padding}".encode(), f"customer-{number * 7919 % KEYS:07d}"


def write_producer(url: str, stream: str, count: int, **options: Any) -> None:
    from penstock.producer import Producer

    with Producer(stream, endpoint_url=url, region="us-east-1", **options) as producer:
        for data, key in records(count):
            producer.put(data, key)


def write_task(url: str, stream: str, count: int, **options: Any) -> None:
    from penstock.producer import TaskWriter, TaskWriterOptions
    from penstock.wiring import AwsOptions, open_kinesis

    kinesis = open_kinesis(AwsOptions(endpoint_url=url, region="us-east-1"))
    writer = TaskWriter(kinesis, stream, TaskWriterOptions(**options))
    for data, key in records(count):
        writer.write(data, key)
    assert writer.finish().user_record_count == count


def write_boto3(url: str, stream: str, count: int) -> None:
    """Send 500 at a time and refused entries again: the usual loop, without its usual mistake."""
    import boto3

    client = boto3.client("kinesis", endpoint_url=url, region_name="us-east-1")

    def send(batch: list[dict[str, Any]]) -> None:
        while batch:
            answer = client.put_records(StreamName=stream, Records=batch)
            batch = [
                entry for entry, word in zip(batch, answer["Records"], strict=True) if "ErrorCode" in word
            ]

    batch: list[dict[str, Any]] = []
    for data, key in records(count):
        batch.append({"Data": data, "PartitionKey": key})
        if len(batch) == 500:
            send(batch)
            batch = []
    send(batch)


def write_async_kinesis(url: str, stream: str, count: int) -> None:
    """Its own rate limits are lifted, so that its work is measured; 499 since it builds batches of one more."""
    from kinesis import Producer
    from kinesis.processors import StringProcessor

    async def write() -> None:
        async with Producer(
            stream_name=stream,
            endpoint_url=url,
            region_name="us-east-1",
            processor=StringProcessor(),
            batch_size=499,
            put_rate_limit_per_shard=10**9,
            put_bandwidth_limit_per_shard=10**9,
        ) as producer:
            for data, key in records(count):
                await producer.put(data.decode(), partition_key=key)
            await producer.flush()

    asyncio.run(write())


def write_aiokpl(url: str, stream: str, count: int) -> None:
    """Its own rate limits are lifted, so that its work is measured."""
    import aiokpl

    async def write() -> None:
        config = aiokpl.Config(
            region="us-east-1",
            endpoint_url=url,
            rate_limit_records_per_sec_per_shard=1e9,
            rate_limit_bytes_per_sec_per_shard=1e12,
        )
        async with aiokpl.Producer(config) as producer:
            outcomes = [
                await producer.put_record(stream=stream, partition_key=key, data=data)
                for data, key in records(count)
            ]
            await producer.flush()
            for outcome in outcomes:
                assert (await outcome.wait()).success

    asyncio.run(write())


Write = Callable[..., None]


def program(write: Write, **fixed: Any) -> Callable[..., Figures]:
    """Return a program that warms a writer up and measures it."""

    def measure(stream: str, turn: int, record_count: int) -> Figures:
        del turn
        url = os.environ["AWS_ENDPOINT_URL"]
        write(url, stream, WARM_UP, **fixed)
        meter = Meter()
        write(url, stream, record_count - WARM_UP, **fixed)
        found = meter.read()
        million = (record_count - WARM_UP) / 1e6
        return {
            **found,
            "cpu_s_per_million": found["cpu_s"] / million,
            "records_per_s": million * 1e6 / found["wall_s"],
        }

    return measure


if __name__ == "__main__":
    run(
        {
            "penstock": program(write_producer, aggregation=False),
            "penstock-aggregated": program(write_producer),
            "penstock-unordered": program(write_producer, aggregation=False, ordering="none"),
            "task": program(write_task),
            "task-aggregated": program(write_task, aggregation=True),
            "boto3": program(write_boto3),
            "async-kinesis": program(write_async_kinesis),
            "aiokpl": program(write_aiokpl),
        }
    )
