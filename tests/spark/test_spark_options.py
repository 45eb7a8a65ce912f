"""The options of source, batch and sink as users set them."""

from __future__ import annotations

import pytest

from penstock.core.position import LATEST, TRIM_HORIZON, at_timestamp
from penstock.errors import OptionError
from penstock.spark.options.foreign_options import REFUSED, WITHOUT_EFFECT
from penstock.spark.options.several_streams import check_read
from penstock.spark.options.spark_options import OPTIONS, parse_batch, parse_sink, parse_source


def test_a_streaming_query_needs_only_a_stream():
    options, notes = parse_source({"streamName": "orders"})
    assert (options.stream, options.application, options.lease_table) == (
        "orders",
        "penstock-orders",
        "penstock-orders",
    )
    assert options.application_is_default
    assert options.starting.default == LATEST
    assert notes == ()


def test_an_application_names_its_lease_table():
    options, _ = parse_source({"streamName": "orders", "applicationName": "billing"})
    assert (options.lease_table, options.application_is_default) == ("billing", False)


def test_an_arn_names_stream_and_region():
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    options, _ = parse_source({"streamARN": arn})
    assert (options.stream, options.connection.region, options.application) == (
        arn,
        "eu-west-1",
        "penstock-orders",
    )


def test_the_option_set_of_the_awslabs_connector_works_unchanged():
    options, notes = parse_source(
        {
            "kinesis.streamName": "orders",
            "kinesis.region": "us-east-1",
            "kinesis.endpointUrl": "https://kinesis.us-east-1.amazonaws.com",
            "kinesis.startingPosition": "AT_TIMESTAMP 2026-01-31T12:00:00Z",
            "kinesis.consumerType": "GetRecords",
            "kinesis.maxFetchRecordsPerShard": "1000",
            "kinesis.maxFetchTimePerShardSec": "10",
            "kinesis.metadataCommitterType": "DYNAMODB",
            "kinesis.dynamodb.tableName": "meta",
            "kinesis.clientRetryIntervalsMs": "250",
            "kinesis.stsRoleArn": "arn:aws:iam::123456789012:role/r",
        }
    )
    assert options.starting.default == at_timestamp(1_769_860_800_000)
    assert (options.shard_record_count_max, options.batch_duration_max_s) == (1000, 10.0)
    assert (options.lease_table, options.connection.retry_base_s) == ("penstock-orders", 0.25)
    assert options.connection.role_arn == "arn:aws:iam::123456789012:role/r"
    assert [note.split(" has no effect")[0] for note in notes] == [
        "option kinesis.metadataCommitterType",
        "option kinesis.dynamodb.tableName",  # a table of another key
    ]
    assert (options.consumer_type, options.consumer_name) == ("polling", None)


def test_the_option_set_of_databricks_works_unchanged():
    options, notes = parse_source(
        {
            "streamName": "orders",
            "region": "us-west-2",
            "initialPosition": "trim_horizon",
            "maxRecordsPerFetch": "5000",
            "minFetchPeriod": "400ms",
            "shardFetchInterval": "60s",
            "awsAccessKey": "AKIA",
            "awsSecretKey": "secret",
            "roleArn": "arn:aws:iam::123456789012:role/r",
            "roleExternalId": "x",
            "maxFetchRate": "1.0",
        }
    )
    assert options.starting.default == TRIM_HORIZON
    assert (options.fetch_count_max, options.fetch_interval_s, options.probe_interval_s) == (5000, 0.4, 1.0)
    assert (options.connection.access_key_id, options.connection.secret_access_key) == ("AKIA", "secret")
    assert [note.split()[1] for note in sorted(notes)] == ["maxFetchRate", "shardFetchInterval"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("polling", None, "penstock-orders")),
        ({"consumerType": "FAN-OUT"}, ("fan-out", "penstock-orders", "penstock-orders")),
        ({"consumerMode": "efo", "consumerName": "efo"}, ("fan-out", "efo", "efo")),
        (
            {
                "kinesis.consumerType": "SubscribeToShard",
                "kinesis.consumerName": "c",
                "applicationName": "app",
            },
            ("fan-out", "c", "app"),
        ),
        ({"consumerType": "auto", "leaseTable": "leases"}, ("auto", "leases", "leases")),
        ({"consumerName": "c", "leaseTable": "leases"}, ("polling", None, "c")),
    ],
)
def test_consumer_and_application_name_each_other(given, expected):
    options, _ = parse_source({"streamName": "orders", **given})
    assert (options.consumer_type, options.consumer_name, options.application) == expected


