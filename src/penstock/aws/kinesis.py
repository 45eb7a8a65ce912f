"""The Kinesis port over boto3."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import environment_endpoint
from penstock.aws.data_plane import WirePage, child_shards, encode_entries
from penstock.aws.service_calls import TRANSIENT, call_operation
from penstock.core.hash_key import HashRange
from penstock.core.limits import LIST_SHARDS_PAGE_COUNT_MAX
from penstock.core.shard import Shard, StreamSummary
from penstock.errors import Rejected, ServiceError, Throttled, UnknownOutcome
from penstock.ports.kinesis import EntryAnswer, IteratorStart, PutEntry, RecordPage, ShardFilter, ShardListing

_LISTING_RESTARTS_MAX: Final = 3
_SERVICE_MANAGED: Final = "AUTO"


class AwsKinesis:
    """Implements `penstock.ports.kinesis.Kinesis`; safe to use from several threads.

    Args:
        retries: Whether a throttled or failed call is retried.
        stays_off_aws: If the environment names an endpoint now, calls are refused once it no longer names one.
    """

    def __init__(self, options: AwsOptions, *, retries: bool = True, stays_off_aws: bool = False) -> None:
        self._options = options
        self._first_endpoint = environment_endpoint(options) if stays_off_aws else None
        self._retried: tuple[type[ServiceError], ...] = TRANSIENT if retries else ()

    def without_retries(self) -> AwsKinesis:
        return AwsKinesis(self._options, retries=False)

    def __eq__(self, other: object) -> bool:
        """Compare the options: equal ones reach the same service as the same caller."""
        return isinstance(other, AwsKinesis) and self._options == other._options

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash(self._options)

    def __repr__(self) -> str:
        """Show the endpoint, never the credentials."""
        return f"AwsKinesis({self._options!r})"

    def _call(self, operation: str, resource: str, **arguments: Any) -> Any:
        if self._first_endpoint is not None and environment_endpoint(self._options) is None:
            raise Rejected(
                f"{operation} of {resource}: not sent. The environment named the endpoint {self._first_endpoint} when this client was "
                "made and names none now, so the call would reach AWS: close the client before the environment changes, or give it "
                "endpoint_url"
            )
        arguments = {"retried": self._retried, **arguments}
        return call_operation("kinesis", operation, resource, self._options, **arguments)

    def fetch_summary(self, stream: str) -> StreamSummary:
        answer = self._call("DescribeStreamSummary", f"stream {stream}", **stream_argument(stream))
        summary = answer["StreamDescriptionSummary"]
        strategy = summary.get("RecordDistributionStrategy")
        return StreamSummary(
            name=summary["StreamName"],
            arn=summary["StreamARN"],
            status=summary["StreamStatus"],
            created_ms=round(summary["StreamCreationTimestamp"].timestamp() * 1000),
            retention_hours=summary["RetentionPeriodHours"],
            open_shard_count=summary.get("OpenShardCount", 0),
            record_bytes_max=summary.get("MaxRecordSizeInKiB", 1024) * 1024,
            on_demand=summary.get("StreamModeDetails", {}).get("StreamMode") == "ON_DEMAND",
            service_managed_keys=None if strategy is None else strategy == _SERVICE_MANAGED,
            shard_metrics=tuple(
                metric
                for enhanced in summary.get("EnhancedMonitoring", ())
                for metric in enhanced.get("ShardLevelMetrics", ())
            ),
        )

    def fetch_shards(self, stream: str, shard_filter: ShardFilter | None = None) -> ShardListing:
        """Call ListShards for every page; start again when a page token has expired."""
        for _ in range(_LISTING_RESTARTS_MAX):
            try:
                return self._fetch_listing(stream, shard_filter)
            except ServiceError as error:
                if error.code != "ExpiredNextTokenException":
                    raise
        return self._fetch_listing(stream, shard_filter)

    def _fetch_listing(self, stream: str, shard_filter: ShardFilter | None) -> ShardListing:
        arguments: dict[str, Any] = {**stream_argument(stream), "MaxResults": LIST_SHARDS_PAGE_COUNT_MAX}
        if shard_filter is not None:
            arguments["ShardFilter"] = _filter_of(shard_filter)
        shards: list[Shard] = []
        server_ms: int | None = None
        while True:
            answer = self._call("ListShards", f"stream {stream}", **arguments)
            shards.extend(_shard_of(each) for each in answer["Shards"])
            server_ms = server_ms_of(answer) if server_ms is None else server_ms
            token = answer.get("NextToken")
            if not token:
                return ShardListing(tuple(shards), server_ms)
            # The token names the stream; the service refuses the two together.
            arguments = {"NextToken": token, "MaxResults": LIST_SHARDS_PAGE_COUNT_MAX}

    def fetch_iterator(self, stream: str, shard_id: str, start: IteratorStart) -> str:
        arguments: dict[str, Any] = {
            **stream_argument(stream),
            "ShardId": shard_id,
            "ShardIteratorType": start.type.value,
        }
        if start.sequence_number is not None:
            arguments["StartingSequenceNumber"] = start.sequence_number
        if start.timestamp_ms is not None:
            arguments["Timestamp"] = datetime.fromtimestamp(start.timestamp_ms / 1000, UTC)
        answer = self._call("GetShardIterator", f"stream {stream}, shard {shard_id}", **arguments)
        return str(answer["ShardIterator"])

    def fetch_records(self, stream: str, iterator: str, record_count_max: int = 10_000) -> RecordPage:
        arguments: dict[str, Any] = {"ShardIterator": iterator, "Limit": record_count_max}
        if stream.startswith("arn:"):
            arguments["StreamARN"] = stream
        retried = tuple(kind for kind in self._retried if kind is not Throttled)
        answer = self._call("GetRecords", f"stream {stream}", retried=retried, **arguments)
        page: WirePage = answer["Page"]
        return RecordPage(
            records=page.records,
            next_iterator=page.next_iterator,
            millis_behind_latest=page.millis_behind_latest or 0,
            child_shards=child_shards(page.children),
            server_ms=server_ms_of(answer),
        )

    def put_records(self, stream: str, entries: Sequence[PutEntry]) -> Sequence[EntryAnswer]:
        records = encode_entries(entries)
        where = f"stream {stream}"
        answer = self._call(
            "PutRecords", where, retried=(), is_write=True, **stream_argument(stream), Records=records
        )
        answers: Sequence[EntryAnswer] = answer["Answers"].records
        if len(answers) != len(entries):
            raise UnknownOutcome(
                f"PutRecords on stream {stream}: {len(entries)} entries sent, {len(answers)} answered",
                operation="PutRecords",
                resource=stream,
            )
        return answers


def stream_argument(stream: str) -> dict[str, str]:
    """Return the argument that names a stream by its name or its ARN."""
    return {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}


def _filter_of(shard_filter: ShardFilter) -> dict[str, Any]:
    arguments: dict[str, Any] = {"Type": shard_filter.type}
    if shard_filter.timestamp_ms is not None:
        arguments["Timestamp"] = datetime.fromtimestamp(shard_filter.timestamp_ms / 1000, UTC)
    if shard_filter.shard_id is not None:
        arguments["ShardId"] = shard_filter.shard_id
    return arguments


def _shard_of(shard: dict[str, Any]) -> Shard:
    span, numbers = shard["HashKeyRange"], shard["SequenceNumberRange"]
    return Shard(
        shard_id=shard["ShardId"],
        hash_range=HashRange(int(span["StartingHashKey"]), int(span["EndingHashKey"])),
        parents=tuple(shard[name] for name in ("ParentShardId", "AdjacentParentShardId") if shard.get(name)),
        starting_sequence_number=numbers["StartingSequenceNumber"],
        ending_sequence_number=numbers.get("EndingSequenceNumber"),
    )


def server_ms_of(answer: dict[str, Any]) -> int | None:
    """Return the service's clock at an answer of botocore; None if the answer has none."""
    return moment_ms(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"))


def moment_ms(date: str | None) -> int | None:
    """Return the moment of a `Date` header; None if there is none, or another text."""
    try:
        return None if date is None else int(parsedate_to_datetime(date).timestamp() * 1000)
    except ValueError:
        return None
