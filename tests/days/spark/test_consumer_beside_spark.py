"""`Consumer` where Spark is: its handler makes frames in the driver, and a task reads a stream by itself."""

from user_programs import Orders, once
from waiting import wait_until


def test_a_handler_in_the_driver_writes_frames(kinesis, stream, spark, tmp_path):
    from penstock import Consumer
    from penstock.frames import to_arrow

    orders = Orders(kinesis, stream)
    orders.put(100)
    folder = str(tmp_path / "orders")

    def handle(batch):
        frame = spark.createDataFrame(to_arrow(batch).to_pandas())
        frame.selectExpr("cast(data as string) as data").write.mode("append").parquet(
            f"{folder}/shard={batch.shard_id}"  # two shards' handlers run at once, and a folder has one writer
        )

    def texts():
        return (
            [row.data for row in spark.read.schema("data STRING").parquet(folder).collect()]
            if (tmp_path / "orders").exists()
            else []
        )

    with Consumer(
        stream=stream, application=f"frames-{stream}", handler=handle, starting_position="TRIM_HORIZON"
    ):
        wait_until(lambda: len(texts()) >= 100, "100 orders")
        orders.put(100)
        wait_until(lambda: len(texts()) >= 200, "200 orders")
    found = texts()
    assert {text: found.count(text) for text in found} == once(orders)


def test_a_task_reads_a_stream_with_a_consumer_and_puts_what_it_made(kinesis, stream, spark):
    billed = f"{stream}-billed"
    kinesis.create_stream(billed)
    orders = Orders(kinesis, stream)
    orders.put(200)

    def bill(_rows):
        from penstock import Consumer, Producer

        count = 0
        reading = Consumer(stream=stream, application=f"task-{stream}", starting_position="TRIM_HORIZON")
        with Producer(stream=billed) as producer:
            for batch in reading:
                for record in batch:
                    producer.put(record.data, record.partition_key)
                batch.acknowledge()
                count += len(batch)
                yield [record.data.decode() for record in batch]
                if count == 200:
                    break

    handed = [
        text for texts in spark.range(1).coalesce(1).rdd.mapPartitions(bill).collect() for text in texts
    ]
    assert {text: handed.count(text) for text in handed} == once(orders)
    rows = spark.read.format("kinesis").option("streamName", billed).load()
    assert sorted(bytes(row.data).decode() for row in rows.collect()) == sorted(orders.texts)
