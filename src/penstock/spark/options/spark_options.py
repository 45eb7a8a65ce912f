"""Every option of the Spark source, batch reader and sink: one table, parsed once, which also makes the documentation.

Names follow Spark's Kafka source where it has the same idea, and Kinesis's words elsewhere; the names of the awslabs,
qubole and Databricks connectors are aliases. This module does not import pyspark: the command line prints the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import tzinfo
from typing import Any, Final

from msgspec import Struct

from penstock.aws.aws_options import AwsOptions
from penstock.core.lease_table_name import check_lease_table_name
from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.core.moments import NoTimeZoneError
from penstock.core.option_table import (
    FLAG,
    SIZE,
    TEXT,
    Option,
    alternatives,
    duration,
    one_of,
    parse_options,
    whole_number,
)
from penstock.core.position import LATEST, SHARD_END, TRIM_HORIZON
from penstock.core.starting import StartingPosition, parse_starting
from penstock.core.stream_consumer import check_consumer_name
from penstock.core.stream_identity import is_name_or_arn, region_of_arns
from penstock.core.time_zones import TIME_ZONE, session_time_zone
from penstock.errors import OptionError, PositionError
from penstock.spark.options.foreign_options import FORMER_LEASE_TABLE, REFUSED, WITHOUT_EFFECT
from penstock.spark.options.table_properties import NO_OPTIONS, UNTIL_MS, user_options

_ALL: Final = frozenset({"source", "batch", "sink"})
_READ: Final = frozenset({"source", "batch"})
_SOURCE: Final = frozenset({"source"})
_BATCH: Final = frozenset({"batch"})
_SINK: Final = frozenset({"sink"})
_COUNT: Final = whole_number(1, 2**53)
_CONSUMER_ARN: Final = re.compile(
    r"arn:[^:]+:kinesis:[^:]*:[^:]*:stream/(?P<stream>[^/]+)/consumer/(?P<name>[^:/]+)(:\d+)?"
)
_ATTEMPTS_MAX: Final = 1001  # the deadline is the bound; this one is for pauses of nearly no time

OPTIONS: Final[tuple[Option, ...]] = (
    Option("streamName", TEXT, None, "Name of the stream. A read takes several, with commas: `orders,returns`. `streamName` or `streamARN` is required, except for the sink: without them the column `streamName` routes each row; with one of them the column has no effect.", _ALL, ("stream", "kinesis.streamName")),
    Option("streamARN", TEXT, None, "ARN of the stream; needed for a stream of another account. A read takes several, with commas.", _ALL, ("kinesis.streamARN",)),
    Option("applicationName", TEXT, None, "Name of the application: queries and KCL workers of one application share the stream's shards. Default: `penstock-<stream>`, which the query refuses to share.", _SOURCE, ("kinesis.applicationName", "kinesisAppName", "checkpointAppName")),
    Option("leaseTable", TEXT, None, "Where the leases are: a DynamoDB table, `s3://bucket/prefix`, or `file:///folder` (all processes on one machine). Java workers share DynamoDB tables only. Default: the DynamoDB table `applicationName`.", _SOURCE, ("leaseTableName",)),
    Option("leaseDuration", duration(1, 3600), None, "Other workers may take a lease that its owner has not renewed for this long (KCL: failoverTimeMillis). All workers of an application must use the same value. Default: 10s; 60s for leases in S3, since each renewal is a PUT.", _SOURCE, ("leaseDurationMs=ms", "failoverTimeMillis=ms")),
    Option("workerId", TEXT, None, "The query's name in the lease table. It must be unique among the living workers of the application. Default: a random name, kept in the checkpoint.", _SOURCE, field="worker_id"),
    Option("balance", one_of(*(policy.value for policy in BalancePolicy)), "even", "How the workers of an application share its shards. `even`: the same number for each. `by_throughput`: the same kilobytes per second for each. `by_zone`: the same number for each zone, then for each worker in it. `kcl2`: the rule of the Java KCL 2.x taker. All workers must use the same value.", _SOURCE, field="balance"),
    Option("zone", TEXT, None, "Zone or cluster in which this query runs; for `balance` by_zone.", _SOURCE),
    Option("capacity", whole_number(1, 999_999), 1, "Capacity of this query relative to the application's other workers, for instance its number of cores. With `balance` by_throughput it gets shards in proportion. The worker id contains it.", _SOURCE, field="capacity"),
    Option("maxLeases", _COUNT, None, "Maximum number of unfinished leases that this query holds (KCL: maxLeasesForWorker).", _SOURCE, ("maxLeasesForWorker",), field="leases_max"),
    Option("leasesToAcquire", _COUNT, None, "Maximum number of leases that the query takes or asks for per round. Default: its whole share at once.", _SOURCE, ("maxLeasesToStealAtOneTime",), field="leases_to_acquire"),
    Option("metrics", one_of("none", "log", "cloudwatch"), "none", "Where the driver's metrics go: its log, or CloudWatch under the application's name. docs/metrics.md lists them.", _SOURCE, field="metrics"),
    Option("metricsInterval", duration(1, 86_400), 60.0, "Time between two reports of the metrics.", _SOURCE, field="metrics_interval_s"),
    Option("shardsPerTask", _COUNT, None, "Average number of shards per Spark task, which reads up to 32 at the same time. Quiet shards share a task; busy ones have one each. Default: as many tasks as the cluster has run at once in earlier batches.", _SOURCE, field="shards_per_task"),
    Option("maxPartitions", _COUNT, None, "Maximum number of tasks in a batch.", _SOURCE, field="partitions_max"),
    Option("consumerType", alternatives({"polling": ("GetRecords",), "fan-out": ("efo", "SubscribeToShard"), "auto": ()}), "polling", "How shards are read. `polling`: GetRecords, whose five reads and 2 MiB a second per shard are shared by all pollers. `fan-out`: also subscriptions of a registered consumer, with a quota of 2 MiB a second and shard, which AWS bills; see fan-out.md. `auto`: fan-out only for shards that are more than 10 s behind since their last batch, or whose reads other readers use up.", _SOURCE, ("consumerMode", "kinesis.consumerType"), field="consumer_type"),
    Option("consumerName", TEXT, None, "Name of the registered consumer, for `consumerType` fan-out and auto; one for each query. Default: `applicationName`. If only `consumerName` is given, it also names the application.", _SOURCE, ("kinesis.consumerName",)),
    Option("consumerNamePrefix", TEXT, None, "Prefix of the registered consumer's name, before `consumerName`.", _SOURCE),
    Option("registeredConsumerId", TEXT, None, "Name or ARN of a registered consumer, instead of `consumerName` and `consumerNamePrefix`.", _SOURCE),
    Option("deregisterConsumer", FLAG, False, "Deregister the consumer when the query stops, which ends its cost; the next start registers it again. A killed driver leaves it registered.", _SOURCE, ("requireConsumerDeregistration",), field="deregisters_consumer"),
    Option("startingPosition", TEXT, None, "Where shards without a checkpoint start: LATEST (streaming default), TRIM_HORIZON (batch default), AT_TIMESTAMP <ISO 8601>, or JSON by shard, in which a sequence number is the last record that is done (in streaming the shard's ancestors are done too) and `*` is the rest. With several streams: one for all, or JSON by stream.", _READ, ("initialPosition", "initialPositionInStream", "kinesis.startingPosition", "startingOffsets")),
    Option("startingTimestamp", TEXT, None, "Shorthand for `startingPosition` AT_TIMESTAMP: ISO 8601, or milliseconds since the epoch.", _READ),
    Option("endingPosition", TEXT, None, "Where a batch read ends: LATEST (default: the moment of planning), AT_TIMESTAMP <ISO 8601>, or JSON by shard (inclusive).", _BATCH, ("endingOffsets",)),
    Option("endingTimestamp", TEXT, None, "Shorthand for `endingPosition` AT_TIMESTAMP; records that arrived at or after it are left out.", _BATCH),
    Option("timeZone", TIME_ZONE, None, "Time zone of timestamps without one, as for Spark's own sources: `America/New_York`, `+01:00`. Spark does not pass `spark.sql.session.timeZone` to Python sources, so without this option such a timestamp is an error; see operations.md.", _READ),
    Option("failOnDataLoss", FLAG, True, "Fail when unread records, or a shard that was not read to its end, have left the stream (retention). With false the query warns and goes on, with the shard's children.", _READ, ("kinesis.failOnDataLoss",), field="fail_on_data_loss"),
    Option("maxRecordsPerTrigger", _COUNT, None, "Maximum number of user records in one batch, over all shards.", _SOURCE, ("maxOffsetsPerTrigger",), field="record_count_max"),
    Option("maxBytesPerTrigger", SIZE, None, "Maximum bytes of data in one batch, over all shards. A record that would exceed it waits for a later batch; only a record that is larger than a shard's share exceeds it.", _SOURCE, field="bytes_max"),
    Option("maxRecordsPerShard", _COUNT, None, "Maximum number of user records of one shard in one batch.", _SOURCE, ("kinesis.maxFetchRecordsPerShard", "maxFetchRecordsPerShard", "kinesis.executor.maxFetchRecordsPerShard"), field="shard_record_count_max"),
    Option("maxBatchDuration", duration(0.1, 86400), None, "A task stops reading after this time and ends the batch there.", _SOURCE, ("kinesis.maxFetchTimePerShardSec", "kinesis.executor.maxFetchTimeInMs=ms", "maxFetchTimeInMs=ms"), field="batch_duration_max_s"),
    Option("recordsPerFetch", whole_number(1, 10_000), 10_000, "Maximum number of records in one GetRecords call.", _READ, ("kinesis.getRecords.numberOfRecordsPerFetch", "maxRecordsPerFetch", "kinesis.executor.maxRecordPerRead", "maxRecordPerRead"), field="fetch_count_max"),
    Option("fetchInterval", duration(0, 60), 0.2, "Time between two GetRecords calls of one shard (the service allows five a second). 0 also lifts the limit of 2 MiB per second and shard, for servers without quotas.", _READ, ("kinesis.getRecords.fetchIntervalMs=ms", "minFetchPeriod"), field="fetch_interval_s"),
    Option("probeInterval", duration(0.2, 60), 1.0, "Time between two probes of an idle shard. A shard that was just read is probed four times as often.", _SOURCE, field="probe_interval_s"),
    Option("deaggregate", FLAG, True, "Take KPL aggregates apart. With false each row is an unchanged Kinesis record.", _READ, field="deaggregate"),
    Option("dropMisplacedAggregates", FLAG, False, "Drop every KPL aggregate that holds a record outside the hash range of its shard, as the KCL does. With false only aggregates of Penstock's own producer are dropped, because it sends them again. Those of other producers are delivered, so a reshard may repeat records but loses none.", _READ, field="drops_misplaced_aggregates"),
    Option("region", TEXT, None, "AWS region. Default: boto3's rules.", _ALL, ("regionName", "kinesis.region", "awsRegion", "kinesis.kinesisRegion")),
    Option("endpointUrl", TEXT, None, "Endpoint of every service; an address of AWS's own Kinesis is for Kinesis alone, and names the region if none is given. Default: `AWS_ENDPOINT_URL` and its forms for single services.", _ALL, ("endpoint", "kinesis.endpointUrl", "serviceEndpoint"), field="endpoint_url"),
    Option("profile", TEXT, None, "Profile of the shared configuration.", _ALL, ("awsProfile",), field="profile"),
    Option("awsAccessKeyId", TEXT, None, "Access key. Default: boto3's credential chain.", _ALL, ("awsAccessKey", "kinesis.awsAccessKeyId"), secret=True, field="access_key_id"),
    Option("awsSecretKey", TEXT, None, "Secret key.", _ALL, ("awsSecretAccessKey", "kinesis.awsSecretKey"), secret=True, field="secret_access_key"),
    Option("sessionToken", TEXT, None, "Session token of temporary credentials.", _ALL, ("awsSessionToken", "kinesis.sessionToken"), secret=True, field="session_token"),
    Option("roleArn", TEXT, None, "Role to assume.", _ALL, ("awsSTSRoleARN", "kinesis.stsRoleArn", "stsRoleArn"), field="role_arn"),
    Option("roleSessionName", TEXT, "penstock", "Session name of the assumed role.", _ALL, ("awsSTSSessionName", "kinesis.stsSessionName", "stsSessionName"), field="role_session_name"),
    Option("roleExternalId", TEXT, None, "External id of the assumed role.", _ALL, field="external_id"),
    Option("stsEndpoint", TEXT, None, "Endpoint of STS.", _ALL, ("stsEndpointUrl", "kinesis.stsEndpointUrl"), field="sts_endpoint_url"),
    Option("maxRetries", whole_number(0, 1000), None, "Maximum number of attempts after the first one of a refused or failed call. Default: only `retryDeadline` is the bound.", _ALL, ("kinesis.clientNumRetries", "kinesis.client.numRetries", "numRetries")),
    Option("retryInterval", duration(0.001, 60), 0.1, "Upper bound of the first pause before a retry. The bound doubles with every retry, and each pause is drawn at random below it.", _ALL, ("retryIntervalMs=ms", "kinesis.clientRetryIntervalsMs=ms", "kinesis.client.retryIntervalMs=ms"), field="retry_base_s"),
    Option("maxRetryInterval", duration(0.001, 600), 5.0, "Upper bound of all pauses before a retry.", _ALL, ("maxRetryIntervalMs=ms", "kinesis.clientMaxRetryIntervalMs=ms", "kinesis.client.maxRetryIntervalMs=ms"), field="retry_cap_s"),
    Option("retryDeadline", duration(1, 86400), 60.0, "Maximum time for one call with all its retries.", _ALL, field="deadline_s"),
    Option("requestTimeout", duration(0.1, 600), 30.0, "Maximum time to wait for one answer.", _ALL, field="read_timeout_s"),
    Option("aggregation", FLAG, False, "Pack records into KPL aggregates, per shard.", _SINK, ("kinesis.sink.aggregationEnabled", "aggregationEnabled", "kinesis.executor.aggregationEnabled"), field="aggregation"),
    Option("ordering", one_of("key", "none"), "key", "`key` keeps the order of each partition key within a task, also under throttling; `none` is faster.", _SINK, field="ordering"),
    Option("rateLimit", whole_number(1, 1000), None, "Percent of a shard's write capacity that each task may use. Default: no limit until the service refuses.", _SINK, field="rate_limit_percent"),
    Option("maxRecordsPerBatch", whole_number(1, 500), 500, "Maximum number of Kinesis records in one PutRecords call.", _SINK, field="request_record_count_max"),
    Option("bufferBytes", SIZE, 32 * 2**20, "Memory of one task for unacknowledged records, over all streams that it writes to. A record counts as its bytes and about 300 more.", _SINK, field="buffer_bytes_max"),
    Option("onError", one_of("fail", "deadLetter"), "fail", "Handling of rows that the service can never accept (too large, null, a key that is invalid or not UTF-8): `fail` fails the task, `deadLetter` writes the row to `deadLetterPath` or `deadLetterStream`. Errors of the service always fail the task.", _SINK),
    Option("deadLetterPath", TEXT, None, "Folder for dead letters: local, or a URI that pyarrow opens, such as s3://bucket/folder. Each task with dead letters writes a file of JSON lines, named by query, batch, write and partition. Only their owner can read local files and folders.", _SINK, field="dead_letter_path"),
    Option("deadLetterStream", TEXT, None, "Stream for dead letters, as JSON.", _SINK, field="dead_letter_stream"),
    Option("writeDeadline", duration(1, 86400), 600.0, "Time without any acknowledgement after which a task fails.", _SINK, field="write_deadline_s"),
)  # fmt: skip


class SourceOptions(Struct, frozen=True):
    """The streaming source's options, checked.

    Args:
        other_table: The table of an option that named the lease table until 0.2, and has no effect now.
        until_ms: The end of the run, as AvailableNow has it, for a Spark that does not pass that trigger; None without an end.
    """

    stream: str
    connection: AwsOptions
    application: str
    application_is_default: bool
    lease_table: str
    lease_duration_s: float
    worker_id: str | None
    balance: str
    zone: str | None
    capacity: int
    leases_max: int | None
    leases_to_acquire: int | None
    metrics: str
    metrics_interval_s: float
    consumer_type: str
    consumer_name: str | None
    deregisters_consumer: bool
    shards_per_task: int | None
    partitions_max: int | None
    starting: StartingPosition
    starting_is_given: bool
    fail_on_data_loss: bool
    record_count_max: int | None
    bytes_max: int | None
    shard_record_count_max: int | None
    batch_duration_max_s: float | None
    fetch_count_max: int
    fetch_interval_s: float
    probe_interval_s: float
    deaggregate: bool
    drops_misplaced_aggregates: bool
    other_table: str | None = None
    until_ms: int | None = None

    @property
    def batch_limits(self) -> list[str]:
        """Names of the given options that may end a batch before the tip."""
        limits = {
            "maxRecordsPerTrigger": self.record_count_max,
            "maxBytesPerTrigger": self.bytes_max,
            "maxRecordsPerShard": self.shard_record_count_max,
            "maxBatchDuration": self.batch_duration_max_s,
        }
        return [name for name, limit in limits.items() if limit is not None]


class BatchOptions(Struct, frozen=True):
    """The batch reader's options, checked."""

    stream: str
    connection: AwsOptions
    starting: StartingPosition
    ending: StartingPosition
    fail_on_data_loss: bool
    fetch_count_max: int
    fetch_interval_s: float
    deaggregate: bool
    drops_misplaced_aggregates: bool


