"""`--dry-run`: rows, dead letters, costs and warnings before the first write."""

from __future__ import annotations

import json
import time
import uuid

import pytest

from penstock.core.delivering.definition import parse_delivery
from penstock.errors import DeliveryFailed, OptionError


def test_a_dry_run_shows_rows_dead_letters_and_costs_and_writes_nothing(kinesis, running_spark, tmp_path):
    from penstock.delivery.preview import preview
    from penstock.delivery.running import check_deliveries

    stream = f"s-{uuid.uuid4().hex[:10]}"
    kinesis.create_stream(stream, shards=2)
    lines = [{"id": number, "country": "de"} for number in range(3)] + [{"id": 3, "date": "2026-01-01"}]
    records = [{"PartitionKey": str(line["id"]), "Data": json.dumps(line).encode()} for line in lines]
    kinesis.client("kinesis").put_records(StreamName=stream, Records=records)
    given = {
        "stream": stream,
        "to": f"{tmp_path}/orders",
        "partition-by": "date(arrived)",
        "freshness": "30s",
    }
    found = preview(running_spark, *check_deliveries([parse_delivery(given)])[0])
    assert found.columns == (("country", "STRING"), ("id", "BIGINT"), ("date", "DATE"))
    assert sorted(row["id"] for row in found.rows) == ["0", "1", "2"]
    assert found.dead == (
        "field date is not a column: partition-by=date(arrived) makes a column of this name",
    )
    assert (found.costs.shard_count, found.costs.batches_per_day, found.costs.files_per_day) == (
        2,
        2880,
        2880,
    )
    assert {each.item for each in found.costs.sums} >= {"renewals", "claims of batches"}
    with pytest.raises(OptionError, match=r"partition-by=no_such\(x\): .*no_such"):
        preview(
            running_spark,
            *check_deliveries([parse_delivery({**given, "partition-by": "no_such(x) AS y"})])[0],
        )
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_refuses_what_a_run_refuses_and_warns_of_an_unknown_partition_field(
    kinesis, running_spark, tmp_path, caplog
):
    from penstock.delivery.preview import preview
    from penstock.delivery.running import DeliveryRun, check_deliveries

    stream = f"s-{uuid.uuid4().hex[:10]}"
    kinesis.create_stream(stream)
    given = {"stream": stream, "to": f"{tmp_path}/orders"}
    checked = check_deliveries([parse_delivery(given)])
    assert preview(running_spark, *checked[0]).columns == ()
    kinesis.client("kinesis").put_record(StreamName=stream, PartitionKey="p", Data=b'{"country": "de"}')
    DeliveryRun(running_spark, checked, lambda _batch: None).run(once=True)
    before = sorted(tmp_path.rglob("*"))

    def try_out(**changed):
        return preview(running_spark, *check_deliveries([parse_delivery({**given, **changed})])[0])

    with pytest.raises(OptionError, match="has run with format 'parquet', not 'json': keep it"):
        try_out(format="json")
    with pytest.raises(DeliveryFailed, match="under the name other it would begin anew"):
        try_out(name="other")
    assert try_out(to=f"{tmp_path}/new", **{"partition-by": "contry"}).partitions == ("contry",)
    assert "no record so far has the field contry, by which the table is partitioned" in caplog.text
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "orders").rename(tmp_path / "renamed")
    with pytest.raises(DeliveryFailed, match="has gone"):
        try_out()


def test_a_dry_run_adds_fields_to_structs_and_shows_only_rows_whose_partitions_have_folders(
    kinesis, running_spark, tmp_path, monkeypatch
):
    from penstock.delivery.preview import preview
    from penstock.delivery.running import check_deliveries

    stream = f"s-{uuid.uuid4().hex[:10]}"
    kinesis.create_stream(stream)
    data = [json.dumps({"id": 1, "place": {"lat": 1.5, "height": 8}}).encode(), b""]
    records = [{"PartitionKey": "k", "Data": each} for each in data]
    kinesis.client("kinesis").put_records(StreamName=stream, Records=records)

    def try_out(**given):
        given = {"stream": stream, "to": f"{tmp_path}/orders", **given}
        return preview(running_spark, *check_deliveries([parse_delivery(given)])[0])

    found = try_out(schema="id BIGINT, place STRUCT<lat: DOUBLE>")
    assert found.columns == (("id", "BIGINT"), ("place", "STRUCT<LAT:DOUBLE,HEIGHT:BIGINT>"))
    assert (len(found.rows), found.dead) == (1, ("not JSON: Expecting value: line 1 column 1 (char 0)",))
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "America/New_York")
        time.tzset()
        moment = try_out(schema="id TIMESTAMP", **{"time-zone": "Asia/Tokyo"}).rows[0]["id"]
    time.tzset()
    assert moment == "1970-01-01 09:00:01"
    raw = try_out(schema="raw", **{"partition-by": "substr(decode(data, 'UTF-8'), 1, 1) AS head"})
    assert [row["head"] for row in raw.rows] == ["{"]
    assert raw.dead == ("partition column head: an empty text cannot be the name of a folder",)
