"""The service's limits that Penstock keeps to, named with their unit, each with its source.

Source:
    "API reference" is the text of the operation in the Kinesis API model of botocore 1.43.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# --- one record -------------------------------------------------------------------------------------------

RECORD_DEFAULT_BYTES_MAX: Final = MIB
"""Data plus partition key of one record, unless the stream is set otherwise (API reference, GetRecords)."""

RECORD_BYTES_MAX: Final = 10 * MIB
"""Data plus partition key of one record, at the largest setting of a stream (API reference, PutRecords and
UpdateMaxRecordSize)."""

PARTITION_KEY_CHARS_MIN: Final = 1
"""Unicode characters in a partition key (API reference, PutRecord)."""

PARTITION_KEY_CHARS_MAX: Final = 256
"""Unicode characters (not bytes) in a partition key (API reference, PutRecord)."""

SEQUENCE_NUMBER_DIGITS_MAX: Final = 129
"""Digits of a sequence number: 0, or a digit 1-9 and at most 128 more (API reference, SequenceNumber). Today the
service uses 56."""

# --- writing ----------------------------------------------------------------------------------------------

PUT_RECORDS_COUNT_MAX: Final = 500
"""Records in one PutRecords (API reference)."""

PUT_RECORDS_BYTES_MAX: Final = 10 * MIB
"""Data plus partition keys of all records in one PutRecords (API reference; 5 MiB before October 2025)."""

SHARD_WRITE_RECORDS_PER_S_MAX: Final = 1000
"""Records that one shard accepts per second, from all producers together (API reference, PutRecords)."""

SHARD_WRITE_BYTES_PER_S_MAX: Final = MIB
"""Bytes (data plus partition keys) that one shard accepts per second (API reference, CreateStream: 1 MiB; other pages
say 1 MB)."""

# --- reading ----------------------------------------------------------------------------------------------

GET_RECORDS_COUNT_MAX: Final = 10_000
"""Records in one answer of GetRecords (API reference)."""

GET_RECORDS_PER_S_MAX: Final = 5
"""GetRecords calls on one shard per second, from all consumers together (API reference, CreateStream)."""

SHARD_READ_BYTES_PER_S_MAX: Final = 2 * MIB
"""Bytes that one shard returns per second through GetRecords, to all consumers together (API reference, GetRecords)."""

ITERATOR_LIFE_S: Final = 300.0
"""A shard iterator expires this long after it was issued (API reference, GetShardIterator)."""

SUBSCRIPTION_LIFE_S: Final = 300.0
"""The service ends a subscription's connection this long after the call succeeded (API reference, SubscribeToShard)."""

SUBSCRIPTIONS_APART_S: Final = 5.0
"""A consumer's call for a shard is refused for this long after its last one succeeded (API reference, SubscribeToShard)."""

SUBSCRIBE_AGAIN_S: Final = SUBSCRIPTIONS_APART_S + 0.2
"""Time from one subscription to the next call: longer than the service's limit, which counts by the service's clock (API
reference, SubscribeToShard)."""

STREAM_CONSUMER_COUNT_MAX: Final = 20
"""Registered consumers of one stream; 50 with On-demand Advantage (API reference, RegisterStreamConsumer)."""

RETENTION_DEFAULT_MS: Final = 24 * 3_600_000
"""How long a stream keeps a record unless it is set otherwise (API reference, IncreaseStreamRetentionPeriod)."""

# --- listing shards ---------------------------------------------------------------------------------------

LIST_SHARDS_PAGE_COUNT_MAX: Final = 1000
"""Shards in one answer of ListShards: MaxResults may be up to 10,000, but no page is larger (API reference)."""
