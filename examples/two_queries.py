"""Two queries of one application share the stream: each reads half of the shards. One stops, and nothing is lost.

    python examples/two_queries.py --local

Here both run in one program, but they could run on two clusters: `applicationName`, the name of the lease table, is all that
joins them. When the first one stops, the second one gets all shards and goes on where the first one was.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import where
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark import lag

DEADLINE_S = 90.0


def wait(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, with a deadline."""
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end_s:
            raise SystemExit(f"waited {DEADLINE_S:g} s for {what}")
        time.sleep(0.1)


def main() -> int:
    parser = where.arguments(__doc__, application="shared")
    args = parser.parse_args()
    with (
        where.kinesis(args, orders=4),
        tempfile.TemporaryDirectory() as scratch,
        where.session("two queries") as spark,
    ):
        seen: Counter[str] = Counter()
        read_by: Counter[str] = Counter()

        def start(name: str) -> StreamingQuery:
            def note(batch: DataFrame, _: int) -> None:
                numbers = [bytes(row.data).decode() for row in batch.select("data").collect()]
                seen.update(numbers)
                read_by[name] += len(numbers)

            orders = (
                spark.readStream.format("kinesis")
                .option("streamName", args.stream)
                .option("applicationName", args.application)
                .option("startingPosition", "TRIM_HORIZON")
                .option("leaseDuration", "10s")
                .load()
            )
            writer = orders.writeStream.queryName(name).foreachBatch(note)
            return writer.option("checkpointLocation", str(Path(scratch) / name)).start()

        def leases(query: StreamingQuery) -> int:
            told = lag(query)
            return told[0].held_leases if told else 0

        where.put_orders(args.stream, range(100))
        first = start("first")
        wait(lambda: len(seen) >= 100, "the first orders")
        second = start("second")
        wait(lambda: leases(first) == leases(second) == 2, "two shards for each query")
        print("each query has 2 of 4 shards")
        where.put_orders(args.stream, range(100, 300))
        wait(lambda: len(seen) >= 300, "all orders")
        first.processAllAvailable()  # its last batch is done for sure, so that it is not read again
        first.stop()
        wait(lambda: leases(second) == 4, "the second query to have all shards")
        print("the first query stopped; the second one has 4 of 4 shards")
        where.put_orders(args.stream, range(300, 400))
        wait(lambda: len(seen) >= 400, "the last orders")
        second.stop()
        print(
            f"{len(seen)} orders, {sum(seen.values()) - len(seen)} of them twice; the second query read {read_by['second']}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
