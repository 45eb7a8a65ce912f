"""A notebook with Spark: the cell that starts a query is run twice, and the query goes on after a restart of the kernel."""

import json
import signal
import subprocess
from urllib.parse import unquote, urlsplit

import pyarrow.parquet

from user_programs import Orders, once


def counted(spark, folder) -> dict[str, int]:
    rows = spark.read.parquet(str(folder)).collect()
    texts = [row.data for row in rows]
    return {text: texts.count(text) for text in texts}


def test_the_cell_that_starts_a_query_is_run_twice(kinesis, stream, spark, tmp_path):
    orders = Orders(kinesis, stream)

    def cell():
        rows = (
            spark.readStream.format("kinesis")
            .option("streamName", stream)
            .option("startingPosition", "TRIM_HORIZON")
            .load()
        )
        return (
            rows.selectExpr("cast(data as string) as data")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start(str(tmp_path / "orders"))
        )

    orders.put(100)
    first = cell()
    first.processAllAvailable()
    orders.put(100)
    second = cell()  # Spark stops the first one
    second.processAllAvailable()
    assert not first.isActive
    orders.put(100)
    second.processAllAvailable()
    second.stop()
    third = cell()
    orders.put(100)
    third.processAllAvailable()
    third.stop()
    assert first.exception() is None
    assert counted(spark, tmp_path / "orders") == once(orders)


QUERY = """
    import sys

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    rows = (
        spark.readStream.format("kinesis")
        .option("streamName", "orders")
        .option("startingPosition", "TRIM_HORIZON")
        .load()
    )
    query = (
        rows.selectExpr("cast(data as string) as data")
        .writeStream.format("parquet")
        .option("checkpointLocation", "checkpoint")
        .start("orders")
    )
    for _ in sys.stdin:
        query.processAllAvailable()
        print("done", flush=True)
"""


def test_the_kernel_is_restarted_while_a_query_runs(local_kinesis, programs, tmp_path):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    for number in range(2):
        orders.put(100)
        kernel = programs.start(QUERY, name=f"kernel-{number}", stdin=subprocess.PIPE)
        kernel.process.stdin.write(b"\n")
        kernel.process.stdin.flush()
        kernel.wait_for("done")
        orders.put(100)  # the query reads on while the kernel ends
        kernel.send(signal.SIGKILL if number == 0 else signal.SIGTERM)
        kernel.wait()
        kernel.process.stdin.close()
    kernel = programs.start(QUERY, name="kernel-last", stdin=subprocess.PIPE)
    kernel.process.stdin.write(b"\n")
    kernel.process.stdin.close()
    assert kernel.wait() == 0
    files = read_committed(tmp_path / "orders")
    texts = [row for file in files for row in pyarrow.parquet.read_table(file)["data"].to_pylist()]
    assert {text: texts.count(text) for text in texts} == once(orders)


def read_committed(folder):
    """Return the files that Spark's log of the sink names."""
    found = {}
    logs = [path for path in (folder / "_spark_metadata").iterdir() if path.name[0] != "."]
    for log in sorted(logs, key=lambda path: int(path.name.partition(".")[0])):
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:
            entry = json.loads(line)
            found[entry["path"]] = unquote(urlsplit(entry["path"]).path)
    return list(found.values())
