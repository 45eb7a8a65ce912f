"""Two Spark queries share an application, as when a second cluster comes to help, and goes again."""

from user_programs import Orders, once
from waiting import wait_until


def test_a_second_query_comes_to_help_and_goes_again(kinesis, client, spark, tmp_path):
    stream = f"shared-{tmp_path.name}"
    kinesis.create_stream(stream, shards=4)
    orders = Orders(kinesis, stream)

    def start(name):
        rows = (
            spark.readStream.format("kinesis")
            .option("streamName", stream)
            .option("applicationName", f"billing-{stream}")
            .option("startingPosition", "TRIM_HORIZON")
            .load()
        )
        return (
            rows.selectExpr("cast(data as string) as data")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / f"checkpoint-{name}"))
            .start(str(tmp_path / name))
        )

    def texts():
        names = [name for name in ("first", "second") if (tmp_path / name / "_spark_metadata").exists()]
        return {
            name: [
                row.data for row in spark.read.schema("data STRING").parquet(str(tmp_path / name)).collect()
            ]
            for name in names
        }

    first = start("first")
    orders.put(100)
    first.processAllAvailable()
    second = start("second")
    orders.put_until(lambda: len(texts().get("second", [])) > 0, "the second query's share")
    second.processAllAvailable()
    second.stop()
    orders.put(100)
    wait_until(lambda: sum(map(len, texts().values())) >= len(orders.texts), "all orders")
    first.processAllAvailable()
    first.stop()
    found = [text for part in texts().values() for text in part]
    assert {text: found.count(text) for text in found} == once(orders)
    assert (first.exception(), second.exception()) == (None, None)
