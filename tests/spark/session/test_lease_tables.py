"""Queries whose leases are in a folder instead of a DynamoDB table."""

from spark_support import numbered, put


def test_a_query_with_its_leases_in_a_folder_reads_everything_once_also_after_a_restart(
    job, stream, client, tmp_path
):
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