class SinkOptions(Struct, frozen=True):
    """The sink's options, checked."""

    stream: str | None
    connection: AwsOptions
    aggregation: bool
    ordering: str
    rate_limit_percent: int | None
    request_record_count_max: int
    buffer_bytes_max: int
    write_deadline_s: float
    dead_letter_path: str | None
    dead_letter_stream: str | None
    checkpoint_location: str | None

    @property
    def keeps_dead_letters(self) -> bool:
        """Whether rows that can never be accepted are put aside."""
        return self.dead_letter_path is not None or self.dead_letter_stream is not None


def parse_source(
    given: Mapping[str, str], session_zone: str | None = None
) -> tuple[SourceOptions, tuple[str, ...]]:
    """Read the streaming source's options; also return a sentence for each option without effect.

    Args:
        session_zone: The session's time zone, if the caller has the session.

    Raises:
        OptionError: Anything unknown, missing or out of range.
    """
    values, notes = _parse(given, "source")
    if not given:
        raise OptionError(NO_OPTIONS)
    if session_zone is not None and values["timeZone"] is None:
        values["timeZone"] = session_time_zone(session_zone)
    stream = _given_stream(values)
    short = stream.rpartition("/")[2]
    lease_table = values["leaseTable"]
    lease_duration_s = 60.0 if (lease_table or "").startswith("s3://") else 10.0
    named = None if lease_table is None else lease_table.rstrip("/").rpartition("/")[2]
    others = {name.lower() for name in FORMER_LEASE_TABLE}
    consumer = _given_consumer(values, short)
    given_name = values["applicationName"] or consumer
    application = given_name or named or f"penstock-{short}"
    if lease_table or given_name:  # a default has a valid name if the stream has
        check_lease_table_name(lease_table or application)
    return (
        SourceOptions(
            stream=stream,
            connection=_given_connection(values),
            application=application,
            application_is_default=given_name is None and lease_table is None,
            lease_table=lease_table or application,
            lease_duration_s=values["leaseDuration"] or lease_duration_s,
            zone=_given_zone(values),
            consumer_name=_consumer_name(values, consumer or application),
            starting=_given_start(values, "starting", StartingPosition(LATEST)),
            starting_is_given=values["startingPosition"] is not None
            or values["startingTimestamp"] is not None,
            other_table=next((text for name, text in given.items() if name.lower() in others), None),
            until_ms=next((int(text) for name, text in given.items() if name.lower() == UNTIL_MS), None),
            **_fields_of(SourceOptions, values),
        ),
        notes,
    )


