"""Exactly once into a database: the batch's number is stored in the same transaction as its rows.

    python examples/exactly_once_sqlite.py --local
    python examples/exactly_once_sqlite.py --stream orders --database sales.db --checkpoint /var/lib/sales-checkpoint

Spark may run a batch again after a crash. A batch of Penstock's source then holds the same rows. So the program skips a batch
whose number is already in the database, and needs nothing else: no key to upsert by, no `cache()`.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import where
from pyspark.sql import DataFrame
from pyspark.sql import functions as f


class Sales:
    """The database."""

    def __init__(self, path: str) -> None:
        self._path = path
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE IF NOT EXISTS batches (number INTEGER PRIMARY KEY)")
            database.execute(
                "CREATE TABLE IF NOT EXISTS orders (number INTEGER, customer TEXT, cents INTEGER)"
            )

    def write(self, batch: DataFrame, number: int) -> None:
        """Write a batch, or nothing when it is there already."""
        rows = [(row.order, row.customer, row.cents) for row in batch.collect()]
        with sqlite3.connect(self._path) as database:  # one transaction: all of it or nothing
            if database.execute("SELECT 1 FROM batches WHERE number = ?", (number,)).fetchone():
                return
            database.execute("INSERT INTO batches VALUES (?)", (number,))
            database.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)

    def totals(self) -> tuple[int, int, int]:
        """Count orders, different orders and cents."""
        with sqlite3.connect(self._path) as database:
            query = "SELECT count(*), count(DISTINCT number), coalesce(sum(cents), 0) FROM orders"
            count, different, cents = database.execute(query).fetchone()
        return count, different, cents


def main() -> int:
    parser = where.arguments(__doc__, database="", checkpoint="", application="sales-database")
    args = parser.parse_args()
    with where.kinesis(args, orders=2) as server, tempfile.TemporaryDirectory() as scratch:
        sales = Sales(args.database or str(Path(scratch) / "sales.db"))
        checkpoint = args.checkpoint or str(Path(scratch) / "checkpoint")
        if server is not None:
            where.put_orders(args.stream, range(300))
        with where.session("exactly once") as spark:
            is_first = True

            def write(batch: DataFrame, number: int) -> None:
                nonlocal is_first
                sales.write(batch, number)
                if server is not None and is_first:
                    is_first = False
                    raise RuntimeError(
                        "the process dies after the transaction and before Spark notes the batch"
                    )

            def start() -> None:
                orders = (
                    spark.readStream.format("kinesis")
                    .option("streamName", args.stream)
                    .option("applicationName", args.application)
                    .option("startingPosition", "TRIM_HORIZON")
                    .option("maxRecordsPerTrigger", 100)
                    .load()
                    .select(f.from_json(f.col("data").cast("string"), where.ORDER).alias("o"))
                    .select("o.*")
                )
                query = orders.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
                query.trigger(availableNow=True).start().awaitTermination()

            if server is not None:
                try:
                    start()
                except Exception as error:  # noqa: BLE001 - staged, to show the recovery
                    print(f"a first run ended: {'the process dies' in str(error)}")
            start()
        count, different, cents = sales.totals()
        print(f"{count} orders, {different} different ones, {cents} cents")
        return 0 if count == different else 1


if __name__ == "__main__":
    raise SystemExit(main())
