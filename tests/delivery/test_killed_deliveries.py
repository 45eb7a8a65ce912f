"""Deliveries by Spark that are killed at chosen places of the run that `make soak` makes, between reshards."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
import yaml

from killed_deliveries import FAST, IN_THE_WRITE, Kill, KilledTable, run_once
from penstock import Producer
from penstock_demo.dataset import events_of, load_flights

FLIGHTS = Path(__file__).parents[2] / "examples" / "flights.yml"
SELECTION = (IN_THE_WRITE, "after call 1 of the commit", "after call 2 of the commit", "end")
"""Those that no other test has: `begin`, `write` and `commit` are among the steps of test_deliver.py."""


@pytest.mark.timeout(900)
def test_duckdb_and_pyarrow_find_each_record_once_whatever_is_killed(kinesis, running_spark, tmp_path):
    table = KilledTable(running_spark, kinesis, tmp_path, 1)
    for at, place in enumerate(SELECTION):
        table.put()
        if at % 2:
            table.reshard()
        table.kill(place)
    table.finish()
    assert table.killed.total() >= len(SELECTION) - 1  # a write may be over before it is cancelled


@pytest.mark.timeout(900)
def test_a_process_that_is_killed_by_sigkill_leaves_no_row_twice(kinesis, running_spark, tmp_path):
    table = KilledTable(running_spark, kinesis, tmp_path, 2, "json")
    table.put()
    table.kill("after call 2 of the commit", is_hard=True)
    assert table.killed.total() == 1
    table.finish()


@pytest.mark.timeout(900)
def test_the_demonstration_as_one_file(kinesis, running_spark, tmp_path):
    """The flights, aggregated by the producer, with a split shard and a killed delivery, as in `make demo`."""
    given = yaml.safe_load(FLIGHTS.read_text(encoding="utf-8"))
    definition = given | {"to": f"{tmp_path}/flights", "stream": "flights-as-a-file", "options": FAST}
    kinesis.create_stream(definition["stream"], shards=2)
    flights = load_flights(3000)
    events = [*events_of(flights)]
    for half, shard in ((events[:1500], 0), (events[1500:], 1)):
        with Producer(definition["stream"], aggregation=True) as producer:
            for event in half:
                producer.put(event.data, event.partition_key)
        assert run_once(running_spark, definition, Kill("after call 2 of the commit"))
        kinesis.client("kinesis").split_shard(
            StreamName=definition["stream"],
            ShardToSplit=f"shardId-{shard:012d}",
            NewStartingHashKey=str(2**126 + shard * 2**127),
        )
    run_once(running_spark, definition)
    with duckdb.connect() as connection:
        table = connection.sql(
            f"SELECT * REPLACE (is_late::BOOLEAN AS is_late) FROM '{tmp_path}/flights/**/*.parquet' ORDER BY id"
        ).df()
    assert table["id"].to_list() == flights["id"].to_list()
    assert table["_partitionKey"].to_list() == flights["partition_key"].to_list()
    assert table["arr_delay"].sum() == flights["arr_delay"].sum()
    is_late = (flights["arr_delay"] > 15).fillna(value=False)
    assert table["is_late"].to_list() == is_late.to_list()
    assert not [*tmp_path.glob("*.penstock/*/dead-letters/*")]
