"""Consume a backlog in one process and count its records: Penstock's consumer, a loop with boto3, and async-kinesis."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from typing import Any

from program import DEADLINE_S, Figures, Meter, run, since_process_start_s


def figures_of(meter: Meter, record_count: int) -> Figures:
    found = meter.read()
    return {
        **found,
        "cpu_s_per_million": found["cpu_s"] / record_count * 1e6,
        "records_per_s": record_count / found["wall_s"],
    }


def consume(stream: str, application: str, record_count: int) -> None:
    """Run a consumer until it has handled so many records, or more."""
    from penstock import Consumer

    counted, lock, is_done = 0, threading.Lock(), threading.Event()

    def handle(batch: Any) -> None:
        nonlocal counted
        with lock:
            counted += len(batch)
            if counted >= record_count:
                is_done.set()

    consumer = Consumer(stream, application, handle, starting_position="TRIM_HORIZON")
    with consumer:
        if not is_done.wait(DEADLINE_S):
            raise SystemExit(f"{counted} of {record_count} records came within {DEADLINE_S:g} s")


def penstock(stream: str, turn: int, record_count: int) -> Figures:
    import penstock.aws.kinesis  # loaded before the clock runs, as boto3 is
    import penstock.aws.lease_table
    import penstock.consumer  # noqa: F401

    meter = Meter()
    consume(stream, f"{stream}-{turn}", record_count)
    return figures_of(meter, record_count)


def penstock_first(stream: str, turn: int) -> Figures:
    consume(stream, f"{stream}-{turn}", 1)
    return {"first_record_s": since_process_start_s()}


def penstock_again(stream: str, turn: int) -> Figures:
    """Start as an application that has run before: its lease table has the rows, owned by a worker that has stopped."""
    import subprocess
    import sys

    application = f"{stream}-{turn}-again"
    if os.environ.get("BENCH_APPLICATION") == application:
        consume(stream, application, 1)
        return {"first_record_s": since_process_start_s()}
    consume(stream, application, 1)
    environ = {**os.environ, "BENCH_APPLICATION": application, "BENCH_BEGAN_S": repr(time.time())}
    answer = subprocess.run([sys.executable, *sys.argv], env=environ, stdout=subprocess.PIPE, check=True)
    figures: Figures = json.loads(answer.stdout.splitlines()[-1])
    return figures


def boto3_loop(stream: str, record_count: int) -> None:
    import boto3

    client = boto3.client("kinesis")
    pages = client.get_paginator("list_shards").paginate(StreamName=stream)
    shards = [shard["ShardId"] for page in pages for shard in page["Shards"]]
    iterators = {
        shard: client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")[
            "ShardIterator"
        ]
        for shard in shards
    }
    counted = 0
    while counted < record_count:
        for shard, iterator in iterators.items():
            page = client.get_records(ShardIterator=iterator)
            counted += len(page["Records"])
            iterators[shard] = page["NextShardIterator"]


def boto3(stream: str, turn: int, record_count: int) -> Figures:
    del turn
    import boto3  # noqa: F401 - loaded before the clock runs

    meter = Meter()
    boto3_loop(stream, record_count)
    return figures_of(meter, record_count)


def boto3_first(stream: str, turn: int) -> Figures:
    del turn
    boto3_loop(stream, 1)
    return {"first_record_s": since_process_start_s()}


def async_kinesis(stream: str, turn: int, record_count: int) -> Figures:
    del turn
    from kinesis import Consumer
    from kinesis.processors import StringProcessor

    async def consume() -> int:
        counted = 0
        async with Consumer(
            stream_name=stream,
            endpoint_url=os.environ["AWS_ENDPOINT_URL"],
            region_name=os.environ["AWS_REGION"],
            iterator_type="TRIM_HORIZON",
            processor=StringProcessor(),
            record_limit=10_000,
            shard_fetch_rate=10**6,
        ) as consumer:
            while counted < record_count:
                async for _ in consumer:
                    counted += 1
                    if counted == record_count:
                        break
        return counted

    meter = Meter()
    asyncio.run(asyncio.wait_for(consume(), DEADLINE_S))
    return figures_of(meter, record_count)


def native_aws_kcl_py(stream: str, turn: int, record_count: int) -> Figures:
    import native_aws_kcl_py as kcl

    url, counted, done = os.environ["AWS_ENDPOINT_URL"], 0, asyncio.Event()

    class Processor(kcl.ShardRecordProcessor):
        async def ignore(self, _: Any) -> None:
            pass

        initialize = lease_lost = shard_ended = shutdown_requested = ignore

        async def process_records(self, input: Any) -> None:  # noqa: A002 - the library's name
            nonlocal counted
            counted += len(input.records)
            if input.records:
                await input.checkpointer.checkpoint()
            if counted >= record_count:
                done.set()

    class Factory(kcl.ShardRecordProcessorFactory):
        def create_processor(self) -> Processor:
            return Processor()

    async def consume() -> None:
        scheduler = kcl.Scheduler(
            kcl.KinesisConsumerConfig(
                aws=kcl.AwsConfig(
                    region=os.environ["AWS_REGION"], kinesis_endpoint=url, dynamodb_endpoint=url
                ),
                application_name=f"{stream}-{turn}-native",
                stream_name=stream,
                record_processor_factory=Factory(),
                retrieval=kcl.RetrievalConfig(stream_name=stream, idle_time_between_reads_millis=100),
            )
        )
        running = asyncio.create_task(scheduler.run())
        ended = asyncio.create_task(done.wait())
        await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not done.is_set():
            raise SystemExit(f"it ended after {counted} records: {running.exception()}")
        await scheduler.shutdown()

    meter = Meter()
    asyncio.run(asyncio.wait_for(consume(), DEADLINE_S))
    return figures_of(meter, record_count)


if __name__ == "__main__":
    run(
        {
            "penstock": penstock,
            "penstock-first": penstock_first,
            "penstock-again": penstock_again,
            "boto3": boto3,
            "boto3-first": boto3_first,
            "async-kinesis": async_kinesis,
            "native-aws-kcl-py": native_aws_kcl_py,
        }
    )
