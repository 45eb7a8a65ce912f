"""Measure how fast a GetRecords answer becomes Arrow columns, on one core, beside stock boto3 in the same run.

    python bench/decode.py [--json]

Both sides get the same response bytes, as they come off the wire, and make the same Arrow columns. Stock boto3 is
botocore's own response parser, followed by the fastest plain way from its dictionaries to columns. The two take turns, and
the median of each is shown, so a noisy machine slows both.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import botocore.session
import pyarrow as pa
from botocore.parsers import create_parser

from penstock.aws.data_plane import decode_page
from penstock.core.aggregation import AggregateBuilder
from penstock.spark.arrow_records import SCHEMA, records_to_slices

ROUNDS = 15


def body_of(blobs: list[bytes]) -> bytes:
    """Return a GetRecords answer as the service writes it."""
    records = [
        {
            "SequenceNumber": f"4967{number:052d}",
            "ApproximateArrivalTimestamp": 1.7e9 + number / 1000,
            "Data": base64.b64encode(blob).decode(),
            "PartitionKey": f"key-{number % 50}",
        }
        for number, blob in enumerate(blobs)
    ]
    return json.dumps({"Records": records, "NextShardIterator": "x" * 200, "MillisBehindLatest": 0}).encode()


def stock_reader() -> Callable[[bytes], pa.RecordBatch]:
    """Decode boto3's way: its parser, then columns from its dictionaries."""
    model = botocore.session.get_session().get_service_model("kinesis")
    shape = model.operation_model("GetRecords").output_shape
    parser = create_parser("json")

    def read(body: bytes) -> pa.RecordBatch:
        records = parser.parse({"status_code": 200, "headers": {}, "body": body}, shape)["Records"]
        count = len(records)
        return pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar("stream"), count),
                pa.repeat(pa.scalar("shard"), count),
                pa.array([record["SequenceNumber"] for record in records], pa.string()),
                pa.repeat(pa.scalar(0, pa.int64()), count),
                pa.array([record["PartitionKey"] for record in records], pa.string()),
                pa.nulls(count, pa.string()),
                pa.array([record["ApproximateArrivalTimestamp"] for record in records], SCHEMA.field(6).type),
                pa.array([record["Data"] for record in records], pa.binary()),
            ],
            schema=SCHEMA,
        )

    return read


def our_reader(body: bytes) -> pa.RecordBatch:
    """Decode Penstock's way, as the Spark source does."""
    return next(records_to_slices("stream", "shard", decode_page(body).records, rows_max=sys.maxsize))[0]


def aggregates(count: int, size: int) -> list[bytes]:
    """Return blobs of a hundred user records each."""
    blobs = []
    for _ in range(count):
        builder = AggregateBuilder()
        for number in range(100):
            builder.add(os.urandom(size), f"key-{number % 50}")
        blobs.append(builder.build().data)
    return blobs


def timed(read: Callable[[bytes], object], body: bytes) -> float:
    """Return the CPU seconds of one reading."""
    began = time.process_time()
    read(body)
    return time.process_time() - began


def measure() -> list[dict[str, object]]:
    """Return one row per shape of record."""
    stock = stock_reader()
    rows: list[dict[str, object]] = []
    for name, size, count in (("1 KiB records", 1024, 10_000), ("100 B records", 100, 10_000)):
        body = body_of([os.urandom(size) for _ in range(count)])
        if our_reader(body).drop_columns(["approximateArrivalTimestamp"]) != stock(body).drop_columns(
            ["approximateArrivalTimestamp"]
        ):
            raise SystemExit(f"{name}: the two readers disagree")
        stock_s, our_s = [], []
        for _ in range(ROUNDS):
            stock_s.append(timed(stock, body))
            our_s.append(timed(our_reader, body))
        ours, theirs = statistics.median(our_s), statistics.median(stock_s)
        rows.append(row(f"decode to Arrow, {name}", size * count, ours, theirs, count))
    blobs = aggregates(200, 100)
    body = body_of(blobs)
    our_s = [timed(our_reader, body) for _ in range(ROUNDS)]
    rows.append(
        row(
            "decode to Arrow, 200 aggregates of 100 x 100 B",
            200 * 100 * 100,
            statistics.median(our_s),
            None,
            20_000,
        )
    )
    return rows


def row(name: str, size: int, ours_s: float, theirs_s: float | None, count: int) -> dict[str, object]:
    """Return one result."""
    return {
        "name": name,
        "mb_per_s": round(size / ours_s / 1e6, 1),
        "records_per_s": round(count / ours_s),
        "peer": "stock boto3" if theirs_s is not None else "",
        "peer_mb_per_s": None if theirs_s is None else round(size / theirs_s / 1e6, 1),
        "ratio": None if theirs_s is None else round(theirs_s / ours_s, 1),
    }


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    rows = measure()
    if parser.parse_args().json:
        print(json.dumps(rows))
        return 0
    for each in rows:
        beside = f"   {each['ratio']}x {each['peer']} ({each['peer_mb_per_s']} MB/s)" if each["ratio"] else ""
        print(f"{each['name']:<48} {each['mb_per_s']:>8} MB/s {each['records_per_s']:>10,} records/s{beside}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
