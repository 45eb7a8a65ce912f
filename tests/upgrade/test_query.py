"""A Spark query of version 0.1.0 goes on from its checkpoint location: no record is missing and none is repeated."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from penstock_local import LocalKinesis

WRITTEN = Path(__file__).parent / "written_by_0.1.0"
NEW = [f"{number:03d}" for number in range(40, 60)]
QUERY = """
import json, sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
         .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
rows = []
frame = (spark.readStream.format("kinesis").option("streamName", "orders").option("applicationName", "report")
         .option("startingPosition", "TRIM_HORIZON").load())
query = (frame.writeStream.foreachBatch(lambda batch, _: rows.extend(row.data.decode() for row in batch.collect()))
         .option("checkpointLocation", sys.argv[1]).start())
while len(rows) < int(sys.argv[2]):
    query.processAllAvailable()
query.processAllAvailable()
query.stop()
spark.stop()
print(json.dumps(rows))
"""


def test_a_query_goes_on_where_the_old_one_stopped(tmp_path):
    shutil.copytree(WRITTEN / "state", tmp_path / "state")
    shutil.copytree(WRITTEN / "checkpoint", tmp_path / "checkpoint")
    with LocalKinesis(limits=False, settle_s=0, state_dir=tmp_path / "state") as kinesis:
        done = subprocess.run(
            [sys.executable, "-c", QUERY, tmp_path / "checkpoint", str(len(NEW))],
            env={**os.environ, **kinesis.environ(), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(json.loads(done.stdout.splitlines()[-1])) == NEW
