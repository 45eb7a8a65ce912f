"""An operator's calls on whole streams, over boto3: list, create, delete, reshard, mode and retention."""

from __future__ import annotations

from typing import Any, Final

from penstock.aws.aws_options import AwsOptions
from penstock.aws.kinesis import stream_argument
from penstock.aws.service_calls import call_operation
from penstock.errors import Throttled

_ON_DEMAND: Final = {"StreamMode": "ON_DEMAND"}
_PROVISIONED: Final = {"StreamMode": "PROVISIONED"}


class StreamControl:
    """Changes streams. A change is begun when a method returns; the stream is ACTIVE again later.

    Only a throttled call is sent again: one without an answer may have been carried out.
    """

    def __init__(self, options: AwsOptions) -> None:
        self._options = options

    def list_streams(self) -> list[str]:
        """Return the names of all streams of the region."""
        names: list[str] = []
        arguments: dict[str, Any] = {}
        while True:
            answer = self._call("ListStreams", "", arguments, is_write=False)
            names += answer["StreamNames"]
            if not answer.get("HasMoreStreams"):
                return names
            arguments = {"ExclusiveStartStreamName": names[-1]}

    def create(self, name: str, shard_count: int | None) -> None:
        """Create a stream with this many shards; None makes it on-demand."""
        shape: dict[str, Any] = {"StreamModeDetails": _ON_DEMAND}
        if shard_count is not None:
            shape = {"ShardCount": shard_count, "StreamModeDetails": _PROVISIONED}
        self._call("CreateStream", name, {"StreamName": name, **shape})

    def delete(self, stream: str) -> None:
        """Delete a stream with all its records, also if consumers are registered."""
        self._call("DeleteStream", stream, {**stream_argument(stream), "EnforceConsumerDeletion": True})

    def split(self, stream: str, shard_id: str, hash_key: int) -> None:
        """Split a shard: the second child begins at the hash key."""
        arguments = {"ShardToSplit": shard_id, "NewStartingHashKey": str(hash_key)}
        self._call("SplitShard", stream, {**stream_argument(stream), **arguments})

    def merge(self, stream: str, shard_id: str, adjacent_id: str) -> None:
        """Merge two shards with adjacent ranges."""
        arguments = {"ShardToMerge": shard_id, "AdjacentShardToMerge": adjacent_id}
        self._call("MergeShards", stream, {**stream_argument(stream), **arguments})

    def scale(self, stream: str, shard_count: int) -> None:
        """Reshard uniformly to this many shards."""
        arguments = {"TargetShardCount": shard_count, "ScalingType": "UNIFORM_SCALING"}
        self._call("UpdateShardCount", stream, {**stream_argument(stream), **arguments})

    def set_mode(self, arn: str, *, on_demand: bool) -> None:
        """Make a stream on-demand or provisioned; the service takes its ARN only."""
        mode = _ON_DEMAND if on_demand else _PROVISIONED
        self._call("UpdateStreamMode", arn, {"StreamARN": arn, "StreamModeDetails": mode})

    def set_retention(self, stream: str, hours: int, *, grows: bool) -> None:
        """Set how long records are kept. `grows` is whether that is longer than now: the service has a call for each direction."""
        word = "Increase" if grows else "Decrease"
        self._call(
            f"{word}StreamRetentionPeriod",
            stream,
            {**stream_argument(stream), "RetentionPeriodHours": hours},
        )

    def _call(self, operation: str, stream: str, arguments: dict[str, Any], *, is_write: bool = True) -> Any:
        return call_operation(
            "kinesis",
            operation,
            f"stream {stream}" if stream else "",
            self._options,
            is_write=is_write,
            retried=(Throttled,),
            **arguments,
        )
