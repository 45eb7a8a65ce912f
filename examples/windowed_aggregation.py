"""Sales per country and minute, by the time of arrival, as Parquet.

    python examples/windowed_aggregation.py --local
    python examples/windowed_aggregation.py --stream orders --out s3a://lake/sales --checkpoint s3a://lake/sales-checkpoint

`approximateArrivalTimestamp` is the event time. Rows of one key are in order, even across splits, merges and restarts. So the
source makes no row late, and a watermark of seconds is enough. A window is written when the watermark has passed it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import where
from pyspark.sql import functions as f


def main() -> int:
    parser = where.arguments(__doc__, out="", checkpoint="", application="sales-per-minute")
    args = parser.parse_args()
    with where.kinesis(args, orders=2) as server, tempfile.TemporaryDirectory() as scratch:
        out = args.out or str(Path(scratch) / "sales")
        checkpoint = args.checkpoint or str(Path(scratch) / "checkpoint")
        if server is not None:
            server.clock.advance(60 - server.clock.now_s() % 60)  # to a full minute
            for minute in range(4):
                where.put_orders(args.stream, range(minute * 30, minute * 30 + 30))
                server.clock.advance(60)
            server.clock.advance(60)
            where.put_orders(args.stream, range(120, 122))  # moves the watermark past the fourth minute
        with where.session("windowed aggregation") as spark:
            orders = (
                spark.readStream.format("kinesis")
                .option("streamName", args.stream)
                .option("applicationName", args.application)
                .option("startingPosition", "TRIM_HORIZON")
                .load()
                .select(
                    "approximateArrivalTimestamp",
                    f.from_json(f.col("data").cast("string"), where.ORDER).alias("o"),
                )
            )
            sales = (
                orders.withWatermark("approximateArrivalTimestamp", "10 seconds")
                .groupBy(f.window("approximateArrivalTimestamp", "1 minute").alias("minute"), "o.country")
                .agg(f.count("*").alias("orders"), f.sum("o.cents").alias("cents"))
                .select(f.col("minute.start").alias("minute"), "country", "orders", "cents")
            )
            writer = (
                sales.writeStream.format("parquet")
                .option("path", out)
                .option("checkpointLocation", checkpoint)
            )
            # With a processingTime trigger it runs until it is stopped; here it reads the stored records and ends.
            writer.trigger(availableNow=True).start().awaitTermination()
            for row in spark.read.parquet(out).orderBy("minute", "country").collect():
                print(f"{row.minute:%H:%M} {row.country} {row.orders} orders {row.cents} cents")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
