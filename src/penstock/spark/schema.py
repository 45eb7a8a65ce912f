"""The rows that the source gives, as Spark and as Arrow spell them."""

from __future__ import annotations

from typing import Final

SCHEMA_DDL: Final = (
    "streamName STRING, shardId STRING, sequenceNumber STRING, subSequenceNumber BIGINT, "
    "partitionKey STRING, explicitHashKey STRING, approximateArrivalTimestamp TIMESTAMP, data BINARY"
)
"""`explicitHashKey` is null for records that have none, or were not put as part of an aggregate;
`partitionKey` is null only on streams whose record distribution the service manages."""
