"""A task of the sink: where its rows go, and what becomes of those that the service can never accept."""

import base64
import json
import traceback

import pyarrow as pa
import pytest

from penstock.errors import RecordError
from penstock.spark.options.spark_options import parse_sink
from penstock.spark.sink.ports import SinkPorts
from penstock.spark.sink.task import SinkTask
from penstock.spark.sink.writers import KinesisBatchWriter, KinesisStreamWriter
from penstock.wiring import open_kinesis
from stream_reading import kcl_reads

COLUMNS = ("data", "partitionKey", "explicitHashKey", "streamName")
GZIP = b"\x1f\x8b\x08\xff gzip"
HALF_SURROGATE = b"\xed\xa0\x80"


def texts(values):
    """Return a column of texts as Spark's are: any bytes."""
    return pa.array(values, pa.binary()).view(pa.string())


def rows(**columns):
    """Return a batch of rows; a column that is not given is the same in each."""
    count = max(map(len, columns.values()))
    given = {
        "data": [b"x"] * count,
        "partitionKey": [b"k"] * count,
        "explicitHashKey": [None] * count,
        "streamName": [None] * count,
    } | columns
    arrays = {name: texts(values) if name in COLUMNS else values for name, values in given.items()}
    return pa.RecordBatch.from_pydict(arrays)


class Files:
    """A folder in memory."""

    def __init__(self):
        self.letters = []

    def replace(self, name, content):
        content.seek(0)
        self.letters = [json.loads(line) for line in content.read().splitlines()]


@pytest.fixture
def files():
    return Files()


@pytest.fixture
def write(kinesis, files):
    """Write batches in one task, with the options that are given."""

    def write(batches, **options):
        parsed, _ = parse_sink(
            {
                "endpointUrl": kinesis.endpoint_url,
                "region": "us-east-1",
                "awsAccessKeyId": "local",
                "awsSecretKey": "local",
            }
            | options
        )
        ports = SinkPorts(open_kinesis, lambda _location: files, lambda: "letters.jsonl")
        return SinkTask(parsed, COLUMNS, ports).write(iter(batches))

    return write


PUT_ASIDE = {"onError": "deadLetter", "deadLetterPath": "folder"}


@pytest.mark.parametrize("writer", [KinesisBatchWriter, KinesisStreamWriter])
def test_an_error_reaches_spark_without_the_frames_of_the_sink(writer):
    parsed, _ = parse_sink({"region": "us-east-1"})
    with pytest.raises(RecordError, match="the column streamName is null") as caught:
        writer(parsed, COLUMNS).write(iter([rows(streamName=[None])]))
    assert [frame.name for frame in traceback.extract_tb(caught.tb)][1:] == ["raise_plain_errors"]


# --- where rows go ----------------------------------------------------------------------------------------------------


def test_the_option_decides_and_rows_that_name_another_stream_are_counted(write, stream, client):
    named = [b"orders", stream.encode(), None, GZIP, f"arn:aws:kinesis:r:1:stream/{stream}".encode(), b""]
    report = write([rows(streamName=named)], streamName=stream)
    assert len(kcl_reads(client, stream)) == len(named)
    assert list(report.reports) == [stream]
    assert (report.overruled_count, report.overruled_stream) == (3, "'orders'")


def test_an_arn_and_a_name_may_mean_one_stream_and_two_arns_may_not(write, stream, client):
    arn = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
    other = arn.replace("us-east-1", "eu-west-1")
    report = write([rows(streamName=[stream.encode(), arn.encode(), other.encode()])], streamARN=arn)
    assert (report.overruled_count, report.overruled_stream) == (1, repr(other))


def test_without_the_option_the_column_decides(write, kinesis, stream, client):
    other = f"other-{stream}"
    kinesis.create_stream(other, shards=1)
    named = [stream, other, stream]
    report = write([rows(streamName=[name.encode() for name in named], data=[b"1", b"2", b"3"])])
    assert sorted(data for _, data in kcl_reads(client, stream)) == [b"1", b"3"]
    assert [data for _, data in kcl_reads(client, other)] == [b"2"]
    assert report.overruled_count == 0


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (None, "the column streamName is null"),
        (b"", "the column streamName does not name a stream ('')"),
        (b"my orders", "the column streamName does not name a stream ('my orders')"),
        (b"x" * 129, "the column streamName does not name a stream ('xxx"),
        (GZIP, r"the column streamName does not name a stream (b'\x1f\x8b\x08\xff gzip')"),
    ],
)
def test_a_row_that_names_no_stream_fails_its_task_or_is_put_aside(write, files, named, message):
    with pytest.raises(RecordError) as caught:
        write([rows(streamName=[named])])
    assert str(caught.value).startswith(f"row 0 of the task: {message}")
    assert "onError=deadLetter" in str(caught.value)
    report = write([rows(streamName=[named])], **PUT_ASIDE)
    assert (report.reports, report.dead_letter_count) == ({}, 1)
    [letter] = files.letters
    assert (letter["stream"], letter["row"]) == (None, 0)
    assert message in letter["reason"]


