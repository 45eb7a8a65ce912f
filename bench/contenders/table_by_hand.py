"""The program that one would write by hand for a table: Penstock's source, `foreachBatch`, and `write.parquet`.

    python table_by_hand.py OPTIONS

The options are JSON: `stream`, `to`, `schema` (columns as in SQL, or `raw`), `freshness_s` (0: until all is read that had arrived), and the
source's `options`. It has no dead letters, no manifest, and a batch that is killed under way is in the table twice.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere


def main() -> None:
    given = json.loads(sys.argv[1])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[*,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    rows = (
        spark.readStream.format("kinesis")
        .option("streamName", given["stream"])
        .option("applicationName", f"by-hand-{Path(given['to']).name}")  # leases of its own for each table
        .option("startingPosition", "TRIM_HORIZON")
        .options(**given["options"])
        .load()
    )
    date = F.to_date("approximateArrivalTimestamp").alias("date")
    if given["schema"] == "raw":
        table = rows.select("*", date)
    else:
        fields = F.from_json(F.col("data").cast("string"), given["schema"]).alias("fields")
        table = rows.select(fields, date).select("fields.*", "date")

    def write(batch: Any, _: int) -> None:
        batch.write.mode("append").partitionBy("date").parquet(given["to"])

    trigger: dict[str, Any] = {"availableNow": True}
    if given["freshness_s"]:
        trigger = {"processingTime": f"{given['freshness_s']} seconds"}
    query = (
        table.writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{given['to']}.checkpoint")
        .trigger(**trigger)
        .start()
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while not query.awaitTermination(1):
        pass
    spark.stop()


if __name__ == "__main__":
    main()
