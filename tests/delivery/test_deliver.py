"""Deliveries by Spark: from the newcomer's first lines to a batch that is killed at every step."""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow.dataset as ds
import pytest

from killed_deliveries import FAST, run_patiently
from killed_steps import kill_at
from penstock.core.delivering.definition import parse_delivery
from penstock.core.moments import describe_moment
from penstock.errors import AnotherDriver, DeliveryFailed, NotFound, OptionError
from waiting import DEADLINE_S, wait_until

STEPS = ("dead letters", "commit", "end")
"""Before dead letters are staged, before the manifest, and before Spark's own commit."""


def put(kinesis, stream, lines):
    answer = kinesis.client("kinesis").put_records(
        StreamName=stream,
        Records=[{"PartitionKey": str(number), "Data": line} for number, line in enumerate(lines)],
    )
    assert answer["FailedRecordCount"] == 0


def orders(first, count, **more):
    return [
        json.dumps({"id": number, "price": number / 2, **more}).encode()
        for number in range(first, first + count)
    ]


def ids(table):
    """The rows of a table, which both readers must agree on."""
    by_duckdb = duckdb.sql(
        f"SELECT id FROM read_parquet('{table}/**/*.parquet', union_by_name=true) ORDER BY id"
    ).fetchall()
    by_pyarrow = sorted(ds.dataset(table, partitioning="hive").to_table(columns=["id"])["id"].to_pylist())
    assert [row[0] for row in by_duckdb] == by_pyarrow
    return by_pyarrow


def letters(table):
    found = Path(f"{table}.penstock").glob("*/dead-letters/*.jsonl")
    return [json.loads(line) for path in sorted(found) for line in path.read_text().splitlines()]


@pytest.fixture
def deliver(kinesis, running_spark, tmp_path):
    """Runs a delivery of a new stream into a new table, once; `stream` and `table` are its names."""
    from penstock.delivery.running import DeliveryRun, check_deliveries

    stream = f"s-{uuid.uuid4().hex[:10]}"
    kinesis.create_stream(stream, shards=2)

    def run(at_step=lambda _step: None, *, redelivers=False, **given):
        reports = []
        fast = {"fetchInterval": "0ms", "probeInterval": "200ms"}
        delivery = parse_delivery({"stream": stream, "to": f"{tmp_path}/orders", "options": fast, **given})
        prepared = DeliveryRun(
            running_spark, check_deliveries([delivery]), reports.append, at_step, is_redelivery=redelivers
        )
        prepared.redeliver() if redelivers else prepared.run(once=True)
        return reports

    run.stream, run.table = stream, f"{tmp_path}/orders"
    return run


@pytest.mark.timeout(900)
def test_every_record_is_a_row_or_a_dead_letter_once_whatever_step_is_killed(kinesis, deliver):
    layout = {"partition-by": ["date(arrived)", "id % 2 AS odd"]}
    put(kinesis, deliver.stream, orders(0, 20))
    deliver(**layout)
    bad = [
        b"no JSON",
        b'{"id": "q"}',
        b'{"id": 1} x',
        b'{"id": 1, "note": "\xff"}',
        b'{"id": 1, "ID": 2}',
        b"[1]" + 99 * b" ",
    ]
    put(kinesis, deliver.stream, [*orders(20, 10, note="new"), *bad])
    kinesis.client("kinesis").split_shard(
        StreamName=deliver.stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125)
    )

    for killed in STEPS:
        with pytest.raises(DeliveryFailed, match=f"killed at {killed}"):
            deliver(at_step=kill_at(killed), **layout)
        assert ids(deliver.table) in (list(range(20)), list(range(30)))
    put(kinesis, deliver.stream, orders(30, 5))
    deliver(**layout)
    assert ids(deliver.table) == list(range(35))
    found = [base64.b64decode(letter["data"], validate=True) for letter in letters(deliver.table)]
    assert sorted(found) == sorted(bad)
    notes = duckdb.sql(
        f"SELECT count(note) FROM read_parquet('{deliver.table}/**/*.parquet', union_by_name=true)"
    )
    assert notes.fetchall() == [(10,)]


