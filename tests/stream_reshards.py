"""Split and merge a stream's open shards at random."""

from __future__ import annotations


def reshard(client, stream, chance):
    """Merge two neighbours or split one shard in the middle."""
    shards = [
        shard
        for shard in client.list_shards(StreamName=stream)["Shards"]
        if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    ]
    shards.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
    if len(shards) > 2 and chance.random() < 0.5:
        place = chance.randrange(len(shards) - 1)
        client.merge_shards(
            StreamName=stream,
            ShardToMerge=shards[place]["ShardId"],
            AdjacentShardToMerge=shards[place + 1]["ShardId"],
        )
        return
    shard = chance.choice(shards)
    low, high = (int(shard["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey"))
    if high - low > 10:
        client.split_shard(
            StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high) // 2)
        )
