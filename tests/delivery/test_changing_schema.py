"""Schemas that change under a delivery: ten times while it is killed, with one bad record in a hundred, and by a redelivery beside it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import duckdb
import pytest

import changing_orders as changing
from killed_deliveries import FAST
from killed_steps import kill_at
from penstock.errors import DeliveryFailed


@pytest.mark.timeout(900)
def test_ten_new_fields_and_bad_records_are_delivered_once_and_mended(kinesis, running_spark, tmp_path):
    from penstock.core.delivering.definition import parse_delivery
    from penstock.delivery.running import DeliveryRun, check_deliveries

    stream, table, client = "changing", f"{tmp_path}/orders", kinesis.client("kinesis")
    kinesis.create_stream(stream, shards=2)

    def deliver(schema, at_step=lambda _step: None, *, redelivers=False):
        options = {**FAST, "maxRecordsPerTrigger": str(changing.PER_BATCH)}
        given = parse_delivery({"stream": stream, "to": table, "schema": schema, "options": options})
        checked = check_deliveries([given])
        run = DeliveryRun(running_spark, checked, lambda _report: None, at_step, is_redelivery=redelivers)
        run.redeliver() if redelivers else run.run(once=True)

    def rows(columns):
        query = f"SELECT {columns} FROM read_parquet('{table}/**/*.parquet', union_by_name=true)"
        return duckdb.sql(query).fetchall()

    def letters():
        found = Path(f"{table}.penstock").glob("*/dead-letters/*.jsonl")
        lines = [line for path in found for line in path.read_text().splitlines()]
        return sorted(json.loads(base64.b64decode(json.loads(line)["data"]))["id"] for line in lines)

    def check(wanted):
        assert sorted(number for (number,) in rows("id")) == sorted(wanted)
        counts = changing.rows_by_field(wanted)
        assert rows(", ".join(f"count({name})" for name in counts)) == [tuple(counts.values())]

    lines = changing.orders()
    steps = iter(changing.KILLS)
    for version in range(0, changing.CHANGES + 1, 3):
        first, end = version * changing.PER_VERSION, (version + 3) * changing.PER_VERSION
        records = [{"PartitionKey": str(at), "Data": line} for at, line in enumerate(lines[first:end])]
        assert client.put_records(StreamName=stream, Records=records)["FailedRecordCount"] == 0
        step = next(steps, None)
        if step is not None:
            with pytest.raises(DeliveryFailed, match=f"killed at {step}"):
                deliver(changing.NARROW, kill_at(step))
    deliver(changing.NARROW)
    check(changing.small_ids())
    assert letters() == sorted(set(changing.ids()) - set(changing.small_ids()))

    with pytest.raises(DeliveryFailed, match="killed at end"):
        deliver(changing.MENDED, kill_at("end"), redelivers=True)
    deliver(changing.MENDED, redelivers=True)
    deliver(changing.MENDED)
    check(changing.ids())
    assert letters() == []


def test_a_running_delivery_keeps_the_wider_columns_of_a_redelivery_when_it_adds_one(batches):
    from pyspark.sql import types as kinds

    from penstock.delivery.table_writer import save_schema, saved_schema

    running = batches(schema="id INT, place STRUCT<lat: FLOAT>")
    files, delivery = running._opened.files, running._opened.delivery
    running.write([b'{"id": 1, "place": {"lat": 1.5}}'])
    place = kinds.StructType([kinds.StructField("lat", kinds.DoubleType())])
    wide = kinds.StructType().add("id", kinds.LongType()).add("place", place)
    save_schema(files, delivery, wide)
    running.write([b'{"id": 2, "country": "de"}'])
    assert saved_schema(files, delivery) == wide.add("country", kinds.StringType())
    running.write([b'{"id": 5000000000}'])
    assert [each.row_count for each in running.reports] == [1, 1, 1]
