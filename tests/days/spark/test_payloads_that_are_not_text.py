"""Devices send compressed payloads, and somebody casts them to strings on their way through Spark."""

import base64
import gzip
import json

import pytest
from pyspark.errors import PySparkException

from user_programs import all_records

PAYLOADS = [gzip.compress(b"reading %d" % number, mtime=0) for number in range(50)]
TEXTS = [b"plain", "größer".encode()]


@pytest.fixture
def readings(spark):
    """Rows of a table: a device, and its payload as a string, which is not text."""
    rows = [(f"d{number}", bytearray(payload)) for number, payload in enumerate(PAYLOADS + TEXTS)]
    return spark.createDataFrame(rows, "device string, payload binary").selectExpr(
        "device", "cast(payload as string) as payload"
    )


def write(rows, stream, **options):
    rows.write.format("kinesis").option("streamName", stream).options(**options).mode("append").save()


def test_payloads_arrive_as_they_are(readings, kinesis, stream):
    write(readings.selectExpr("device as partitionKey", "payload as data"), stream)
    assert sorted(record.data for record in all_records(kinesis, stream)) == sorted(PAYLOADS + TEXTS)


def test_a_payload_as_key_is_named_and_the_job_goes_on_with_dead_letters(readings, kinesis, stream, tmp_path):
    rows = readings.selectExpr("payload as partitionKey", "payload as data").coalesce(1)
    with pytest.raises(PySparkException) as caught:
        write(rows, stream)
    assert f"stream {stream}, row 0 of the task: the column partitionKey is not UTF-8 text" in str(
        caught.value
    )
    assert "onError=deadLetter" in str(caught.value)
    assert all_records(kinesis, stream) == []

    write(rows, stream, onError="deadLetter", deadLetterPath=str(tmp_path))
    assert sorted(record.data for record in all_records(kinesis, stream)) == sorted(TEXTS)
    letters = [json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert [base64.b64decode(letter["data"]) for letter in letters] == PAYLOADS
    assert [base64.b64decode(letter["partitionKeyBytes"]) for letter in letters] == PAYLOADS
