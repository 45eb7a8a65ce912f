"""A query runs over a weekend on which nothing is put, for longer than the stream keeps a record."""

import json

from user_programs import Orders, once
from waiting import wait_until

QUERY = """
    import json
    import sys

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    rows = (
        spark.readStream.format("kinesis")
        .option("streamName", "orders")
        .option("applicationName", "billing")
        .option("startingPosition", "TRIM_HORIZON")
        .load()
    )

    def write(batch, batch_id):
        texts = [row.data for row in batch.selectExpr("cast(data as string) as data").collect()]
        print(json.dumps([batch_id, texts]), flush=True)

    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", "checkpoint").start()
    query.awaitTermination()
"""


def test_a_query_runs_through_a_quiet_weekend_and_is_restarted_on_monday(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)

    def texts():
        batches = dict(json.loads(line) for program in programs.started for line in program.lines())
        return [text for batch in batches.values() for text in batch]

    def wait():
        wait_until(lambda: len(texts()) >= len(orders.texts), f"{len(orders.texts)} orders")

    friday = programs.start(QUERY, name="friday")
    orders.put(100)
    wait()
    for _ in range(5):  # 60 hours; the stream keeps a record for 24
        local_kinesis.clock.advance(12 * 3600)
        before = local_kinesis.calls().count("GetRecords")
        wait_until(lambda: local_kinesis.calls().count("GetRecords") >= before + 4, "a look at the stream")  # noqa: B023
    orders.put(100)
    wait()
    friday.terminate()
    orders.put(100)
    monday = programs.start(QUERY, name="monday")
    wait()
    monday.terminate()
    found = texts()
    assert {text: found.count(text) for text in found} == once(orders)
    assert "failOnDataLoss" not in friday.log() + monday.log()