def parse_batch(given: Mapping[str, str]) -> tuple[BatchOptions, tuple[str, ...]]:
    """Read the batch reader's options.

    Raises:
        OptionError: Anything unknown, missing or out of range.
    """
    values, notes = _parse(given, "batch")
    if not given:
        raise OptionError(NO_OPTIONS)
    starting = _given_start(values, "starting", StartingPosition(TRIM_HORIZON))
    ending = _given_start(values, "ending", StartingPosition(LATEST))
    if starting.default == LATEST and not starting.by_shard:
        raise OptionError(
            "option startingPosition=LATEST: a batch read from the tip holds nothing; use TRIM_HORIZON or a timestamp"
        )
    if ending.default in (TRIM_HORIZON, SHARD_END) and not ending.by_shard:
        raise OptionError("option endingPosition: use LATEST, AT_TIMESTAMP <moment> or JSON shard by shard")
    from_ms, until_ms = starting.default.timestamp_ms, ending.default.timestamp_ms
    if from_ms is not None and until_ms is not None and from_ms > until_ms:
        written = [
            values[f"{which}Position"] or values[f"{which}Timestamp"] for which in ("starting", "ending")
        ]
        raise OptionError(
            f"options startingPosition (startingTimestamp) {written[0]} and endingPosition (endingTimestamp) {written[1]}: the read "
            "would end before it begins; exchange them"
        )
    return (
        BatchOptions(
            stream=_given_stream(values),
            connection=_given_connection(values),
            starting=starting,
            ending=ending,
            **_fields_of(BatchOptions, values),
        ),
        notes,
    )


