"""Read a backlog with Spark and count its records: Penstock's source, boto3 in tasks, awslabs' connector, and the bytes alone."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from program import Figures, Meter, run, twice
from spark_session import awslabs_frame, awslabs_session, kinesis, run_a_stream, running, session, wait_until

DEBT_S_MAX = 5.0
"""A page of 10 MB is paid for after so long: a shard that was read to its end may refuse reads until then."""


def figures_of(
    meter: Meter, data_bytes: int, quota_bytes_per_s: float = 0.0, batches_s: float = 0.0
) -> Figures:
    """Return the cost of a reading, also per GB of user data and as a share of the quota.

    Args:
        meter: Of the whole reading.
        data_bytes: User data that was read.
        quota_bytes_per_s: The service's quota; 0 for none.
        batches_s: From the start of the first batch to the end of the last one.
    """
    found = meter.read()
    found["cpu_s_per_gb"] = found["cpu_s"] / data_bytes * 1e9
    found["mb_per_s"] = data_bytes / found["wall_s"] / 1e6
    if quota_bytes_per_s:
        found["quota_percent"] = 100 * data_bytes / found["wall_s"] / quota_bytes_per_s
        found["batches_quota_percent"] = 100 * data_bytes / batches_s / quota_bytes_per_s
    return found


def count_query(frame: Any, record_count: int) -> float:
    """Run a query until its batches have held all records; return the seconds from its first batch to the end of its last."""
    counted = 0
    times_s: list[float] = []

    def count(batch: Any, _: int) -> None:
        nonlocal counted
        times_s.append(time.perf_counter())
        counted += batch.count()
        times_s.append(time.perf_counter())

    with running(frame, count) as query:
        wait_until(query, lambda: counted >= record_count, f"reading {record_count} records")
    if counted != record_count:
        raise SystemExit(f"{record_count} records are in the stream, and {counted} came")
    return times_s[-1] - times_s[0]


def penstock(
    stream: str, turn: int, record_count: int, data_bytes: int, quota_bytes_per_s: float = 0.0
) -> Figures:
    # A server without quotas is read without the pace that they ask for, as the others read it.
    pace = {} if quota_bytes_per_s else {"fetchInterval": "0s"}
    with session() as spark:
        if quota_bytes_per_s:
            run_a_stream(spark)

        def read(time_no: int) -> Figures:
            if quota_bytes_per_s and time_no:
                time.sleep(DEBT_S_MAX)
            meter = Meter()
            frame = kinesis(spark, stream, f"{stream}-{turn}-{time_no}", **pace)
            batches_s = count_query(frame, record_count)
            return figures_of(meter, data_bytes, quota_bytes_per_s, batches_s)

        return twice(read)


def awslabs(stream: str, turn: int, record_count: int, data_bytes: int, jars: str) -> Figures:
    del turn
    with awslabs_session(jars) as (spark, endpoint_url):

        def read(_: int) -> Figures:
            meter = Meter()
            count_query(awslabs_frame(spark, stream, endpoint_url), record_count)
            return figures_of(meter, data_bytes)

        return twice(read)


def shards_of(stream: str) -> list[str]:
    import boto3

    pages = boto3.client("kinesis").get_paginator("list_shards").paginate(StreamName=stream)
    return [shard["ShardId"] for page in pages for shard in page["Shards"]]


def boto3_pages(stream: str, shard: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the pages of a shard up to its tip."""
    import boto3

    client = boto3.client("kinesis")
    iterator = client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    while True:
        page = client.get_records(ShardIterator=iterator)
        yield page["Records"]
        if page["MillisBehindLatest"] == 0:
            return
        iterator = page["NextShardIterator"]


def boto3_in_tasks(stream: str, turn: int, record_count: int, data_bytes: int) -> Figures:
    """Read each shard in a task: boto3's answers become Arrow columns, which Spark counts."""
    del turn
    import pyarrow as pa

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for shard in batch.column(0).to_pylist():
                for records in boto3_pages(stream, shard):
                    columns = [
                        pa.array([record[name] for record in records], kind)
                        for name, kind in (
                            ("SequenceNumber", pa.string()),
                            ("PartitionKey", pa.string()),
                            ("Data", pa.binary()),
                        )
                    ]
                    yield pa.RecordBatch.from_arrays(columns, ["sequenceNumber", "partitionKey", "data"])

    with session(daemon="pyspark.daemon") as spark:

        def count(_: int) -> Figures:
            meter = Meter()
            shards = shards_of(stream)
            frame = spark.createDataFrame([(shard,) for shard in shards], "shard string")
            frame = frame.repartition(len(shards))
            found = frame.mapInArrow(read, "sequenceNumber string, partitionKey string, data binary").count()
            if found != record_count:
                raise SystemExit(f"{record_count} records are in the stream, and {found} came")
            return figures_of(meter, data_bytes)

        return twice(count)


def wire(stream: str, turn: int, record_count: int, data_bytes: int) -> Figures:
    """Fetch every page over one connection without decoding it: the cost of the server and the loopback."""
    del turn, record_count
    import boto3

    client = boto3.client("kinesis")
    parts = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    headers = {
        "X-Amz-Target": "Kinesis_20131202.GetRecords",
        "Content-Type": "application/x-amz-json-1.1",
        "Authorization": "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/kinesis/aws4_request, "
        "SignedHeaders=host, Signature=0",
    }
    meter = Meter()
    for shard in shards_of(stream):
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while True:
            connection.request("POST", "/", json.dumps({"ShardIterator": iterator}), headers)
            body = connection.getresponse().read()
            tail = json.loads(b"{" + body[body.rindex(b'"NextShardIterator"') :])
            iterator = tail["NextShardIterator"]
            if b'"MillisBehindLatest":0' in body[:100] + body[-600:]:
                break
    return figures_of(meter, data_bytes)


if __name__ == "__main__":
    run({"penstock": penstock, "awslabs": awslabs, "boto3": boto3_in_tasks, "wire": wire})
