"""Make the files of `written_by_0.1.0`: run that version's consumer and Spark query against the embedded server, and keep what they wrote.

    git archive --prefix=penstock-0.1.0/ COMMIT | tar x -C /tmp
    python tests/upgrade/make_fixtures.py /tmp/penstock-0.1.0 tests/upgrade/written_by_0.1.0

COMMIT is the last one that calls itself 0.1.0: `git log --format=%h -S'## Unreleased' -- CHANGELOG.md | tail -1`, and its parent. The server
is today's, with a state folder, since a stream's sequence numbers and the lease tables must be there when the test reads on. Its clock
is ten years ahead, so that retention never removes the records. A state folder of that version's own server is kept beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock_local import LocalKinesis

STREAM = "orders"
AHEAD_S = 10 * 365 * 86_400.0

CONSUMER = """
import json, sys
from penstock import Consumer
rows = []
def handle(batch):
    rows.extend(record.data.decode() for record in batch)
    if len(rows) >= int(sys.argv[1]):
        consumer.request_stop()
consumer = Consumer("orders", "billing", handle, starting_position="TRIM_HORIZON", worker_id="old-worker")
consumer.run()
print(json.dumps(rows))
"""

QUERY = """
import json, sys
from pyspark.sql import SparkSession
from penstock.spark import KinesisDataSource
spark = (SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
         .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(KinesisDataSource)
rows = []
frame = (spark.readStream.format("kinesis").option("streamName", "orders").option("applicationName", "report")
         .option("startingPosition", "TRIM_HORIZON").load())
query = (frame.writeStream.foreachBatch(lambda batch, _: rows.extend(row.data.decode() for row in batch.collect()))
         .option("checkpointLocation", sys.argv[1]).start())
while len(rows) < int(sys.argv[2]):
    query.processAllAvailable()
query.stop()
spark.stop()
print(json.dumps(rows))
"""

OLD_SERVER = """
import sys
from penstock.local import LocalKinesis
with LocalKinesis(state_dir=sys.argv[1], limits=False) as kinesis:
    kinesis.create_stream("orders")
    kinesis.client("kinesis").put_record(StreamName="orders", Data=b"old", PartitionKey="k")
"""


def run_old(source: Path, program: str, environ: dict[str, str], *arguments: object) -> str:
    """Run a program with the old version's package; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, **environ, "PYTHONPATH": str(source / "src"), "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        timeout=500,
        check=True,
    )
    return done.stdout.splitlines()[-1] if done.stdout else ""


def put(client, first: int, count: int) -> None:
    """Put numbered records."""
    for number in range(first, first + count):
        client.put_record(StreamName=STREAM, Data=b"%03d" % number, PartitionKey=f"k{number % 7}")


def main() -> int:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        state, checkpoint = Path(folder, "state"), Path(folder, "checkpoint")
        with LocalKinesis(limits=False, settle_s=0, state_dir=state) as kinesis:
            kinesis.clock.advance(AHEAD_S)
            client = kinesis.client("kinesis")
            client.create_stream(StreamName=STREAM, ShardCount=2)
            client.increase_stream_retention_period(StreamName=STREAM, RetentionPeriodHours=8760)
            put(client, 0, 40)
            read = {
                "consumer": json.loads(run_old(source, CONSUMER, kinesis.environ(), 40)),
                "query": json.loads(run_old(source, QUERY, kinesis.environ(), checkpoint, 40)),
            }
            assert all(sorted(rows) == [f"{number:03d}" for number in range(40)] for rows in read.values()), (
                read
            )
            put(client, 40, 20)
        shutil.copytree(state, target / "state")
        shutil.copytree(checkpoint, target / "checkpoint", ignore=shutil.ignore_patterns(".*.crc"))
        run_old(source, OLD_SERVER, {}, target / "state-of-0.1.0")
    print(sum(path.stat().st_size for path in target.glob("**/*") if path.is_file()), "bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