def is_batch_read(given: Mapping[str, str]) -> bool:
    """Return whether the options have one that only a batch read accepts."""
    for_batch = {
        key.lower() for option in OPTIONS if option.scopes == _BATCH for key, _ in option.spellings()
    }
    return any(key.lower() in for_batch for key in user_options(given))


def parse_sink(given: Mapping[str, str]) -> tuple[SinkOptions, tuple[str, ...]]:
    """Read the sink's options.

    Raises:
        OptionError: Anything unknown or out of range.
    """
    values, notes = _parse(given, "sink")
    stream = _given_stream(values, required=False)
    _check_dead_letters(values, stream)
    location = next((text for key, text in given.items() if key.lower() == "checkpointlocation"), None)
    return (
        SinkOptions(
            stream=stream,
            connection=_given_connection(values),
            checkpoint_location=location,
            **_fields_of(SinkOptions, values),
        ),
        notes,
    )


def _check_dead_letters(values: Mapping[str, Any], stream: str | None) -> None:
    path, target = values["deadLetterPath"], values["deadLetterStream"]
    if values["onError"] == "fail":
        if path is not None or target is not None:
            name = "deadLetterPath" if path is not None else "deadLetterStream"
            raise OptionError(
                f"option {name} has no effect with onError=fail; set onError=deadLetter, or remove it"
            )
        return
    if (path is None) == (target is None):
        raise OptionError(
            "option onError=deadLetter needs one target: set either deadLetterPath or deadLetterStream"
        )
    if target is not None and target in (stream, "" if stream is None else stream.rpartition("/")[2]):
        raise OptionError(
            f"option deadLetterStream={target} is the stream that is written to; name another one"
        )


