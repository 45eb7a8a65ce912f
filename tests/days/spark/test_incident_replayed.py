"""A Spark query reads a replay of yesterday: the same rows as the recording, which Spark reads as a file."""

from __future__ import annotations

from penstock.cli import main as cli
from penstock_local import LocalKinesis
from waiting import DEADLINE_S

COLUMNS = ["shardId", "sequenceNumber", "partitionKey", "data", "approximateArrivalTimestamp"]


def rows_of(frame):
    rows = frame.select(*COLUMNS).collect()
    return sorted((tuple(row) for row in rows), key=lambda row: (row[0], int(row[1])))


def read_all(spark, server, stream, folder):
    """Return what a streaming query reads up to the tip."""
    frame = (
        spark.readStream.format("kinesis")
        .option("streamName", stream)
        .option("endpointUrl", server.endpoint_url)
        .option("region", server.region)
        .option("startingPosition", "TRIM_HORIZON")
        .load()
    )
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(DEADLINE_S)
    return rows_of(spark.read.parquet(str(folder / "rows")))


def test_a_query_reads_from_the_replay_what_is_in_the_recording(spark, client, stream, tmp_path):
    path = tmp_path / "incident.penstock"
    for part in ("before", "after"):
        records = [{"Data": f"{part} {n}", "PartitionKey": f"k{n % 7}"} for n in range(200)]
        assert client.put_records(StreamName=stream, Records=records)["FailedRecordCount"] == 0
        if part == "before":
            client.split_shard(
                StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
            )
            client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    assert cli.main(["record", stream, "--since", "1h", "-o", str(path)]) == 0
    recorded = rows_of(spark.read.parquet(str(path)))
    assert len(recorded) == 400
    assert len({row[0] for row in recorded}) == 4
    with LocalKinesis(replay=(path,), limits=False) as server:
        assert read_all(spark, server, stream, tmp_path) == recorded
