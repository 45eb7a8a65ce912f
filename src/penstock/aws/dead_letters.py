"""Places for records that a handler could not process: a stream, a bucket of S3, or a queue of SQS.

::

    Consumer("orders", "billing", handle, on_failure="dead_letter", dead_letter=DeadLetterStream("orders-dead"))

A letter is a JSON object that holds all that is needed to find the record, or to put it again: `stream`, `shardId`,
`sequenceNumber`, `subSequenceNumber`, `partitionKey`, `explicitHashKey`, `approximateArrivalTimestamp` (ISO 8601, UTC),
`data` (base64) and `reason`. Letters of the Spark sink have the same names, as far as its rows have the fields.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from penstock.aws.aws_options import AwsOptions, parse_connection
from penstock.aws.connection import environment_endpoint, with_environment
from penstock.aws.service_calls import TRANSIENT, call_operation
from penstock.core.keyword_options import merge_connection
from penstock.core.limits import RECORD_BYTES_MAX
from penstock.core.safe_text import describe_error
from penstock.core.stream_identity import with_region_of_arns
from penstock.errors import DeadLetterFailed, ResourceBusy, ServiceError, UnknownOutcome, UsageError

if TYPE_CHECKING:
    from penstock.consumer.records import Batch
    from penstock.core.reading.record import Record

_RETRIED_ERRORS: Final = (*TRANSIENT, UnknownOutcome, ResourceBusy)
"""After each of these a letter is written again. A second one does no harm: a bucket replaces the first, and a stream or a queue delivers at least once anyway."""
_MESSAGE_BYTES_MAX: Final = 2**20
"""The limit of SQS since August 2025."""
_KEY_CHARACTERS_MAX: Final = 256


def letter_of(record: Record, error: BaseException) -> str:
    """Return a record and the error of its handler as a JSON object."""
    return json.dumps(
        {
            "stream": record.stream,
            "shardId": record.shard_id,
            "sequenceNumber": record.sequence_number,
            "subSequenceNumber": record.sub_sequence_number,
            "partitionKey": record.partition_key,
            "explicitHashKey": record.explicit_hash_key,
            "approximateArrivalTimestamp": record.approximate_arrival_timestamp.isoformat(),
            "data": base64.b64encode(record.data).decode(),
            "reason": describe_error(error),
        }
    )


class _Target:
    """A target for dead letters. A call writes a letter for each record that failed for good."""

    _service: str

    def __init__(
        self,
        region: str | None,
        endpoint_url: str | None,
        connection: Mapping[str, Any] | None,
        stream: str | None = None,
    ) -> None:
        fields = with_region_of_arns(
            merge_connection(connection, region=region, endpoint_url=endpoint_url), stream
        )
        self._options = parse_connection(fields)

    def __call__(self, batch: Batch, error: BaseException) -> None:
        """Write a letter for each record.

        Raises:
            DeadLetterFailed: The target did not take a letter. The error holds this record and those after it.
        """
        for place, record in enumerate(batch):
            letter = letter_of(record, error)
            try:
                self._write(record, letter)
            except (ServiceError, UsageError) as refused:
                raise DeadLetterFailed(
                    f"{self}: the letter of the record at {record.position} of shard {record.shard_id} "
                    f"({len(letter)} bytes) was not written: {refused}",
                    tuple(batch[place:]),
                ) from refused

    def _write(self, record: Record, letter: str) -> None:
        raise NotImplementedError

    def _call(self, operation: str, arguments: Mapping[str, Any]) -> None:
        call_operation(
            self._service,
            operation,
            str(self),
            self._options,
            is_write=True,
            retried=_RETRIED_ERRORS,
            **arguments,
        )


def _name_of(stream: str) -> str:
    return stream.rpartition("/")[2]


def _place_of(options: AwsOptions) -> tuple[str | None, str]:
    """Return the region and the endpoint of calls to Kinesis, by the options or else the environment."""
    endpoint_url = options.endpoint_url or environment_endpoint(options) or ""
    return with_environment(options).region, endpoint_url.rstrip("/")


def _credentials_of(options: AwsOptions) -> tuple[str | None, ...]:
    return options.profile, options.access_key_id, options.role_arn


def _check_named(**targets: object) -> None:
    for name, given in targets.items():
        if not given or not isinstance(given, str):
            raise UsageError(f"{name}={given!r}: expected a text")


class DeadLetterStream(_Target):
    """Puts each failed record as a JSON object into another stream, under the record's own partition key.

    A letter is a third longer than its record, because the payload is base64. A letter above the stream's limit for records
    is an error: use `DeadLetterBucket`, which takes every size.

    Args:
        stream: Name or ARN of the stream for dead letters. It must exist.
        region: AWS region; None: that of an ARN, or as boto3 finds it.
        endpoint_url: For instance that of `penstock local`; None: as boto3 finds it.
        connection: Further connection options (docs/api.md); `deadline_s` (60) bounds a call with its retries.

    Raises:
        OptionError: A connection option is unknown, or has a bad value.
    """

    _service = "kinesis"

    def __init__(
        self,
        stream: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        connection: Mapping[str, Any] | None = None,
    ) -> None:
        _check_named(stream=stream)
        super().__init__(region, endpoint_url, connection, stream)
        self.stream = stream

    def __str__(self) -> str:
        return f"dead-letter stream {self.stream}"

    def is_read_by(self, streams: Collection[str], connection: Mapping[str, Any]) -> bool:
        """Return whether a consumer of these streams, with this connection, would read the letters.

        ARNs show the account. A name does not: then the credentials have to be the same, too.
        """
        is_same_arn = self.stream.startswith("arn:") and self.stream in streams
        may_be_same = any(
            _name_of(each) == _name_of(self.stream) and {each[:4], self.stream[:4]} != {"arn:"}
            for each in streams
        )
        if not is_same_arn and not may_be_same:
            return False
        own, other = self._options, parse_connection(with_region_of_arns(connection, *streams))
        return _place_of(own) == _place_of(other) and (
            is_same_arn or _credentials_of(own) == _credentials_of(other)
        )

    def _write(self, record: Record, letter: str) -> None:
        key = (record.partition_key or record.sequence_number)[:_KEY_CHARACTERS_MAX]
        if len(letter) + len(key.encode()) > RECORD_BYTES_MAX:
            raise UsageError(f"a record has at most {RECORD_BYTES_MAX} bytes; use DeadLetterBucket")
        name = "StreamARN" if self.stream.startswith("arn:") else "StreamName"
        arguments = {name: self.stream, "PartitionKey": key, "Data": letter.encode()}
        self._call("PutRecord", arguments)


class DeadLetterBucket(_Target):
    """Writes each failed record as a JSON object into a bucket of S3: `PREFIX/STREAM/SHARD/SEQUENCE-SUBSEQUENCE.json`.

    A record that fails again replaces its letter.

    Args:
        bucket: Its name. It must exist.
        prefix: Begins the names of the objects; may be empty.
        region: AWS region; None: as boto3 finds it.
        connection: Further connection options (docs/api.md). Another server of S3's protocol is named by
            `AWS_ENDPOINT_URL_S3`.

    Raises:
        OptionError: A connection option is unknown, or has a bad value.
    """

    _service = "s3"

    def __init__(
        self,
        bucket: str,
        prefix: str = "dead-letters",
        *,
        region: str | None = None,
        connection: Mapping[str, Any] | None = None,
    ) -> None:
        _check_named(bucket=bucket)
        super().__init__(region, None, connection)
        self.bucket = bucket
        self.prefix: str = prefix.strip("/")

    def __str__(self) -> str:
        return f"dead-letter bucket s3://{self.bucket}/{self.prefix}".rstrip("/")

    def _write(self, record: Record, letter: str) -> None:
        stream = quote(_name_of(record.stream), safe="")
        name = f"{stream}/{record.shard_id}/{record.sequence_number}-{record.sub_sequence_number}.json"
        key = f"{self.prefix}/{name}" if self.prefix else name
        arguments = {
            "Bucket": self.bucket,
            "Key": key,
            "Body": letter.encode(),
            "ContentType": "application/json",
        }
        self._call("PutObject", arguments)


class DeadLetterQueue(_Target):
    """Sends each failed record as a JSON object to a queue of SQS.

    In a FIFO queue the letters of a shard are one message group, and a repeated letter is dropped by its deduplication id.
    SQS takes messages of 1 MiB. A larger letter is an error: use `DeadLetterBucket`, which takes every size.

    Args:
        queue_url: The queue's URL. It must exist.
        region: AWS region; None: as boto3 finds it.
        endpoint_url: Endpoint of another SQS-compatible server; None: as boto3 finds it.
        connection: Further connection options (docs/api.md); `deadline_s` (60) bounds a call with its retries.

    Raises:
        OptionError: A connection option is unknown, or has a bad value.
        UsageError: `queue_url` is not a URL.
    """

    _service = "sqs"

    def __init__(
        self,
        queue_url: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        connection: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(region, endpoint_url, connection)
        _check_named(queue_url=queue_url)
        if "://" not in queue_url:
            raise UsageError(
                f"queue_url={queue_url!r}: expected https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
            )
        self.queue_url = queue_url

    def __str__(self) -> str:
        return f"dead-letter queue {self.queue_url}"

    def _write(self, record: Record, letter: str) -> None:
        if len(letter) > _MESSAGE_BYTES_MAX:
            raise UsageError(f"a message of SQS has at most {_MESSAGE_BYTES_MAX} bytes; use DeadLetterBucket")
        arguments = {"QueueUrl": self.queue_url, "MessageBody": letter}
        if self.queue_url.endswith(".fifo"):
            place = f"{record.stream}/{record.shard_id}/{record.sequence_number}/{record.sub_sequence_number}"
            arguments["MessageGroupId"] = record.shard_id
            arguments["MessageDeduplicationId"] = hashlib.sha256(place.encode()).hexdigest()
        self._call("SendMessage", arguments)