def _parse(given: Mapping[str, str], scope: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    return parse_options(
        user_options(given), OPTIONS, scope=scope, without_effect=WITHOUT_EFFECT, refused=REFUSED
    )


def _fields_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that are fields of a class, by field."""
    return {option.field: values[option.name] for option in OPTIONS if option.field in kind.__annotations__}


def _given_stream(values: Mapping[str, Any], *, required: bool = True) -> Any:
    name, arn = values["streamName"], values["streamARN"]
    if name is not None and arn is not None and arn.rpartition("/")[2] != name:
        raise OptionError(f"options streamName={name} and streamARN={arn} name two streams; keep one")
    stream = arn or name
    if stream is None and required:
        raise OptionError("option streamName is missing: name the stream with option streamName or streamARN")
    if stream is not None and "," in stream:
        raise OptionError(
            f'option streamName={stream}: one stream for each write and each micro_batches(...); only format("kinesis") reads several'
        )
    if arn is not None and not (arn.startswith("arn:") and is_name_or_arn(arn)):
        raise OptionError(
            f"option streamARN={arn} is not a stream's ARN (arn:aws:kinesis:<region>:<account>:stream/<name>)"
        )
    if stream is not None and not is_name_or_arn(stream):
        raise OptionError(
            f"option streamName={stream} is not a stream's name, which has 1 to 128 letters, digits, '_', '.' and '-', and no ARN"
        )
    return stream


def _given_consumer(values: Mapping[str, Any], stream: str) -> str | None:
    """Return the name that is given for the registered consumer, without its prefix."""
    registered: str | None = values["registeredConsumerId"]
    name: str | None = values["consumerName"]
    if registered is None:
        return name
    if name is not None:
        raise OptionError(
            f"options consumerName={name} and registeredConsumerId={registered} both name the consumer; keep one"
        )
    if not registered.startswith("arn:"):
        return registered
    match = _CONSUMER_ARN.fullmatch(registered)
    if match is None or match["stream"] != stream:
        raise OptionError(
            f"option registeredConsumerId={registered} is not the ARN of a consumer of stream {stream} "
            "(arn:aws:kinesis:<region>:<account>:stream/<stream>/consumer/<name>:<number>)"
        )
    return match["name"]


def _consumer_name(values: Mapping[str, Any], name: str) -> str | None:
    if values["consumerType"] == "polling":
        return None
    if values["registeredConsumerId"] is None:
        name = f"{values['consumerNamePrefix'] or ''}{name}"
    check_consumer_name(name, "option consumerName")
    return name


def _given_zone(values: Mapping[str, Any]) -> str | None:
    zone: str | None = values["zone"]
    if zone is not None and "/" in zone:
        raise OptionError(
            f"option zone={zone}: a zone's name holds no slash; it stands before one in the worker's id"
        )
    if values["balance"] == "by_zone" and zone is None and "/" not in (values["workerId"] or ""):
        raise OptionError("option balance=by_zone: say with option zone in which zone this query runs")
    return zone


def _given_start(values: Mapping[str, Any], which: str, default: StartingPosition) -> StartingPosition:
    position, moment = values[f"{which}Position"], values[f"{which}Timestamp"]
    if position is not None and moment is not None:
        raise OptionError(f"options {which}Position and {which}Timestamp exclude each other; keep one")
    zone: tzinfo | None = values["timeZone"]
    try:
        if moment is not None:
            return parse_starting(f"AT_TIMESTAMP {moment}", f"{which}Timestamp", zone)
        return default if position is None else parse_starting(position, f"{which}Position", zone)
    except NoTimeZoneError as error:
        raise OptionError(
            f'{error}, or set option timeZone, for instance to spark.conf.get("spark.sql.session.timeZone"), which Spark '
            "does not pass to sources in Python"
        ) from None
    except PositionError as error:
        raise OptionError(str(error)) from None


def _given_connection(values: Mapping[str, Any]) -> AwsOptions:
    if (values["awsAccessKeyId"] is None) != (values["awsSecretKey"] is None):
        raise OptionError("options awsAccessKeyId and awsSecretKey go together; set both or neither")
    return AwsOptions(
        region=values["region"] or region_of_arns(values["streamARN"], values["streamName"]),
        attempts_max=_ATTEMPTS_MAX if values["maxRetries"] is None else values["maxRetries"] + 1,
        **_fields_of(AwsOptions, values),
    )
