"""Read for producer tests what is in a stream, and what a KCL worker would pass to its handler."""

from __future__ import annotations

from penstock.core.aggregation import deaggregate
from penstock.core.hash_key import HashRange, effective_hash_key


def raw_records(client, stream, before_read=lambda: None):
    """Return each shard with its Kinesis records, parents before children."""
    for shard in sorted(client.list_shards(StreamName=stream)["Shards"], key=lambda each: each["ShardId"]):
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        found = []
        while iterator:
            before_read()
            page = client.get_records(ShardIterator=iterator)
            found += page["Records"]
            iterator = (
                page.get("NextShardIterator") if page["MillisBehindLatest"] or page["Records"] else None
            )
        yield shard, found


def kcl_reads(client, stream, before_read=lambda: None):
    """Return (key, data) as the KCL does: an aggregate with one record outside its shard's range is dropped whole."""
    seen = []
    for shard, records in raw_records(client, stream, before_read):
        span = shard["HashKeyRange"]
        owned = HashRange(int(span["StartingHashKey"]), int(span["EndingHashKey"]))
        for record in records:
            inner = deaggregate(record["Data"])
            if inner is None:
                seen.append((record["PartitionKey"], record["Data"]))
            elif all(
                effective_hash_key(each.partition_key, each.explicit_hash_key) in owned for each in inner
            ):
                seen += [(each.partition_key, each.data) for each in inner]
    return seen


def firsts_by_key(seen):
    """Return each key's data in the order in which they were first seen."""
    found = {}
    for key, data in seen:
        found.setdefault(key, {}).setdefault(data)
    return {key: list(its) for key, its in found.items()}