def test_secrets_are_not_shown():
    options, _ = parse_source(
        {
            "streamName": "s",
            "awsAccessKeyId": "AKIAX",
            "awsSecretKey": "hunter2",
            "sessionToken": "tok",
            "endpointUrl": "https://user:hunter3@host",
            "stsEndpoint": "https://user:hunter3@host",
        }
    )
    shown = repr(options)
    assert not any(secret in shown for secret in ("AKIAX", "hunter2", "hunter3", "tok'"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option streamName is missing"),
        ({"streamName": "a,b"}, "one stream for each write"),
        ({"streamName": "a", "streamARN": "arn:aws:kinesis:r:1:stream/b"}, "name two streams"),
        ({"streamARN": "orders"}, "is not a stream's ARN"),
        ({"streamARN": "arn:aws:kinesis:r:1:stream/orders/consumer/c:1"}, "is not a stream's ARN"),
        ({"streamName": "my orders"}, "streamName=my orders is not a stream's name, which has"),
        ({"streamName": "a", "startingPosition": "SOON"}, "'SOON' is not a position"),
        (
            {"streamName": "a", "startingPosition": "LATEST", "startingTimestamp": "2026-01-01"},
            "exclude each other",
        ),
        ({"streamName": "a", "awsAccessKeyId": "x"}, "go together"),
        ({"streamName": "a", "sessionToken": "t"}, "Spark: sessionToken"),
        ({"streamName": "a", "roleExternalId": "x"}, "Spark: roleExternalId"),
        ({"streamName": "a", "consumerType": "push"}, "expected one of polling, fan-out, auto"),
        (
            {"streamName": "a", "consumerType": "fan-out", "consumerName": "b c", "applicationName": "app"},
            "option consumerName='b c': the name of a registered consumer has 1 to 128 letters",
        ),
        (
            {"streamName": "a", "applicationName": "b1"},
            "lease table 'b1': .* 3 to 255 .* choose another application",
        ),
        ({"streamName": "a", "leaseTable": "redis://host"}, "expected the name of a DynamoDB table"),
        ({"streamName": "a", "leaseTable": "s3://bucket"}, "expected s3://bucket/prefix"),
        ({"streamName": "a", "leaseTable": "file://folder"}, "must be absolute"),
        ({"streamName": "a", "maxRecordPerTrigger": "5"}, "Did you mean maxRecordsPerTrigger"),
        ({"streamName": "a", "aggregation": "true"}, "is for the sink"),
        ({"streamName": "a", "path": "x"}, "name the stream with option streamName"),
        ({"paths": '["a","b"]'}, "name the stream with option streamName, several with commas"),
    ],
)
def test_a_wrong_source_option_says_the_way_out(given, message):
    with pytest.raises(OptionError, match=message):
        parse_source(given)


def test_a_batch_read_may_be_of_no_time_at_all():
    moment = "2026-01-31T12:00:00Z"
    options, _ = parse_batch({"streamName": "s", "startingTimestamp": moment, "endingTimestamp": moment})
    assert options.starting == options.ending


def test_a_batch_read_covers_everything_up_to_now():
    options, _ = parse_batch({"streamName": "s"})
    assert (options.starting.default, options.ending.default) == (TRIM_HORIZON, LATEST)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"streamName": "s", "startingPosition": "LATEST"}, "holds nothing"),
        ({"streamName": "s", "endingPosition": "TRIM_HORIZON"}, "option endingPosition"),
        ({"streamName": "s", "applicationName": "a"}, "is for the source, not for the batch"),
        (
            {
                "streamName": "s",
                "startingTimestamp": "2026-02-01",
                "endingPosition": "AT_TIMESTAMP 2026-01-01",
                "timeZone": "UTC",
            },
            "2026-02-01 and endingPosition .* AT_TIMESTAMP 2026-01-01: the read would end before it begins",
        ),
    ],
)
def test_a_wrong_batch_option_says_the_way_out(given, message):
    with pytest.raises(OptionError, match=message):
        parse_batch(given)


