"""What version 0.1.0 wrote, and the Spark query that goes on from its checkpoint location.

`tests/upgrade/make_fixtures.py` says how the files came about: 40 records were read by a consumer and by a query, and 20 more put
behind them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from penstock_local import LocalKinesis
from readme_terminal import TOO_BUSY

WRITTEN = Path(__file__).parent / "upgrade" / "written_by_0.1.0"
NEW = [f"{number:03d}" for number in range(40, 60)]
QUERY_S_MAX = 1200.0
"""For all starts: a busy machine starts Spark in minutes. A test of the query gets a little more."""
_STARTS_MAX = 3
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


def go_on_with_the_query(folder: Path, python: str = sys.executable) -> list[str]:
    """Run the query from copies of the old files, with an environment's Python; return the data that it reads, sorted.

    If the machine was too busy to start Python for Spark, it begins again with new copies.
    """
    for attempt in range(_STARTS_MAX):
        done = _run_query(folder / str(attempt), python)
        if done.returncode == 0:
            return sorted(json.loads(done.stdout.splitlines()[-1]))
        assert TOO_BUSY in done.stderr, done.stderr[-4000:]
    raise AssertionError(f"{TOO_BUSY}, {_STARTS_MAX} times")


def _run_query(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    shutil.copytree(WRITTEN / "state", folder / "state")
    shutil.copytree(WRITTEN / "checkpoint", folder / "checkpoint")
    with LocalKinesis(limits=False, settle_s=0, state_dir=folder / "state") as kinesis:
        return subprocess.run(
            [python, "-c", QUERY, folder / "checkpoint", str(len(NEW))],
            env={**os.environ, **kinesis.environ(), "PYSPARK_PYTHON": python},
            capture_output=True,
            text=True,
            timeout=QUERY_S_MAX / _STARTS_MAX,
            check=False,
            cwd=folder,
        )