# --- texts that are not UTF-8 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [GZIP, HALF_SURROGATE, b"", "größer".encode(), bytes(range(256))])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_the_bytes_of_a_text_are_the_data_of_a_record(write, stream, client, data, kind):
    wide = pa.large_binary() if kind in (pa.large_string(), pa.large_binary()) else pa.binary()
    column = pa.array([data, b"2"], wide).view(kind)
    batch = rows(partitionKey=[b"k", b"l"]).set_column(0, "data", column)
    write([batch], streamName=stream)
    assert sorted(kcl_reads(client, stream)) == [("k", data), ("l", b"2")]


@pytest.mark.parametrize("text", [GZIP, HALF_SURROGATE])
@pytest.mark.parametrize("column", ["partitionKey", "explicitHashKey"])
def test_a_key_that_is_not_utf_8_fails_its_task_and_is_named(write, stream, column, text):
    batches = [rows(data=[b"1", b"2"]), rows(**{column: [b"5", text, b"7"]})]
    with pytest.raises(RecordError) as caught:
        write(batches, streamName=stream)
    assert (
        f"stream {stream}, row 3 of the task: the column {column} is not UTF-8 text ({text!r}); encode it"
        in str(caught.value)
    )


@pytest.mark.parametrize("target", ["path", "stream"])
def test_rows_with_keys_that_are_not_utf_8_are_put_aside_whole(write, files, kinesis, stream, client, target):
    letters = f"letters-{stream}"
    kinesis.create_stream(letters, shards=1)
    places = {"path": PUT_ASIDE, "stream": {"onError": "deadLetter", "deadLetterStream": letters}}
    bad = [
        {"partitionKey": GZIP},
        {"explicitHashKey": HALF_SURROGATE},
        {"partitionKey": HALF_SURROGATE, "explicitHashKey": GZIP},
        {"partitionKey": b"\xff" * 300},
    ]
    batches = [rows(data=[b"good"])] + [
        rows(data=[GZIP], **{name: [text] for name, text in each.items()}) for each in bad
    ]
    report = write([*batches, rows(data=[b"good too"])], streamName=stream, **places[target])
    assert report.dead_letter_count == len(bad)
    assert sorted(data for _, data in kcl_reads(client, stream)) == [b"good", b"good too"]
    found = files.letters or [json.loads(data) for _, data in kcl_reads(client, letters)]
    assert [letter["row"] for letter in found] == [1, 2, 3, 4]
    assert {letter["stream"] for letter in found} == {stream}
    for letter, row in zip(found, bad, strict=True):
        assert base64.b64decode(letter["data"]) == GZIP
        for name in ("partitionKey", "explicitHashKey"):
            assert (f"{name}Bytes" in letter) == (name in row)
            if name in row:
                assert base64.b64decode(letter[f"{name}Bytes"]) == row[name]
                assert letter[name] == row[name].decode(errors="backslashreplace")


def test_nothing_is_lost_of_a_batch_with_one_key_that_is_not_text(write, files, stream, client):
    keys = [b"k%d" % number for number in range(2000)]
    keys[1234] = GZIP
    batch = rows(partitionKey=keys, data=[b"%d" % number for number in range(2000)])
    report = write([batch.slice(500), batch.slice(0, 500)], streamName=stream, **PUT_ASIDE)
    assert report.dead_letter_count == 1
    written = sorted(int(data) for _, data in kcl_reads(client, stream))
    assert written == [number for number in range(2000) if number != 1234]
    assert files.letters[0]["row"] == 734


def test_columns_that_the_sink_ignores_are_not_converted(write, stream, client):
    no_moment = pa.array([2**63 - 1], pa.int64()).view(pa.timestamp("us", "UTC"))
    with pytest.raises((OverflowError, ValueError)):
        no_moment.to_pylist()
    batch = rows(data=[b"x"], approximateArrivalTimestamp=no_moment, shardId=texts([GZIP]))
    write([batch], streamName=stream)
    assert kcl_reads(client, stream) == [("k", b"x")]


# --- null values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"data": [None]}, "the column data is null"),
        ({"partitionKey": [None]}, "the column partitionKey is null"),
        ({"partitionKey": [None], "explicitHashKey": [GZIP]}, "the column partitionKey is null"),
        ({"partitionKey": [b"k" * 257]}, "the partition key has 257 characters; 1 to 256 are allowed"),
        ({"explicitHashKey": [b"-1"]}, "explicit hash key .*"),
        ({"data": [b"x" * 2**20]}, "data and partition key .*"),
    ],
)
def test_a_row_that_is_never_accepted_is_named_with_the_way_out(write, stream, row, message):
    with pytest.raises(
        RecordError, match=f"stream {stream}, row 0 of the task: {message}; filter such rows out"
    ):
        write([rows(**row)], streamName=stream)


def test_a_record_keeps_its_explicit_hash_key_and_goes_without_if_it_is_null(write, stream, client):
    write(
        [rows(explicitHashKey=[b"0", None, b"%d" % (2**128 - 1)], data=[b"first", b"any", b"last"])],
        streamName=stream,
    )
    by_shard = {}
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        for record in client.get_records(ShardIterator=iterator)["Records"]:
            by_shard[record["Data"]] = shard["ShardId"]
    assert by_shard[b"first"] < by_shard[b"last"]
    assert by_shard.keys() == {b"first", b"any", b"last"}
