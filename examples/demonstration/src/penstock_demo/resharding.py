"""Change the stream's shards while it is read: split one, merge two neighbours."""

from __future__ import annotations

import time
from typing import Any, Final

from penstock.errors import PenstockError

_DEADLINE_S: Final = 60.0
_POLL_S: Final = 0.1


def open_shards(client: Any, stream: str) -> list[dict[str, Any]]:
    """Return the shards that take records, in the order of their hash ranges."""
    shards = client.list_shards(StreamName=stream, ShardFilter={"Type": "AT_LATEST"})["Shards"]
    return sorted(shards, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))


def split_shard(client: Any, stream: str, place: int) -> str:
    """Split an open shard in the middle of its hash range and wait until the stream is ACTIVE again.

    Args:
        client: boto3's client.
        stream: Name.
        place: Which open shard, in the order of hash ranges.

    Returns:
        A description of the change.
    """
    shard = open_shards(client, stream)[place]
    first, last = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
    client.split_shard(
        StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((first + last) // 2 + 1)
    )
    wait_active(client, stream)
    children = [each["ShardId"] for each in open_shards(client, stream)[place : place + 2]]
    return f"shard {_short(shard['ShardId'])} was split into {' and '.join(map(_short, children))}"


def merge_shards(client: Any, stream: str, place: int) -> str:
    """Merge an open shard with the next one and wait until the stream is ACTIVE again; arguments as `split_shard`."""
    pair = [each["ShardId"] for each in open_shards(client, stream)[place : place + 2]]
    client.merge_shards(StreamName=stream, ShardToMerge=pair[0], AdjacentShardToMerge=pair[1])
    wait_active(client, stream)
    child = open_shards(client, stream)[place]["ShardId"]
    return f"shards {' and '.join(map(_short, pair))} were merged into {_short(child)}"


def wait_active(client: Any, stream: str, deadline_s: float = _DEADLINE_S) -> None:
    """Wait until a change of the stream is done.

    Raises:
        PenstockError: It takes longer than the deadline.
    """
    end_s = time.monotonic() + deadline_s
    while True:
        summary = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
        if summary["StreamStatus"] == "ACTIVE":
            return
        if time.monotonic() > end_s:
            raise PenstockError(
                f"waited {deadline_s:g} s for stream {stream} to be ACTIVE; it is {summary['StreamStatus']}"
            )
        time.sleep(_POLL_S)


def _short(shard_id: str) -> str:
    return shard_id.removeprefix("shardId-").lstrip("0") or "0"
