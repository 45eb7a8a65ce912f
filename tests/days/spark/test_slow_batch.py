"""A batch takes longer than a lease lasts, because a table that it writes is locked for a while."""

import time

from user_programs import Orders, once


def test_a_batch_that_takes_longer_than_a_lease_is_not_repeated(kinesis, stream, spark, tmp_path):
    orders = Orders(kinesis, stream)
    seen = []

    def write(batch, batch_id):
        texts = [row.data for row in batch.selectExpr("cast(data as string) as data").collect()]
        if batch_id == 1:
            time.sleep(15)  # a lease lasts 10
        seen.extend(texts)

    rows = (
        spark.readStream.format("kinesis")
        .option("streamName", stream)
        .option("startingPosition", "TRIM_HORIZON")
        .load()
    )
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)).start()
    for _ in range(4):
        orders.put(50)
        query.processAllAvailable()
    query.stop()
    assert query.exception() is None
    assert {text: seen.count(text) for text in seen} == once(orders)
