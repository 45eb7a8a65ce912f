"""The blocks of README.md and the pages that are parts of a Spark program, in their order, in one session."""

from __future__ import annotations

import uuid

import pytest
from pyspark.sql.streaming import StreamingQueryManager

from docs_blocks import blocks, run_blocks
from penstock.spark.engine import PASSES_START
from spark_support import numbered, put, read_batch
from waiting import DEADLINE_S, wait_until

ORDERS, RETURNS, BILLED, COPIES = "orders", "returns", "billed", "copies"
STREAMS = (ORDERS, RETURNS, BILLED, COPIES)


@pytest.fixture
def streams(kinesis, client):
    for name in STREAMS:
        kinesis.create_stream(name, shards=2)
    put(client, ORDERS, numbered(0, 100))
    yield
    for name in STREAMS:
        client.delete_stream(StreamName=name)
    wait_until(lambda: not {*STREAMS} & set(client.list_streams()["StreamNames"]), "the deletions")


@pytest.fixture
def listeners(spark, monkeypatch):
    """The listeners that a block adds; they leave the session with the test."""
    added = []
    add = StreamingQueryManager.addListener
    monkeypatch.setattr(
        StreamingQueryManager,
        "addListener",
        lambda manager, listener: (added.append(listener), add(manager, listener)),
    )
    yield added
    for listener in added:
        spark.streams.removeListener(listener)


def without_comments(text):
    return "".join(line.split("  #")[0] for line in text.splitlines(keepends=True)).split()


@pytest.mark.skipif(
    not PASSES_START, reason="on this Spark a run reads one batch, and the filters stay with Spark"
)
@pytest.mark.timeout(900)  # several queries, one after the other, on a busy machine
def test_the_blocks_are_one_program(spark, streams, client, listeners, tmp_path):
    reading, *_, writing, _, _ = run_blocks("README.md")
    same_reading, view, of_table, lasting, runs, several, listening, *rest = run_blocks("docs/spark.md")
    copying, aligning, driving = rest
    assert without_comments(reading) == without_comments(same_reading)

    names = {"spark": spark}
    exec(listening.replace("9464", "0"), names)
    metrics = names["metrics"]
    with metrics:
        exec(reading, names)
        checkpointed = writing.replace("/tmp/billed", str(tmp_path / "billed"))
        names["writer"] = eval(checkpointed.replace("    .start()\n", "").strip(), names)
        exec(runs, names)
        assert read_batch(spark, BILLED).count() == 100
        wait_until(lambda: "penstock_records_total{query=" in metrics.render(), "the listener to hear of it")
    assert len(listeners) == 1

    exec(several, names)
    both = names["both"].writeStream.format("memory").queryName("both").trigger(availableNow=True).start()
    assert both.awaitTermination(DEADLINE_S)
    assert {row.streamName for row in spark.table("both").collect()} == {ORDERS}

    spark.sql(view)
    assert spark.sql("SELECT count(*) FROM orders").first()[0] == 100
    spark.sql("DROP VIEW orders")
    table = f"orders_table_{uuid.uuid4().hex[:10]}"
    spark.sql(f"CREATE TABLE {table} USING kinesis OPTIONS (streamName 'orders')")
    assert spark.sql(of_table.replace("orders_table", table)).first()[0] == 100
    spark.sql(lasting.replace("orders_table", table).replace("all_orders", f"all_{table}"))
    assert spark.sql(f"SELECT count(*) FROM all_{table}").first()[0] == 100

    exec(copying.replace("/tmp/copies", str(tmp_path / "copies")), names)
    wait_until(lambda: names["query"].lastProgress, "the copying query to read what comes from now on")
    put(client, ORDERS, numbered(100, 150))
    wait_until(lambda: read_batch(spark, COPIES).count() == 50, "the copies")
    names["query"].stop()
    assert read_batch(spark, ORDERS).count() == 150

    exec(aligning, names)
    rows = read_batch(spark, ORDERS).selectExpr("partitionKey", "data", "sequenceNumber as sequence")
    names["write"](rows, 0)
    assert read_batch(spark, BILLED).count() == 250

    driving = driving.replace("s3://bucket", str(tmp_path)).replace("(write)", "(write, available_now=True)")
    exec(driving, names)  # it has the application of the first block, and goes on at its positions
    assert spark.read.parquet(f"{tmp_path}/orders/*").count() == 50


@pytest.mark.parametrize("page", ["docs/cluster.md", "docs/fan-out.md", "docs/operations.md"])
def test_a_source_of_another_page_can_be_loaded(spark, page):
    texts = [block.text for block in blocks(page) if block.language == "python" and "spark." in block.text]
    assert texts
    for text in texts:
        exec(text, {"spark": spark})
