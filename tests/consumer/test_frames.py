"""Records as tables and frames: the columns, their types, and missing values."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyarrow")

from penstock import Record
from penstock.frames import SCHEMA, to_arrow

ARRIVED = datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
RECORDS = [
    Record(
        b'{"amount": 3}', "anna", "495903382714902566", 0, None, ARRIVED, "shardId-000000000000", "orders"
    ),
    Record(b"\x00\xff", None, "495903382714902567", 5, str(2**128 - 1), ARRIVED, "shardId-000000000001", ARN),
]
COLUMNS = {
    "streamName": ["orders", "orders"],
    "shardId": ["shardId-000000000000", "shardId-000000000001"],
    "sequenceNumber": ["495903382714902566", "495903382714902567"],
    "subSequenceNumber": [0, 5],
    "partitionKey": ["anna", None],
    "explicitHashKey": [None, str(2**128 - 1)],
    "approximateArrivalTimestamp": [ARRIVED, ARRIVED],
    "data": [b'{"amount": 3}', b"\x00\xff"],
}


def test_a_table_has_a_row_for_each_record_in_the_columns_of_the_spark_source():
    table = to_arrow(iter(RECORDS))
    assert table.schema == SCHEMA
    assert table.to_pydict() == COLUMNS


def test_a_table_without_records_has_the_columns_all_the_same():
    assert to_arrow([]).schema == SCHEMA
    assert to_arrow([]).num_rows == 0


def test_pandas_makes_a_frame_of_it():
    pytest.importorskip("pandas")
    frame = to_arrow(RECORDS).to_pandas()
    assert list(frame.columns) == SCHEMA.names
    assert str(frame["approximateArrivalTimestamp"].dtype).endswith("UTC]")
    assert frame["data"][1] == b"\x00\xff"
    assert frame["partitionKey"][1] is None
    assert frame.groupby("shardId")["subSequenceNumber"].sum().to_dict() == {
        "shardId-000000000000": 0,
        "shardId-000000000001": 5,
    }


def test_polars_makes_a_frame_of_it():
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(to_arrow(RECORDS))
    assert frame.to_dict(as_series=False) == COLUMNS
    assert frame.schema["approximateArrivalTimestamp"] == polars.Datetime("us", "UTC")


def test_without_pyarrow_the_import_says_what_to_install():
    code = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "try:\n"
        "    import penstock.frames\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.rstrip() == (
        "penstock.frames needs the package pyarrow, which is not installed: pip install 'penstock[arrow]'"
    )