def test_the_sink_may_take_the_stream_from_the_rows():
    options, _ = parse_sink({"checkpointLocation": "/somewhere"})
    assert (options.stream, options.ordering, options.aggregation) == (None, "key", False)


def test_no_key_means_two_things():
    keys = [key.lower() for option in OPTIONS for key, _ in option.spellings()]
    keys += [key.lower() for key in (*WITHOUT_EFFECT, *REFUSED)]
    assert len(keys) == len(set(keys))


NOON_IN_NEW_YORK = at_timestamp(1_769_878_800_000)  # 2026-01-31T17:00:00Z


@pytest.mark.parametrize(
    "zone",
    ["America/New_York", " America/New_York ", "-05:00", "-5", "-0500", "UTC-5", "GMT-05:00", "Etc/GMT+5"],
)
def test_a_moment_without_a_zone_is_of_the_option_time_zone(zone):
    noon = {"startingTimestamp": "2026-01-31 12:00:00", "endingPosition": "AT_TIMESTAMP 2026-01-31T12:00"}
    options, _ = parse_batch({"streamName": "s", "timezone": zone, **noon})
    assert (options.starting.default, options.ending.default) == (NOON_IN_NEW_YORK, NOON_IN_NEW_YORK)
    start = '{"shardId-000000000000": "AT_TIMESTAMP 2026-01-31T12:00:00", "*": "LATEST"}'
    source, _ = parse_source({"streamName": "s", "timeZone": zone, "startingPosition": start})
    assert source.starting.position_of("shardId-000000000000") == NOON_IN_NEW_YORK


def test_a_moment_with_a_zone_needs_no_option():
    given = {"streamName": "s", "startingTimestamp": "2026-01-31T12:00:00-05:00", "timeZone": "Asia/Tokyo"}
    assert parse_source(given)[0].starting.default == NOON_IN_NEW_YORK


@pytest.mark.parametrize("parse", [parse_source, parse_batch, check_read])
def test_a_moment_without_any_zone_is_refused_with_both_ways_out(parse):
    message = (
        r"option startingTimestamp: '2026-01-31T12:00:00' has no time zone: add Z or an offset.*, or set option timeZone, "
        r'for instance to spark\.conf\.get\("spark\.sql\.session\.timeZone"\)'
    )
    with pytest.raises(OptionError, match=message):
        parse({"streamName": "s", "startingTimestamp": "2026-01-31T12:00:00"})


@pytest.mark.parametrize(
    ("zone", "moment", "message"),
    [
        ("America/New_York", "2026-03-08T02:30:00", "does not exist in the time zone America/New_York"),
        ("America/New_York", "2026-11-01T01:30:00", "exists twice in the time zone America/New_York"),
        (
            "UTC",
            "1769860800",
            r"option startingTimestamp: '1769860800' .*seconds\? milliseconds are expected",
        ),
        ("Mars/Olympus", "2026-01-31", "option timeZone='Mars/Olympus': expected a time zone"),
        ("America", "2026-01-31", "option timeZone='America': expected a time zone"),
        ("+25:00", "2026-01-31", r"option timeZone='\+25:00': expected a time zone"),
        ("../etc/passwd", "2026-01-31", "expected a time zone"),
    ],
)
def test_a_moment_or_zone_that_means_nothing_is_refused(zone, moment, message):
    with pytest.raises(OptionError, match=message):
        parse_source({"streamName": "s", "startingTimestamp": moment, "timeZone": zone})


def test_a_caller_with_a_session_gives_its_zone():
    noon = {"streamName": "s", "startingTimestamp": "2026-01-31T12:00:00"}
    assert parse_source(noon, "America/New_York")[0].starting.default == NOON_IN_NEW_YORK
    given = {**noon, "timeZone": "America/New_York"}
    assert parse_source(given, "Asia/Tokyo")[0].starting.default == NOON_IN_NEW_YORK
    parse_source({"streamName": "s"}, "a name that only Java has")
    with pytest.raises(OptionError, match="set option timeZone"):
        parse_source(noon, "a name that only Java has")
