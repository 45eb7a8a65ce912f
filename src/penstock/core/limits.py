"""Every limit of the service, named with its unit, each with its source.

Planning code takes its numbers from here, so that nothing is sent that the service must refuse. Quotas that an account
can have raised are marked as such; they are what a new account gets.

Source:
    Where a docstring says "API reference", the text of the operation in the Kinesis API model of botocore 1.43; where
    it says "developer guide", the page of quotas and limits of the Kinesis Data Streams developer guide.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# --- one record -------------------------------------------------------------------------------------------

RECORD_DEFAULT_BYTES_MAX: Final = MIB
"""Data plus partition key of one record, in a stream that was not set otherwise (API reference, GetRecords)."""

RECORD_BYTES_MAX: Final = 10 * MIB
"""Data plus partition key of one record, at the largest setting of a stream (API reference, PutRecords and
UpdateMaxRecordSize)."""

RECORD_SETTING_KIB_MIN: Final = 1024
"""Smallest MaxRecordSizeInKiB of a stream (API reference, UpdateMaxRecordSize)."""

RECORD_SETTING_KIB_MAX: Final = 10_240
"""Largest MaxRecordSizeInKiB of a stream (API reference, UpdateMaxRecordSize)."""

PARTITION_KEY_CHARS_MIN: Final = 1
"""Unicode characters in a partition key (API reference, PutRecord)."""

PARTITION_KEY_CHARS_MAX: Final = 256
"""Unicode characters (not bytes) in a partition key (API reference, PutRecord)."""

EXPLICIT_HASH_KEY_DIGITS_MAX: Final = 39
"""Digits of an explicit hash key; the value may be at most 2^128-1 (API reference, HashKey)."""

SEQUENCE_NUMBER_DIGITS_MAX: Final = 129
"""Digits of a sequence number: 0, or a digit 1-9 and at most 128 more (API reference, SequenceNumber). Today the
service gives 56."""

# --- writing ----------------------------------------------------------------------------------------------

PUT_RECORDS_COUNT_MAX: Final = 500
"""Records in one PutRecords (API reference)."""

PUT_RECORDS_BYTES_MAX: Final = 10 * MIB
"""Data plus partition keys of all records in one PutRecords (API reference; 5 MiB before October 2025)."""

SHARD_WRITE_RECORDS_PER_S_MAX: Final = 1000
"""Records that one shard takes in per second, from all producers together (API reference, PutRecords)."""

SHARD_WRITE_BYTES_PER_S_MAX: Final = MIB
"""Bytes (data plus partition keys) that one shard takes in per second (API reference, CreateStream: 1 MiB; other pages
say 1 MB)."""

SHARD_WRITE_BURST_BYTES_MAX: Final = 10 * MIB
"""Bytes that one shard takes in at once after a pause, for streams with large records (API reference, PutRecord)."""

# --- reading ----------------------------------------------------------------------------------------------

GET_RECORDS_COUNT_MAX: Final = 10_000
"""Records in one answer of GetRecords (API reference)."""

GET_RECORDS_BYTES_MAX: Final = 10 * MIB
"""Bytes in one answer of GetRecords (API reference)."""

GET_RECORDS_FULL_PAUSE_S: Final = 5.0
"""After an answer of `GET_RECORDS_BYTES_MAX` the shard refuses further calls for so long (API reference, GetRecords)."""

GET_RECORDS_PER_S_MAX: Final = 5
"""GetRecords calls on one shard per second, from all consumers together (API reference, CreateStream)."""

SHARD_READ_BYTES_PER_S_MAX: Final = 2 * MIB
"""Bytes that one shard gives out per second through GetRecords, to all consumers together (API reference, GetRecords).
With enhanced fan-out each consumer has this for itself (API reference, RegisterStreamConsumer)."""

GET_SHARD_ITERATOR_PER_S_MAX: Final = 5
"""GetShardIterator calls per second and open shard (API reference)."""

ITERATOR_LIFE_S: Final = 300.0
"""A shard iterator expires so long after it was given out (API reference, GetShardIterator)."""

# --- enhanced fan-out -------------------------------------------------------------------------------------

SUBSCRIPTION_LIFE_S: Final = 300.0
"""A SubscribeToShard ends after so long and must be renewed (API reference)."""

SUBSCRIBE_PER_S_MAX: Final = 1
"""SubscribeToShard calls per second for one consumer and shard (API reference)."""

SUBSCRIBE_AGAIN_S_MIN: Final = 5.0
"""A second SubscribeToShard of the same consumer and shard is refused within this time, and takes the subscription
over after it (API reference)."""

CONSUMER_COUNT_MAX: Final = 20
"""Registered consumers of one stream; on-demand Advantage streams may have `CONSUMER_ADVANTAGE_COUNT_MAX` (API
reference, RegisterStreamConsumer)."""

CONSUMER_ADVANTAGE_COUNT_MAX: Final = 50
"""Registered consumers of one on-demand Advantage stream (API reference, RegisterStreamConsumer)."""

CONSUMER_CREATING_COUNT_MAX: Final = 5
"""Consumers of one stream that may be in status CREATING at once (API reference, RegisterStreamConsumer)."""

REGISTER_CONSUMER_PER_S_MAX: Final = 5
"""RegisterStreamConsumer calls per second and account (API reference)."""

DESCRIBE_CONSUMER_PER_S_MAX: Final = 20
"""DescribeStreamConsumer calls per second and stream (API reference)."""

LIST_CONSUMERS_PER_S_MAX: Final = 5
"""ListStreamConsumers calls per second and stream (API reference)."""

# --- asking about streams ---------------------------------------------------------------------------------

LIST_SHARDS_PER_S_MAX: Final = 1000
"""ListShards calls per second and stream (API reference; older pages say 100)."""

LIST_SHARDS_PAGE_COUNT_MAX: Final = 1000
"""Shards in one answer of ListShards: MaxResults may say up to 10,000, but no page is larger (API reference)."""

LIST_SHARDS_TOKEN_LIFE_S: Final = 300.0
"""A NextToken of ListShards expires after so long (API reference)."""

DESCRIBE_STREAM_PER_S_MAX: Final = 10
"""DescribeStream calls per second and account (API reference)."""

DESCRIBE_STREAM_SUMMARY_PER_S_MAX: Final = 20
"""DescribeStreamSummary calls per second and account (API reference)."""

LIST_STREAMS_PER_S_MAX: Final = 5
"""ListStreams calls per second and account (developer guide)."""

STREAM_CHANGE_PER_S_MAX: Final = 5
"""Calls per second and account of CreateStream, DeleteStream, SplitShard, MergeShards each (developer guide)."""

# --- streams and shards -----------------------------------------------------------------------------------

UPDATE_SHARD_COUNT_PER_DAY_MAX: Final = 10
"""UpdateShardCount calls per stream in any 24 hours (API reference)."""

UPDATE_SHARD_COUNT_MAX: Final = 10_000
"""Shards that UpdateShardCount scales up to (API reference). One call at most doubles or halves."""

SHARD_ACCOUNT_COUNT_MAX: Final = 1000
"""Shards of one account and region in most regions, 20,000 in the three largest; can be raised (developer guide; some
regions have 6,000)."""

RETENTION_HOURS_MIN: Final = 24
"""Shortest and usual retention of a stream (API reference, DecreaseStreamRetentionPeriod)."""

RETENTION_HOURS_MAX: Final = 8760
"""Longest retention of a stream: 365 days (API reference, IncreaseStreamRetentionPeriod)."""

TAGS_COUNT_MAX: Final = 50
"""Tags of one stream (API reference, AddTagsToStream)."""
