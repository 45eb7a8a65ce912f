"""Penstock is upgraded from 0.1.0 under a query, which had finished its work and was stopped, as the changelog asks."""

import json

from user_programs import Orders, once

# What 0.1.0 wrote: its rows had the attributes of the KCL and one of its own, and its offsets fewer fields.
ATTRIBUTES_OF_0_1_0 = {
    "leaseKey",
    "leaseCounter",
    "ownerSwitchesSinceCheckpoint",
    "checkpoint",
    "checkpointSubSequenceNumber",
    "parentShardId",
    "childShardIds",
    "startingHashKey",
    "endingHashKey",
    "penstockStartMillis",
}
FIELDS_OF_0_1_0 = {"batch", "shards", "stream", "until", "v", "worker"}

QUERY = """
    import json

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    rows = (
        spark.readStream.format("kinesis")
        .option("streamName", "orders")
        .option("applicationName", "reports")
        .option("startingPosition", "TRIM_HORIZON")
        .load()
    )

    def write(batch, batch_id):
        texts = [row.data for row in batch.selectExpr("cast(data as string) as data").collect()]
        print(json.dumps(texts), flush=True)

    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", "checkpoint").start()
    query.processAllAvailable()
    query.stop()
"""


def write_as_0_1_0(kinesis, checkpoint) -> None:
    dynamodb = kinesis.client("dynamodb")
    for row in dynamodb.scan(TableName="reports")["Items"]:
        kept = {name: value for name, value in row.items() if name in ATTRIBUTES_OF_0_1_0}
        assert kept != row
        dynamodb.put_item(TableName="reports", Item=kept)
    for path in (checkpoint / "offsets").glob("[0-9]*"):
        *head, offset = path.read_text(encoding="utf-8").splitlines()
        document = json.loads(offset)
        kept = {name: value for name, value in document.items() if name in FIELDS_OF_0_1_0}
        assert kept != document
        path.write_text("\n".join([*head, json.dumps(kept)]), encoding="utf-8")
        (checkpoint / "offsets" / f".{path.name}.crc").unlink(missing_ok=True)


def test_a_query_goes_on_where_0_1_0_stopped(local_kinesis, programs, tmp_path):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    for version in ("0.1.0", "new", "newer"):
        orders.put(100)
        assert programs.start(QUERY, name=version).wait() == 0
        if version == "0.1.0":
            write_as_0_1_0(local_kinesis, tmp_path / "checkpoint")
    texts = [text for program in programs.started for line in program.lines() for text in json.loads(line)]
    assert {text: texts.count(text) for text in texts} == once(orders)
