"""`penstock deliver` into S3 by Hadoop's S3A: each record once whatever is killed, and reasons that lead to the way out.

The S3 is moto. It needs the jars of hadoop-aws: `make test-lakehouse`.
"""

from __future__ import annotations

import base64
import io
import json
import uuid
from pathlib import Path

import boto3
import pyarrow.parquet as pq
import pyspark
import pytest

from killed_deliveries import CALLS, FAST, SETTINGS, run_patiently
from lake_jars import JARS, may_have
from penstock.core.delivering.definition import parse_delivery
from penstock.errors import DeliveryFailed

BUCKET = "lake"
KEYS = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
STEPS = ("begin", "write", "dead letters", "commit", "end")


def hadoop_aws():
    """Return the package for the Hadoop inside this Spark."""
    (jar,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    return f"org.apache.hadoop:hadoop-aws:{jar.stem.rpartition('-')[2]}"


@pytest.fixture(scope="module")
def s3():
    """The address of an S3 with one bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    boto3.client("s3", endpoint_url=url, **KEYS).create_bucket(Bucket=BUCKET)
    yield url
    server.stop()


@pytest.fixture(scope="module")
def spark(running_kinesis, s3):
    from penstock.delivery.running import open_session

    if not may_have(hadoop_aws()):
        pytest.skip(f"{hadoop_aws()} cannot be reached")
    settings = {
        **SETTINGS,
        "spark.jars.ivy": str(JARS),
        "spark.jars.packages": hadoop_aws(),
        "spark.hadoop.fs.s3a.endpoint": s3,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in running_kinesis.environ().items():
            environment.setenv(name, value)
        session = open_session("local[2,4]", settings, is_verbose=False)
    yield session
    session.stop()


@pytest.fixture
def table(s3, kinesis):
    return Table(s3, kinesis)


def ids_in(content, table_format):
    if table_format == "json":
        return [json.loads(line)["id"] for line in content.splitlines()]
    return pq.read_table(io.BytesIO(content), columns=["id"])["id"].to_pylist()


class Table:
    """A stream, and a folder of a bucket."""

    def __init__(self, url, kinesis):
        self._kinesis = kinesis
        self._objects = boto3.client("s3", endpoint_url=url, **KEYS)
        self.name = f"s-{uuid.uuid4().hex[:10]}"
        self.ids, self.bad = [], []
        kinesis.create_stream(self.name, shards=2)

    def definition(self, **given):
        return {"stream": self.name, "to": f"s3a://{BUCKET}/{self.name}", "options": FAST, **given}

    def put(self, count=7):
        numbers = range(len(self.ids), len(self.ids) + count)
        self.ids += numbers
        self.bad.append(f"bad {len(self.ids)}".encode())
        lines = [json.dumps({"id": number, "country": "größe/="}).encode() for number in numbers]
        answer = self._kinesis.client("kinesis").put_records(
            StreamName=self.name,
            Records=[
                {"PartitionKey": str(at), "Data": line} for at, line in enumerate([*lines, self.bad[-1]])
            ],
        )
        assert answer["FailedRecordCount"] == 0

    def keys(self, folder):
        pages = self._objects.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=folder)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def read(self, key):
        return self._objects.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    def check(self, table_format, *, is_whole):
        """Compare the table with the records: before the end each is there once or not at all."""
        ids = []
        for key in self.keys(f"{self.name}/"):
            if key.endswith(f".{table_format}"):
                ids += ids_in(self.read(key), table_format)
        assert len(ids) == len(set(ids))
        assert sorted(ids) == self.ids if is_whole else set(ids) <= set(self.ids)
        letters = []
        for key in self.keys(f"{self.name}.penstock/{self.name}/dead-letters/"):
            letters += [base64.b64decode(json.loads(line)["data"]) for line in self.read(key).splitlines()]
        assert len(letters) == len(set(letters))
        assert sorted(letters) == sorted(self.bad) if is_whole else set(letters) <= set(self.bad)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("table_format", "places"), [("parquet", (*STEPS, *CALLS)), ("json", STEPS[2:])])
def test_every_record_is_there_once_whatever_step_or_call_is_killed(spark, table, table_format, places):
    layout = {"format": table_format, "partition-by": ["date(arrived)", "country", "id % 2 AS odd"]}
    definition = table.definition(**layout)
    killed = []
    for place in places:
        table.put()
        if run_patiently(spark, definition, place):
            killed.append(place)
            table.check(table_format, is_whole=False)
        else:
            table.check(table_format, is_whole=True)
    run_patiently(spark, definition)
    table.check(table_format, is_whole=True)
    assert {*STEPS} & {*places} <= {*killed}


def test_a_dry_run_writes_nothing_and_a_wrong_bucket_ends_with_its_name(spark, table):
    from penstock.delivery.preview import preview
    from penstock.delivery.running import check_deliveries

    table.put()
    found = preview(spark, *check_deliveries([parse_delivery(table.definition())])[0])
    assert len(found.rows) == 7
    assert table.keys(table.name) == []
    with pytest.raises(DeliveryFailed, match=r"s3a://nowhere/orders.penstock.*nowhere"):
        run_patiently(spark, table.definition(to="s3a://nowhere/orders"))


def test_the_second_of_two_drivers_at_once_cannot_create_the_file_of_the_first(spark, s3, monkeypatch):
    from penstock.delivery.files import open_files

    first, second = (open_files(spark, f"s3a://{BUCKET}/created") for _ in range(2))
    path, call = f"s3a://{BUCKET}/created/file.json", second._call

    def create_first(name, *arguments):
        found = call(name, *arguments)
        if name == "hasPathCapability":
            assert first.create(path, b"first")
        return found

    monkeypatch.setattr(second, "_call", create_first)
    assert not second.create(path, b"second")
    assert first.read(path) == b"first"
