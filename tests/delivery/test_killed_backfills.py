"""Backfills and the running delivery of the same name, at the same time, both killed: each record is in the table once."""

from __future__ import annotations

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from killed_deliveries import FAST, read_files, run_patiently
from waiting import wait_until

PLACES = (
    "write",
    "dead letters",
    "commit",
    "after call 1 of the commit",
    "after call 2 of the commit",
    "end",
)
SCHEMA = "id BIGINT, price DOUBLE"


@pytest.mark.timeout(900)
def test_a_killed_backfill_beside_a_killed_delivery_doubles_nothing(kinesis, running_spark, tmp_path):
    stream, table, client = "filled", f"{tmp_path}/orders", kinesis.client("kinesis")
    kinesis.create_stream(stream, shards=2)
    ids, bad = [], []

    def put(count):
        numbers = range(len(ids), len(ids) + count)
        lines = [json.dumps({"id": number, "price": number / 2}).encode() for number in numbers]
        ids.extend(numbers)
        bad.append(f"bad {len(ids)}".encode())
        records = [{"PartitionKey": str(at), "Data": line} for at, line in enumerate([*lines, bad[-1]])]
        assert client.put_records(StreamName=stream, Records=records)["FailedRecordCount"] == 0

    both = {"stream": stream, "to": table, "schema": SCHEMA, "options": FAST}
    running, backfill = {**both, "start": "LATEST"}, {**both, "since": "2026-01-01"}
    is_over = threading.Event()

    def put_on():
        while not is_over.wait(0.05):
            put(2)

    put(30)
    putting = threading.Thread(target=put_on)
    putting.start()
    try:  # records arrive before, at and after the moment at which the delivery begins
        wait_until(lambda: len(ids) > 40, "records before the delivery")
        assert run_patiently(running_spark, running, "begin")
    finally:
        is_over.set()
        putting.join()

    def deliver():
        for place in PLACES:
            put(5)
            if not run_patiently(running_spark, running, place):
                missed.append(place)

    missed = []
    with ThreadPoolExecutor(1) as beside:
        delivered = beside.submit(deliver)
        killed = [run_patiently(running_spark, backfill, place) for place in PLACES]
        delivered.result()
    assert missed == []
    assert all(killed[:4]), "the range is delivered when its manifest is there"
    for _ in range(2):
        run_patiently(running_spark, backfill)
        run_patiently(running_spark, running)
    for reader, found in read_files(table, "parquet").items():
        assert sorted(found) == ids, reader
    letters = [
        line
        for path in Path(f"{table}.penstock").glob("*/dead-letters/*")
        for line in path.read_text().splitlines()
    ]
    assert sorted(base64.b64decode(json.loads(line)["data"]) for line in letters) == sorted(bad)
