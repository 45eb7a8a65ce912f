"""What each operation's request may look like, and the ValidationException when it does not.

Source: the API reference of Kinesis Data Streams (members, lengths, ranges and patterns).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.local.replies import Timestamp, serialization, validation

MIB = 1024 * 1024


_SHOWN_CHARS_MAX = 1024
_MOMENT_MAX_S = 253_402_300_799
"""The last second of the year 9999."""


class Shape:
    """A type of the API's model; subclasses convert a value and collect the constraints it violates."""

    def check(self, value: Any, path: str, problems: list[str]) -> Any:
        """Return the value in its inner form; add a sentence per violated constraint."""
        raise NotImplementedError


def violated(value: Any, path: str, constraint: str) -> str:
    """Say, in the service's words, that a member violates a constraint."""
    shown = "null" if value is None else f"'{str(value)[:_SHOWN_CHARS_MAX]}'"
    return f"Value {shown} at '{path}' failed to satisfy constraint: {constraint}"


def wrong_type(path: str, expected: str, value: Any) -> Exception:
    """The body cannot be read: a member has another JSON type."""
    return serialization(f"{path} must be {expected}, not {type(value).__name__}")


@dataclass(frozen=True)
class Text(Shape):
    """A string."""

    min: int = 0
    max: int | None = None
    pattern: str | None = None
    enum: tuple[str, ...] = ()

    def check(self, value: Any, path: str, problems: list[str]) -> str:
        """Check length, pattern and enumeration."""
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        if len(value) < self.min:
            problems.append(
                violated(value, path, f"Member must have length greater than or equal to {self.min}")
            )
        if self.max is not None and len(value) > self.max:
            problems.append(
                violated(value, path, f"Member must have length less than or equal to {self.max}")
            )
        # a value that is too long is not matched: some of the model's patterns take long for it
        fits = self.max is None or len(value) <= self.max
        if self.pattern is not None and fits and not re.fullmatch(self.pattern, value, re.ASCII):
            problems.append(
                violated(value, path, f"Member must satisfy regular expression pattern: {self.pattern}")
            )
        if self.enum and value not in self.enum:
            problems.append(
                violated(value, path, f"Member must satisfy enum value set: [{', '.join(self.enum)}]")
            )
        return value


