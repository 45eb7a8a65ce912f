"""Servers for the tests of the embedded Kinesis: a stopped clock, so that no test waits."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from penstock_local import LocalKinesis

ONE_ATTEMPT = Config(retries={"total_max_attempts": 1}, connect_timeout=60, read_timeout=60)


class Rig:
    """A server without quotas and its clients, each making one attempt per call."""

    def __init__(self, server: LocalKinesis) -> None:
        self.server = server
        self.clock = server.clock
        self.faults = server.faults
        self.kinesis = server.client("kinesis", config=ONE_ATTEMPT)
        self._event_streams: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for events in self._event_streams:
            events.close()

    def client(self, service: str) -> Any:
        return self.server.client(service, config=ONE_ATTEMPT)

    def settle(self) -> None:
        """Advance the clock until a reshard takes effect."""
        self.clock.advance(1)

    def shards(self, stream: str, **options: Any) -> list[dict[str, Any]]:
        return list(self.kinesis.list_shards(StreamName=stream, **options)["Shards"])

    def open_shards(self, stream: str) -> list[str]:
        return [s["ShardId"] for s in self.shards(stream, ShardFilter={"Type": "AT_LATEST"})]

    def iterator(self, stream: str, shard: str = "shardId-000000000000", **options: Any) -> str:
        kind = options.pop("kind", "TRIM_HORIZON")
        answer = self.kinesis.get_shard_iterator(
            StreamName=stream, ShardId=shard, ShardIteratorType=kind, **options
        )
        return str(answer["ShardIterator"])

    def read(self, stream: str, shard: str = "shardId-000000000000", **options: Any) -> list[bytes]:
        """All data from an iterator on, to the tip."""
        answer = self.kinesis.get_records(ShardIterator=self.iterator(stream, shard, **options))
        return [record["Data"] for record in answer["Records"]]

    def summary(self, stream: str) -> dict[str, Any]:
        answer = self.kinesis.describe_stream_summary(StreamName=stream)
        return dict(answer["StreamDescriptionSummary"])

    def split(self, stream: str, shard: str, at: int) -> None:
        """Split a shard and let it take effect."""
        self.kinesis.split_shard(StreamName=stream, ShardToSplit=shard, NewStartingHashKey=str(at))
        self.settle()

    def put_at(self, stream: str, key: int, data: bytes = b"") -> tuple[str, int]:
        """Put a record at a hash key; returns its shard and number."""
        put = self.kinesis.put_record(
            StreamName=stream, Data=data, PartitionKey="k", ExplicitHashKey=str(key)
        )
        return put["ShardId"], int(put["SequenceNumber"])

    def register(self, stream_arn: str, name: str = "c") -> str:
        """Register a consumer that is ACTIVE on return; returns its ARN."""
        answer = self.kinesis.register_stream_consumer(StreamARN=stream_arn, ConsumerName=name)
        self.settle()
        return str(answer["Consumer"]["ConsumerARN"])

    def subscribe(
        self,
        consumer_arn: str,
        shard: str = "shardId-000000000000",
        kind: str = "TRIM_HORIZON",
        **position: Any,
    ) -> Iterator[dict[str, Any]]:
        """Subscribe; returns the events, each waited for until the client's read timeout."""
        answer = self.kinesis.subscribe_to_shard(
            ConsumerARN=consumer_arn, ShardId=shard, StartingPosition={"Type": kind, **position}
        )
        self._event_streams.append(answer["EventStream"])
        return (event["SubscribeToShardEvent"] for event in answer["EventStream"])

    @staticmethod
    def numbers(shards: list[dict[str, Any]]) -> list[int]:
        """The numbers in the ids of listed shards."""
        return [int(shard["ShardId"][-4:]) for shard in shards]

    @staticmethod
    def refused(call: Callable[..., Any], **arguments: Any) -> tuple[str, int]:
        """Code and HTTP status of a call that must be refused."""
        with pytest.raises(ClientError) as caught:
            call(**arguments)
        answer = caught.value.response
        return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]

    @staticmethod
    def moment(ms: int) -> dt.datetime:
        """A time in milliseconds as boto3 takes it."""
        return dt.datetime.fromtimestamp(ms // 1000, dt.UTC) + dt.timedelta(milliseconds=ms % 1000)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with LocalKinesis(limits=False, time_factor=0) as server, Rig(server) as found:
        yield found


@pytest.fixture
def limited() -> Iterator[Rig]:
    """The same with all quotas enforced; time moves only when the test moves it."""
    with LocalKinesis(limits=True, time_factor=0) as server, Rig(server) as found:
        yield found
