"""The declarative pipeline of examples/pipeline, by Spark's own command: one update of a stream, a table, a view and a sink."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("httptools")
pytest.importorskip("pyspark.pipelines", reason="declarative pipelines begin with Spark 4.1")
pytest.importorskip("grpc", reason="pip install 'pyspark[pipelines]'")

PIPELINE = Path(__file__).parents[2] / "examples" / "pipeline"
COMMAND = Path(sys.executable).parent / "spark-pipelines"


def put(client, orders):
    for each in orders:
        data = json.dumps({"order": each, "country": "DE" if each % 2 else "FR", "cents": 300 * each})
        client.put_record(StreamName="orders", Data=data.encode(), PartitionKey=str(each % 7))


def billed(client):
    start = {"ShardId": "shardId-000000000000", "ShardIteratorType": "TRIM_HORIZON"}
    iterator = client.get_shard_iterator(StreamName="billed", **start)["ShardIterator"]
    return sorted(
        json.loads(each["Data"])["order"] for each in client.get_records(ShardIterator=iterator)["Records"]
    )


@pytest.mark.timeout(1800)
def test_an_update_bills_each_large_order_once(local_kinesis, tmp_path):
    local_kinesis.create_stream("orders", shards=2)
    local_kinesis.create_stream("billed", shards=1)
    client = local_kinesis.client("kinesis")
    folder = tmp_path / "pipeline"
    shutil.copytree(PIPELINE, folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/orders-pipeline", str(tmp_path / "storage")))
    put(client, range(40))
    done = subprocess.run(
        [str(COMMAND), "run"],
        cwd=folder,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert billed(client) == list(range(34, 40))