@pytest.mark.timeout(900)
def test_a_delivery_that_was_killed_while_spark_wrote_its_first_offset_starts_again(kinesis, deliver):
    put(kinesis, deliver.stream, orders(0, 10))
    location = parse_delivery({"stream": deliver.stream, "to": deliver.table}).checkpoint_location
    half_written = Path(location, "offsets", f".0.{uuid.uuid4()}.tmp")
    half_written.parent.mkdir(parents=True)
    half_written.write_text("v1\n{")

    deliver()

    assert ids(deliver.table) == list(range(10))


@pytest.mark.timeout(900)
def test_a_driver_that_was_paused_while_it_staged_names_the_one_that_went_on(batches):
    delivery = batches(schema="id INT")
    target = delivery._opened.target

    def stage_late(*_given):
        del target.stage
        delivery.write([b'{"id": 1}'])
        raise OSError("the other driver has removed what is staged")

    target.stage = stage_late
    with pytest.raises(AnotherDriver, match=r"batch 000000000 of .*: another driver has finished it"):
        delivery.write([b'{"id": 1}'])
    assert ids(delivery._opened.delivery.to) == [1]


@pytest.mark.timeout(900)
def test_dead_letters_become_rows_once_after_the_schema_was_mended(kinesis, deliver):
    bad = [b"no JSON", *orders(10, 2, note="new")]
    put(kinesis, deliver.stream, [*orders(0, 10), *bad])
    strict = {"schema": "id INT, price DOUBLE", "evolve": "refuse"}
    deliver(**strict)
    assert ids(deliver.table) == list(range(10))
    assert sorted(base64.b64decode(letter["data"]) for letter in letters(deliver.table)) == sorted(bad)

    mended = {"schema": "id INT, price DOUBLE, note STRING", "evolve": "refuse"}
    with pytest.raises(DeliveryFailed, match="killed at end"):
        deliver(redelivers=True, at_step=kill_at("end"), **mended)
    deliver(redelivers=True, **mended)
    assert ids(deliver.table) == list(range(12))
    assert [base64.b64decode(letter["data"]) for letter in letters(deliver.table)] == [b"no JSON"]


@pytest.mark.timeout(900)
def test_a_backfill_ends_where_the_delivery_began(kinesis, deliver):
    put(kinesis, deliver.stream, orders(0, 10))
    wait_until(lambda: kinesis.client("kinesis").list_shards(StreamName=deliver.stream), "an answer")
    deliver(start="LATEST", schema="id BIGINT, price DOUBLE")
    assert list(Path(deliver.table).iterdir()) == []
    deliver(since="2026-01-01", schema="id BIGINT, price DOUBLE")
    deliver(since="2026-01-01", schema="id BIGINT, price DOUBLE")
    assert ids(deliver.table) == list(range(10))
    with pytest.raises(OptionError, match="has run with format 'parquet', not 'json'"):
        deliver(format="json")


