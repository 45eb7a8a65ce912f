"""From one stream to another: each order gets its country's VAT, and keeps its place among its customer's orders.

    python examples/enrichment.py --local
    python examples/enrichment.py --stream orders --to billed --checkpoint s3a://lake/billed-checkpoint

The sink keeps the order of each key and repeats only refused records. Delivery is at-least-once: a task that Spark
repeats sends its rows again, so readers of `billed` must expect to see an order twice.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import where
from pyspark.sql import functions as f

from penstock.spark import sink_report

VAT = [("DE", 19), ("FR", 20), ("PL", 23)]


def main() -> int:
    parser = where.arguments(__doc__, to="billed", checkpoint="", application="enrichment")
    args = parser.parse_args()
    with where.kinesis(args, orders=2, billed=3) as server, tempfile.TemporaryDirectory() as scratch:
        checkpoint = args.checkpoint or str(Path(scratch) / "checkpoint")
        if server is not None:
            where.put_orders(args.stream, range(200))
        with where.session("enrichment") as spark:
            rates = spark.createDataFrame(VAT, "country STRING, percent INT")
            orders = (
                spark.readStream.format("kinesis")
                .option("streamName", args.stream)
                .option("applicationName", args.application)
                .option("startingPosition", "TRIM_HORIZON")
                .load()
                .select("partitionKey", f.from_json(f.col("data").cast("string"), where.ORDER).alias("o"))
            )
            billed = (
                orders.select("partitionKey", "o.*")
                .join(f.broadcast(rates), "country", "left")
                .withColumn("vat", f.round(f.col("cents") * f.col("percent") / 100).cast("long"))
                .select(
                    "partitionKey",
                    f.to_json(f.struct("order", "customer", "country", "cents", "vat")).alias("data"),
                )
            )
            query = (
                billed.writeStream.format("kinesis")
                .option("streamName", args.to)
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            report = sink_report(query)
            if report is not None:
                print(f"billed: {report.total[args.to]}")
            if server is not None:
                copies = spark.read.format("kinesis").option("streamName", args.to).load()
                found = [json.loads(bytes(row.data)) for row in copies.collect()]
                assert all(
                    each["vat"] == round(each["cents"] * dict(VAT)[each["country"]] / 100) for each in found
                )
                print(f"{len(found)} orders billed, {sum(each['vat'] for each in found)} cents VAT")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
