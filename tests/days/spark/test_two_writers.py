"""Two queries write one stream: the orders of the shop and those of the telephone, one of them with a restart."""

from user_programs import Orders, all_records


def test_two_queries_write_one_stream(kinesis, spark, tmp_path):
    sources = [f"shop-{tmp_path.name}", f"telephone-{tmp_path.name}"]
    billed = f"billed-{tmp_path.name}"
    for name in (*sources, billed):
        kinesis.create_stream(name, shards=1)
    orders = {name: Orders(kinesis, name) for name in sources}

    def start(name):
        rows = (
            spark.readStream.format("kinesis")
            .option("streamName", name)
            .option("startingPosition", "TRIM_HORIZON")
            .load()
            .selectExpr("partitionKey", f"concat('{name.partition('-')[0]}: ', cast(data as string)) as data")
        )
        return (
            rows.writeStream.format("kinesis")
            .option("streamName", billed)
            .option("checkpointLocation", str(tmp_path / name))
            .start()
        )

    shop, telephone = (start(name) for name in sources)
    for name in sources:
        orders[name].put(60)
    telephone.processAllAvailable()
    telephone.stop()  # for a deploy: it goes on from the same checkpoint location
    for name in sources:
        orders[name].put(40)
    telephone = start(sources[1])
    for query in (shop, telephone):
        query.processAllAvailable()
        query.stop()
        assert query.exception() is None
    found = sorted(record.data.decode() for record in all_records(kinesis, billed))
    assert found == sorted(
        f"{name.partition('-')[0]}: {text}" for name in sources for text in orders[name].texts
    )
