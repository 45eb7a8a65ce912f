"""Penstock's own source, as the conformance kit takes it."""

from __future__ import annotations

import itertools
import uuid

from penstock.spark import KinesisDataSource
from penstock.testing import SourceUnderTest
from waiting import wait_until


class KinesisStream(SourceUnderTest):
    """A stream of its own, with two shards, on the embedded Kinesis."""

    data_source = KinesisDataSource
    wrong_options = {  # noqa: RUF012
        "maxRecordPerTrigger": "3",
        "startingPosition": "FIRST",
        "leaseDuration": "soon",
    }

    def __init__(self, server):
        self.server = server
        self.client = server.client("kinesis")
        self.stream = f"s-{uuid.uuid4().hex[:10]}"
        self.numbers = itertools.count()
        server.create_stream(self.stream, shards=2)

    def options(self):
        return {
            "streamName": self.stream,
            "endpointUrl": self.server.endpoint_url,
            "region": self.server.region,
            "awsAccessKeyId": "local",
            "awsSecretKey": "local",
            "applicationName": f"app-{self.stream}",
            "startingPosition": "TRIM_HORIZON",
            "leaseDuration": "5s",
            "fetchInterval": "0ms",
            "probeInterval": "200ms",
        }

    def put(self, count):
        ids = list(itertools.islice(self.numbers, count))
        for each in ids:
            self.client.put_record(StreamName=self.stream, PartitionKey=f"k{each}", Data=str(each).encode())
        return ids

    def id_of(self, row):
        return int(row["data"])

    def limited(self, rows):
        return {"maxRecordsPerTrigger": str(rows)}

    def reshard(self):
        shards = self.client.list_shards(StreamName=self.stream, ShardFilter={"Type": "AT_LATEST"})["Shards"]
        lowest, highest = (
            int(shards[0]["HashKeyRange"][key]) for key in ("StartingHashKey", "EndingHashKey")
        )
        self.client.split_shard(
            StreamName=self.stream,
            ShardToSplit=shards[0]["ShardId"],
            NewStartingHashKey=str((lowest + highest + 1) // 2),
        )
        wait_until(self.is_active, "the split")
        return True

    def is_active(self):
        answer = self.client.describe_stream_summary(StreamName=self.stream)
        return answer["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE"

    def kill(self, reader):
        planner = reader._planner
        if planner is not None and planner._joined is not None:
            planner._joined.query_worker.abandon()
