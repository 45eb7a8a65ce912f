"""The warning for a query that writes to the stream that it reads."""

import json

import pytest

from penstock.core.batches.offsets import StreamOffset
from penstock.core.shard import StreamSummary
from penstock.errors import AccessDenied
from penstock.spark.sink.own_source import warn_of_own_source

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
OTHER_SOURCE = {"path": "s3://bucket/files", "v": 1}


def fetch(arn=ARN, created_ms=7):
    return lambda stream: StreamSummary(stream, arn, "ACTIVE", created_ms)


@pytest.fixture
def location(tmp_path):
    offset = StreamOffset(3, "w", ARN, 7).to_json()
    lines = ["v1", json.dumps({"batchWatermarkMs": 0}), json.dumps(OTHER_SOURCE), "-", json.dumps(offset)]
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "4").write_text("\n".join(lines))
    return str(tmp_path)


@pytest.mark.parametrize("stream", ["orders", ARN])
def test_a_query_that_writes_to_its_source_is_warned(location, caplog, stream):
    warn_of_own_source(["copies", stream], location, 4, fetch())
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert f"stream {stream}: this query writes to the stream that it reads" in record.getMessage()


@pytest.mark.parametrize(
    "found",
    [fetch(ARN.replace("us-east-1", "eu-west-1")), fetch(ARN.replace("12345", "54321")), fetch(created_ms=8)],
    ids=["another region", "another account", "another server, or made anew"],
)
def test_a_stream_of_the_same_name_elsewhere_is_another_one(location, caplog, found):
    warn_of_own_source(["orders"], location, 4, found)
    assert not caplog.records


def test_nothing_is_asked_about_streams_of_other_names(location):
    warn_of_own_source(["copies"], location, 4, None)


def test_a_location_that_cannot_be_read_costs_no_batch(location, tmp_path, caplog):
    caplog.set_level("INFO")
    warn_of_own_source(["orders"], str(tmp_path / "nowhere"), 4, fetch())
    assert not caplog.records

    def deny(stream):
        raise AccessDenied(f"DescribeStreamSummary on {stream}")

    warn_of_own_source(["orders"], location, 4, deny)
    assert "is not known: DescribeStreamSummary on orders" in caplog.text
