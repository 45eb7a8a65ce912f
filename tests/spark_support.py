"""Shared by the Spark tests: put records, wait, and run queries that collect their batches."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waiting import DEADLINE_S, wait_until


def put(client, stream, records):
    """Put (key, data) pairs; every one must be accepted."""
    records = list(records)
    for begin in range(0, len(records), 500):
        answer = client.put_records(
            StreamName=stream,
            Records=[
                {"PartitionKey": key, "Data": data.encode()} for key, data in records[begin : begin + 500]
            ],
        )
        assert answer["FailedRecordCount"] == 0


def numbered(start, end, keys=20):
    """Return records `start`..`end-1`; a record's key depends on its number only."""
    return [(f"k{number % keys}", f"{number:08d}") for number in range(start, end)]


def wait_active(client, stream):
    wait_until(
        lambda: (
            client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamStatus"]
            == "ACTIVE"
        ),
        "the stream to be active",
    )


def wait_for_next_second():
    # LATEST is pinned to the service's clock, which tells whole seconds.
    now = int(time.time())
    wait_until(lambda: time.time() >= now + 1.05, "the next second")


def position(row):
    """Return where a row stands in its shard, as numbers."""
    return (int(row.sequenceNumber), row.subSequenceNumber)


def read_batch(spark, stream, **options):
    reader = spark.read.format("kinesis").option("streamName", stream).option("fetchInterval", "0ms")
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load()


def numbers_of(frame):
    return sorted(int(bytes(row.data)) for row in frame.collect())


def rows_to_write(spark, count, keys=7):
    return (
        spark.range(count)
        .selectExpr(f"cast(id % {keys} as string) as partitionKey", "cast(id as string) as data")
        .coalesce(1)
    )


def read_available(start):
    """Start an AvailableNow query until all is read, since Spark 4.0 and 4.1 end it after one batch; gives the queries."""
    from penstock.spark.engine import PASSES_START

    queries = []
    while True:
        query = start()
        assert query.awaitTermination(DEADLINE_S)
        assert query.exception() is None
        queries.append(query)
        if PASSES_START or not sum(progress["numInputRows"] for progress in query.recentProgress):
            return queries


@dataclass
class Run:
    """A query whose batches are collected, each execution of them."""

    query: Any
    batches: dict[int, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))

    def rows(self):
        """The rows of every batch, last execution of each, in batch order."""
        return [row for batch in sorted(self.batches) for row in self.batches[batch][-1]]

    def numbers(self):
        return sorted(int(bytes(row.data)) for row in self.rows())

    def wait_for(self, count, what="records"):
        wait_until(
            lambda: self.failed() or len(self.rows()) >= count, f"{count} {what}, got {len(self.rows())}"
        )
        if self.failed():
            raise AssertionError(str(self.query.exception()))

    def failed(self):
        return not self.query.isActive and self.query.exception() is not None


@dataclass
class Job:
    """A streaming query's options and checkpoint, to be started more than once."""

    spark: Any
    stream: str
    checkpoint: Path
    options: dict[str, str]
    batches: dict[int, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    before_batch: Any = None
    running: list[Any] = field(default_factory=list)

    def load(self, **options):
        reader = self.spark.readStream.format("kinesis").option("streamName", self.stream)
        for key, value in {**self.options, **options}.items():
            reader = reader.option(key, value)
        return reader.load()

    def copy_to(self, copy, checkpoint):
        """Start a query that writes the stream's records to another stream."""
        query = (
            self.load()
            .select("partitionKey", "data")
            .writeStream.format("kinesis")
            .option("streamName", copy)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        self.running.append(query)
        return query

    def start(self, *, available_now=False, once=False, **options):

        def collect(frame, batch_id):
            rows = frame.collect()
            self.batches[batch_id].append(rows)
            if self.before_batch is not None:
                self.before_batch(batch_id, rows)

        writer = (
            self.load(**options)
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(self.checkpoint))
        )
        trigger = {"processingTime": "0 seconds"}
        if once or available_now:
            trigger = {"once": True} if once else {"availableNow": True}
        writer = writer.trigger(**trigger)
        query = writer.start()
        self.running.append(query)
        return Run(query, self.batches)
