"""Queries whose leases are in a folder or a bucket instead of a DynamoDB table."""

import pytest
from pyspark.errors import StreamingQueryException

from spark_support import numbered, put
from waiting import DEADLINE_S, wait_until


def test_a_folder_that_is_removed_under_a_query_repeats_a_batch_and_loses_nothing(
    job, stream, client, tmp_path
):
    folder = tmp_path / "leases"
    put(client, stream, numbered(0, 40))
    run = job.start(leaseTable=f"file://{folder}")
    run.wait_for(40)
    folder.rename(tmp_path / "trash")
    put(client, stream, numbered(40, 80))
    wait_until(lambda: set(run.numbers()) >= set(range(80)) or run.failed(), "all records")
    assert run.query.exception() is None
    listed = sorted(shard["ShardId"] for shard in client.list_shards(StreamName=stream)["Shards"])
    wait_until(lambda: sorted(each.stem for each in folder.glob("*.json")) == listed, "the leases")


@pytest.fixture
def bucket(running_bucket):
    """The small S3 of the Spark session, empty and whole before and after."""
    running_bucket.clear()
    yield running_bucket
    running_bucket.clear()


def test_a_query_with_leases_in_a_folder_reads_once_also_after_a_restart(job, stream, client, tmp_path):
    options = {"leaseTable": f"file://{tmp_path}/leases"}
    put(client, stream, numbered(0, 100))
    run = job.start(**options)
    run.wait_for(100)
    run.query.stop()
    put(client, stream, numbered(100, 150))
    run = job.start(**options)
    run.wait_for(150)
    assert run.numbers() == list(range(150))
    leases = sorted(each.stem for each in (tmp_path / "leases").glob("*.json"))
    assert leases == sorted(shard["ShardId"] for shard in client.list_shards(StreamName=stream)["Shards"])


def test_a_query_with_its_leases_in_a_bucket_reads_everything_once_also_after_a_restart(
    job, stream, client, bucket
):
    options = {"leaseTable": "s3://acme/leases"}
    bucket.objects["leases/other/shardId-000000000000.json"] = b"another application's"
    put(client, stream, numbered(0, 100))
    run = job.start(**options)
    run.wait_for(100)
    run.query.stop()
    put(client, stream, numbered(100, 150))
    run = job.start(**options)
    run.wait_for(150)
    assert run.numbers() == list(range(150))
    listed = sorted(shard["ShardId"] for shard in client.list_shards(StreamName=stream)["Shards"])
    assert bucket.keys("leases/shardId") == [f"leases/{shard}.json" for shard in listed]
    assert bucket.gets("leases/other/shardId-000000000000.json") == 0


def test_a_query_is_refused_a_bucket_without_conditional_writes(job, stream, bucket):
    bucket.ignored = frozenset({"If-None-Match", "If-Match"})
    bucket.objects["refused/"] = b""  # as the console makes it
    run = job.start(leaseTable="s3://acme/refused")
    with pytest.raises(StreamingQueryException, match="bucket acme does not honour conditional writes"):
        run.query.awaitTermination(DEADLINE_S)
    # A query of the test before may still release its leases, in a folder of its own.
    assert bucket.keys("refused/") == ["refused/"]
