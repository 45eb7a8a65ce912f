"""Turn a GetRecords answer into Arrow columns, on one core: every contender gets the same bytes, as on the wire.

The columns are those of Penstock's Spark source. boto3 is botocore's own response parser, followed by the fastest plain way
from its dictionaries to columns. cbor2 reads the same records from the format that the Java SDK asks for. aws-kinesis-agg
takes aggregates apart behind boto3's parser.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from program import Figures, run

SECONDS = 1.0
ROUNDS_MIN = 3


def measured(read: Callable[[bytes], Any], body: bytes, data_bytes: int, record_count: int) -> Figures:
    """Read repeatedly; return the median cost."""
    if read(body).num_rows != record_count:
        raise SystemExit(f"{record_count} records are in the answer, and {read(body).num_rows} were read")
    times, end_s = [], time.process_time() + SECONDS
    while len(times) < ROUNDS_MIN or time.process_time() < end_s:
        began_s = time.process_time()
        read(body)
        times.append(time.process_time() - began_s)
    cpu_s = statistics.median(times)
    return {"cpu_s_per_gb": cpu_s / data_bytes * 1e9, "mb_per_cpu_s": data_bytes / cpu_s / 1e6}


def columns(records: list[tuple[str, int, str, Any, bytes]]) -> Any:
    """Return the source's columns of records: sequence number, sub-sequence number, partition key, arrival, data."""
    import pyarrow as pa

    count = len(records)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar("stream"), count),
            pa.repeat(pa.scalar("shard"), count),
            pa.array([record[0] for record in records], pa.string()),
            pa.array([record[1] for record in records], pa.int64()),
            pa.array([record[2] for record in records], pa.string()),
            pa.nulls(count, pa.string()),
            pa.array([record[3] for record in records], pa.timestamp("us", "UTC")),
            pa.array([record[4] for record in records], pa.binary()),
        ],
        ["stream", "shard", "sequence", "subsequence", "key", "hash", "arrival", "data"],
    )


def columns_of(records: list[dict[str, Any]]) -> Any:
    """Return the source's columns of plain records as the service names their fields."""
    return columns(
        [
            (
                record["SequenceNumber"],
                0,
                record["PartitionKey"],
                record["ApproximateArrivalTimestamp"],
                record["Data"],
            )
            for record in records
        ]
    )


def parser() -> Callable[[bytes], list[dict[str, Any]]]:
    """Return botocore's parser of GetRecords."""
    import botocore.session
    from botocore.parsers import create_parser

    model = botocore.session.get_session().get_service_model("kinesis")
    shape = model.operation_model("GetRecords").output_shape
    parse = create_parser("json").parse
    return lambda body: parse({"status_code": 200, "headers": {}, "body": body}, shape)["Records"]


def boto3(json_path: str, cbor_path: str, **sizes: int) -> Figures:
    del cbor_path
    parse = parser()

    def read(body: bytes) -> Any:
        return columns_of(parse(body))

    return measured(read, Path(json_path).read_bytes(), **sizes)


def cbor2(json_path: str, cbor_path: str, **sizes: int) -> Figures:
    del json_path
    import cbor2

    def read(body: bytes) -> Any:
        return columns_of(cbor2.loads(body)["Records"])

    return measured(read, Path(cbor_path).read_bytes(), **sizes)


def aws_kinesis_agg(json_path: str, cbor_path: str, **sizes: int) -> Figures:
    del cbor_path
    from aws_kinesis_agg.deaggregator import iter_deaggregate_records

    parse = parser()

    def read(body: bytes) -> Any:
        return columns(
            [
                (
                    record["kinesis"]["sequenceNumber"],
                    record["kinesis"]["subSequenceNumber"],
                    record["kinesis"]["partitionKey"],
                    record["kinesis"]["approximateArrivalTimestamp"],
                    record["kinesis"]["data"],
                )
                for record in iter_deaggregate_records(parse(body), "Boto3")
            ]
        )

    return measured(read, Path(json_path).read_bytes(), **sizes)


def penstock(json_path: str, cbor_path: str, **sizes: int) -> Figures:
    del cbor_path
    from penstock.aws.data_plane import decode_page
    from penstock.spark.tasks.arrow_records import records_to_slices

    def read(body: bytes) -> Any:
        records = decode_page(body).records
        return next(records_to_slices("stream", "shard", records, rows_max=len(records) * 1000))[0]

    return measured(read, Path(json_path).read_bytes(), **sizes)


def copy(json_path: str, cbor_path: str, **sizes: int) -> Figures:
    """Copy the answer's bytes once, which no reader can go without."""
    del cbor_path

    class Rows:
        num_rows = sizes["record_count"]

    def read(body: bytes) -> Any:
        bytearray(body)
        return Rows

    return measured(read, Path(json_path).read_bytes(), **sizes)


if __name__ == "__main__":
    run(
        {
            "penstock": penstock,
            "boto3": boto3,
            "cbor2": cbor2,
            "aws-kinesis-agg": aws_kinesis_agg,
            "copy": copy,
        }
    )