@pytest.mark.timeout(900)
def test_ranges_with_reshards_are_delivered_once_beside_the_running_delivery(kinesis, running_spark, deliver):
    stream, table, client = deliver.stream, deliver.table, kinesis.client("kinesis")
    both = {"stream": stream, "to": table, "schema": "id BIGINT, price DOUBLE", "options": FAST}
    running, counted = {**both, "start": "LATEST"}, itertools.count()

    def put_some():
        put(kinesis, stream, orders(10 * next(counted), 10))

    def reshard(change, **shards):
        change(StreamName=stream, **shards)
        summary = "StreamDescriptionSummary"
        wait_until(
            lambda: client.describe_stream_summary(StreamName=stream)[summary]["StreamStatus"] == "ACTIVE",
            "the end of a reshard",
        )

    def moment():
        """Return a moment after all records so far and before all later ones."""
        now_ms = time.time_ns() // 10**6
        wait_until(lambda: time.time_ns() // 10**6 > now_ms + 1, "the next moment")
        return describe_moment(now_ms + 1)

    first, second, left, right = (f"shardId-{number:012}" for number in range(4))
    put_some()
    since = moment()
    put_some()
    reshard(client.split_shard, ShardToSplit=first, NewStartingHashKey=str(2**125))
    put_some()
    middle = moment()
    put_some()  # into the children of the split, which end in the second range
    reshard(client.merge_shards, ShardToMerge=left, AdjacentShardToMerge=right)
    put_some()
    run_patiently(running_spark, running)
    put_some()
    reshard(client.split_shard, ShardToSplit=second, NewStartingHashKey=str(3 * 2**126))
    put_some()

    with ThreadPoolExecutor(1) as beside:
        delivered = beside.submit(run_patiently, running_spark, running)
        run_patiently(running_spark, {**both, "since": since, "until": middle})
        run_patiently(running_spark, {**both, "since": middle})
        delivered.result()
    assert ids(table) == list(range(10, 70))


def test_a_newcomer_reads_the_table_and_stops_the_delivery_in_order(kinesis, tmp_path):
    stream = f"s-{uuid.uuid4().hex[:10]}"
    environment = {**os.environ, **kinesis.environ()}
    penstock = [sys.executable, "-m", "penstock"]
    subprocess.run([*penstock, "streams", "create", stream], env=environment, check=True)
    lines = b"\n".join(orders(0, 10))
    subprocess.run([*penstock, "put", stream], env=environment, check=True, input=lines)
    file = tmp_path / "orders.yml"
    file.write_text(
        f"stream: {stream}\nto: {tmp_path}/orders\npartition-by: date(arrived)\nfreshness: 5s\nstart: TRIM_HORIZON\n"
    )
    with subprocess.Popen(
        [*penstock, "deliver", "-f", str(file), "--json", "--master", "local[2,4]"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as delivery:
        try:
            first = json.loads(delivery.stdout.readline())
            assert first["row_count"] == 10
            delivery.send_signal(signal.SIGTERM)
            assert delivery.wait(DEADLINE_S) == 0
        finally:
            delivery.kill()
    assert ids(f"{tmp_path}/orders") == list(range(10))


def records_of(kinesis, stream):
    client, found = kinesis.client("kinesis"), []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        at = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while at is not None:
            answer = client.get_records(ShardIterator=at)
            found += [(each["PartitionKey"], each["Data"]) for each in answer["Records"]]
            at = answer.get("NextShardIterator") if answer["MillisBehindLatest"] else None
    return found


@pytest.mark.timeout(900)
def test_another_stream_gets_each_record_that_fits(kinesis, deliver, tmp_path):
    other = f"{deliver.stream}-copy"
    given = {
        "to": other,
        "format": "stream",
        "state": f"{tmp_path}/state",
        "schema": "id BIGINT, price DOUBLE",
    }
    with pytest.raises(NotFound):
        deliver(**given)
    kinesis.create_stream(other, shards=2)
    put(kinesis, deliver.stream, [*orders(0, 20), b"no JSON"])
    with pytest.raises(DeliveryFailed, match="killed at commit"):
        deliver(at_step=kill_at("commit"), **given)
    assert records_of(kinesis, other) == []
    with pytest.raises(DeliveryFailed, match="killed at end"):
        deliver(at_step=kill_at("end"), **given)
    deliver(**given)
    wanted = sorted((str(number), line) for number, line in enumerate(orders(0, 20)))
    assert sorted(records_of(kinesis, other)) == wanted
    letters_of = Path(f"{tmp_path}/state").glob("*/dead-letters/*.jsonl")
    assert [base64.b64decode(json.loads(each.read_text())["data"]) for each in letters_of] == [b"no JSON"]