@dataclass(frozen=True)
class Whole(Shape):
    """An integer."""

    min: int | None = None
    max: int | None = None

    def check(self, value: Any, path: str, problems: list[str]) -> int:
        """Check the range."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(path, "an integer", value)
        if self.min is not None and value < self.min:
            problems.append(
                violated(value, path, f"Member must have value greater than or equal to {self.min}")
            )
        if self.max is not None and value > self.max:
            problems.append(violated(value, path, f"Member must have value less than or equal to {self.max}"))
        return value


class Flag(Shape):
    """A boolean."""

    def check(self, value: Any, path: str, problems: list[str]) -> bool:  # noqa: ARG002 - one signature for all
        """Check the type."""
        if not isinstance(value, bool):
            raise wrong_type(path, "a boolean", value)
        return value


class Moment(Shape):
    """A timestamp: seconds as a number in JSON, a tagged number in CBOR; milliseconds inside, rounded up.

    Rounding up keeps "at or after" exact: records carry whole milliseconds.
    """

    def check(self, value: Any, path: str, problems: list[str]) -> int:  # noqa: ARG002 - one signature for all
        """Convert to milliseconds since the epoch."""
        if isinstance(value, Timestamp):
            if abs(value.ms) > _MOMENT_MAX_S * 1000:
                raise wrong_type(path, "a time before the year 10000", value)
            return value.ms
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MOMENT_MAX_S:
            raise wrong_type(path, "a number of seconds", value)
        # microseconds first: the product of a float and 1000 may fall just below a whole millisecond
        return -(-round(value * 1_000_000) // 1000)


class Blob(Shape):
    """Bytes: base64 in JSON, a byte string in CBOR; checked where records are taken in."""

    def check(self, value: Any, path: str, problems: list[str]) -> Any:  # noqa: ARG002 - one signature for all
        """Check the type."""
        if not isinstance(value, str | bytes):
            raise wrong_type(path, "a blob", value)
        return value


@dataclass(frozen=True)
class ListOf(Shape):
    """A list."""

    item: Shape
    min: int = 0
    max: int | None = None

    def check(self, value: Any, path: str, problems: list[str]) -> list[Any]:
        """Check the length and each item."""
        if not isinstance(value, list):
            raise wrong_type(path, "a list", value)
        check_length(value, path, self.min, self.max, problems)
        return [self.item.check(v, f"{path}.{i}.member", problems) for i, v in enumerate(value, 1)]


@dataclass(frozen=True)
class MapOf(Shape):
    """A map from strings to strings."""

    key: Text
    value: Text
    min: int = 0
    max: int | None = None

    def check(self, value: Any, path: str, problems: list[str]) -> dict[str, str]:
        """Check the size, each key and each value."""
        if not isinstance(value, dict):
            raise wrong_type(path, "a map", value)
        check_length(value, path, self.min, self.max, problems)
        return {
            self.key.check(k, f"{path}.key", problems): self.value.check(v, f"{path}.{k}", problems)
            for k, v in value.items()
        }


@dataclass(frozen=True)
class Struct(Shape):
    """Named members; unknown ones are ignored, as the service does."""

    members: Mapping[str, Shape]
    required: frozenset[str] = field(default_factory=frozenset)

    def check(self, value: Any, path: str, problems: list[str]) -> dict[str, Any]:
        """Check presence and each member; members that are null count as absent."""
        if not isinstance(value, dict):
            raise wrong_type(path or "the body", "a structure", value)
        found = {}
        for name, shape in self.members.items():
            where = f"{path}.{name[0].lower()}{name[1:]}" if path else f"{name[0].lower()}{name[1:]}"
            given = value.get(name)
            if given is not None:
                found[name] = shape.check(given, where, problems)
            elif name in self.required:
                problems.append(violated(None, where, "Member must not be null"))
        return found


def check_length(value: Any, path: str, least: int, most: int | None, problems: list[str]) -> None:
    """Check how many members a list or map has; its content is not repeated in the message."""
    if len(value) < least:
        problems.append(violated("[...]", path, f"Member must have length greater than or equal to {least}"))
    if most is not None and len(value) > most:
        problems.append(violated("[...]", path, f"Member must have length less than or equal to {most}"))


def refuse_if(problems: list[str]) -> None:
    """Raise the ValidationException that lists all problems, if there are any."""
    if problems:
        plural = "error" if len(problems) == 1 else "errors"
        raise validation(f"{len(problems)} validation {plural} detected: {'; '.join(problems)}")


def checked(operation: str, document: Any) -> dict[str, Any]:
    """Return the members of a request that its operation knows.

    Raises:
        Refusal: `SerializationException` for a wrong type, `ValidationException` for the rest.
    """
    problems: list[str] = []
    found: dict[str, Any] = REQUESTS[operation].check(document, "", problems)
    refuse_if(problems)
    return found


NAME = Text(1, 128, "[a-zA-Z0-9_.-]+")
ARN = Text(1, 2048, r"arn:aws.*:kinesis:.*:\d{12}:stream/\S+")
RESOURCE = Text(1, 2048, r"arn:aws.*:kinesis:.*:\d{12}:.*(stream|channel|queue)/\S+")
HASH_KEY = Text(pattern=r"0|([1-9]\d{0,38})")
NUMBER = Text(pattern=r"0|([1-9]\d{0,128})")
PARTITION_KEY = Text(1, 256)
PAGE_TOKEN = Text(1, 1_048_576)
_ITERATOR_TYPE = Text(
    enum=("AFTER_SEQUENCE_NUMBER", "LATEST", "AT_TIMESTAMP", "AT_SEQUENCE_NUMBER", "TRIM_HORIZON")
)
_FILTER_TYPE = Text(
    enum=(
        "AFTER_SHARD_ID",
        "AT_TRIM_HORIZON",
        "FROM_TRIM_HORIZON",
        "AT_LATEST",
        "AT_TIMESTAMP",
        "FROM_TIMESTAMP",
    )
)
_FILTER = Struct({"Type": _FILTER_TYPE, "ShardId": NAME, "Timestamp": Moment()}, frozenset({"Type"}))
_TAGS = MapOf(Text(1, 128), Text(0, 256), 1, 200)
_TAG_KEYS = ListOf(Text(1, 128), 1, 50)
_MODE = Struct({"StreamMode": Text(enum=("PROVISIONED", "ON_DEMAND"))}, frozenset({"StreamMode"}))
_RECORD_KIB = Whole(1024, 10240)
_ENCRYPTION = Text(enum=("NONE", "KMS"))
_DISTRIBUTION = Text(enum=("AUTO", "USER_PARTITION_KEY"))
_SHARD_METRICS = ListOf(
    Text(
        enum=(
            "IncomingBytes",
            "IncomingRecords",
            "OutgoingBytes",
            "OutgoingRecords",
            "WriteProvisionedThroughputExceeded",
            "ReadProvisionedThroughputExceeded",
            "IteratorAgeMilliseconds",
            "ALL",
        )
    ),
    1,
    7,
)


def _request(required: str = "", /, **members: Shape) -> Struct:
    return Struct(members, frozenset(required.split()))


def _stream_request(required: str = "", /, **members: Shape) -> Struct:
    return _request(required, StreamName=NAME, StreamARN=ARN, **members)


REQUESTS: dict[str, Struct] = {
    "CreateStream": _request(
        "StreamName",
        StreamName=NAME,
        ShardCount=Whole(1),
        StreamModeDetails=_MODE,
        Tags=_TAGS,
        MaxRecordSizeInKiB=_RECORD_KIB,
        WarmThroughputMiBps=Whole(0),
        RecordDistributionStrategy=_DISTRIBUTION,
    ),
    "DeleteStream": _stream_request(EnforceConsumerDeletion=Flag()),
    "DescribeStream": _stream_request(Limit=Whole(1, 10000), ExclusiveStartShardId=NAME),
    "DescribeStreamSummary": _stream_request(),
    "DescribeLimits": _request(),
    "ListStreams": _request(Limit=Whole(1, 10000), ExclusiveStartStreamName=NAME, NextToken=PAGE_TOKEN),
    "ListShards": _stream_request(
        NextToken=PAGE_TOKEN,
        ExclusiveStartShardId=NAME,
        MaxResults=Whole(1, 10000),
        StreamCreationTimestamp=Moment(),
        ShardFilter=_FILTER,
    ),
    "PutRecord": _stream_request(
        "Data PartitionKey",
        Data=Blob(),
        PartitionKey=PARTITION_KEY,
        ExplicitHashKey=HASH_KEY,
        SequenceNumberForOrdering=NUMBER,
        DryRun=Flag(),
    ),
    "PutRecords": _stream_request(DryRun=Flag()),
    "GetShardIterator": _stream_request(
        "ShardId ShardIteratorType",
        ShardId=NAME,
        ShardIteratorType=_ITERATOR_TYPE,
        StartingSequenceNumber=NUMBER,
        Timestamp=Moment(),
        DryRun=Flag(),
    ),
    "GetRecords": _request(
        "ShardIterator", ShardIterator=Text(1, 512), Limit=Whole(1, 10000), StreamARN=ARN, DryRun=Flag()
    ),
    "SplitShard": _stream_request(
        "ShardToSplit NewStartingHashKey", ShardToSplit=NAME, NewStartingHashKey=HASH_KEY
    ),
    "MergeShards": _stream_request(
        "ShardToMerge AdjacentShardToMerge", ShardToMerge=NAME, AdjacentShardToMerge=NAME
    ),
    "UpdateShardCount": _stream_request(
        "TargetShardCount ScalingType",
        TargetShardCount=Whole(1),
        ScalingType=Text(enum=("UNIFORM_SCALING",)),
    ),
    "IncreaseStreamRetentionPeriod": _stream_request("RetentionPeriodHours", RetentionPeriodHours=Whole()),
    "DecreaseStreamRetentionPeriod": _stream_request("RetentionPeriodHours", RetentionPeriodHours=Whole()),
    "UpdateMaxRecordSize": _stream_request("MaxRecordSizeInKiB", MaxRecordSizeInKiB=_RECORD_KIB),
    "UpdateStreamMode": _request(
        "StreamARN StreamModeDetails", StreamARN=ARN, StreamModeDetails=_MODE, WarmThroughputMiBps=Whole(0)
    ),
    "UpdateStreamWarmThroughput": _stream_request("WarmThroughputMiBps", WarmThroughputMiBps=Whole(0)),
    "UpdateStreamRecordDistributionStrategy": _request(
        "StreamARN RecordDistributionStrategy", StreamARN=ARN, RecordDistributionStrategy=_DISTRIBUTION
    ),
    "StartStreamEncryption": _stream_request(
        "EncryptionType KeyId", EncryptionType=_ENCRYPTION, KeyId=Text(1, 2048)
    ),
    "StopStreamEncryption": _stream_request(
        "EncryptionType KeyId", EncryptionType=_ENCRYPTION, KeyId=Text(1, 2048)
    ),
    "EnableEnhancedMonitoring": _stream_request("ShardLevelMetrics", ShardLevelMetrics=_SHARD_METRICS),
    "DisableEnhancedMonitoring": _stream_request("ShardLevelMetrics", ShardLevelMetrics=_SHARD_METRICS),
    "PutResourcePolicy": _request("ResourceARN Policy", ResourceARN=RESOURCE, Policy=Text()),
    "GetResourcePolicy": _request("ResourceARN", ResourceARN=RESOURCE),
    "DeleteResourcePolicy": _request("ResourceARN", ResourceARN=RESOURCE),
    "DescribeAccountSettings": _request(),
    "UpdateAccountSettings": _request(
        "MinimumThroughputBillingCommitment",
        MinimumThroughputBillingCommitment=Struct(
            {"Status": Text(enum=("ENABLED", "DISABLED"))}, frozenset({"Status"})
        ),
    ),
    "AddTagsToStream": _stream_request("Tags", Tags=_TAGS),
    "RemoveTagsFromStream": _stream_request("TagKeys", TagKeys=_TAG_KEYS),
    "ListTagsForStream": _stream_request(ExclusiveStartTagKey=Text(1, 128), Limit=Whole(1, 50)),
    "TagResource": _request("ResourceARN Tags", ResourceARN=RESOURCE, Tags=_TAGS),
    "UntagResource": _request("ResourceARN TagKeys", ResourceARN=RESOURCE, TagKeys=_TAG_KEYS),
    "ListTagsForResource": _request("ResourceARN", ResourceARN=RESOURCE),
}
