"""A nightly job loses its lease table, gets another name, or finds the table as it was a week ago."""

from collections import Counter

import pytest
from pyspark.sql import functions as f

from waiting import wait_until


class Nights:
    """A job that a scheduler runs each night, from the checkpoint location that it has always had."""

    def __init__(self, spark, stream, checkpoint):
        self.spark = spark
        self.stream = stream
        self.checkpoint = str(checkpoint)
        self.batches = []

    def run(self, **options):
        """One night: the job reads what has come, and ends."""
        query = (
            self.spark.readStream.format("kinesis")
            .option("streamName", self.stream)
            .option("startingPosition", "TRIM_HORIZON")
            .options(**options)
            .load()
            .writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _keep(self, batch, _batch_id):
        rows = batch.select("shardId", f.col("data").cast("string")).collect()
        if rows:
            self.batches.append([(shard, int(data)) for shard, data in rows])

    @property
    def numbers(self):
        return [number for batch in self.batches for _, number in batch]

    @property
    def doubled(self):
        return sorted(number for number, count in Counter(self.numbers).items() if count > 1)


@pytest.fixture
def nights(spark, stream, tmp_path):
    return Nights(spark, stream, tmp_path / "checkpoint")


@pytest.fixture
def day(client, stream):
    """Let a day's hundred orders come."""
    numbers = iter(range(10_000))

    def come():
        orders = [next(numbers) for _ in range(100)]
        records = [{"Data": b"%d" % order, "PartitionKey": f"c{order % 20}"} for order in orders]
        assert client.put_records(StreamName=stream, Records=records)["FailedRecordCount"] == 0

    return come


def split_a_shard(client, stream):
    shard = client.list_shards(StreamName=stream)["Shards"][1]
    low, high = (int(shard["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey"))
    client.split_shard(
        StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high) // 2)
    )
    wait_until(lambda: len(client.list_shards(StreamName=stream)["Shards"]) == 4, "the split")


def test_a_nightly_job_goes_on_after_a_split_and_a_deleted_lease_table(kinesis, client, stream, nights, day):
    for _ in range(2):
        day()
        nights.run(applicationName=stream)
    day()
    split_a_shard(client, stream)
    nights.run(applicationName=stream)
    day()
    nights.run(applicationName=stream)
    last = sorted(number for _, number in nights.batches[-1])

    kinesis.client("dynamodb").delete_table(TableName=stream)
    for _ in range(3):
        day()
        nights.run(applicationName=stream)

    assert set(nights.numbers) == set(range(700))
    assert nights.doubled == last  # nobody knows any more how far the last batch was read


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"applicationName": "{}-billing"}),
        # Queries without a JVM make both moves, too: tests/spark/queries/test_lost_leases.py.
        pytest.param(
            {"applicationName": "{}-test"}, {"applicationName": "{}-billing"}, marks=pytest.mark.soak
        ),
        pytest.param(
            {"applicationName": "{}-billing"},
            {"applicationName": "{}-billing", "leaseTable": "file://{}/leases"},
            marks=pytest.mark.soak,
        ),
    ],
    ids=["from a laptop to production", "renamed", "moved to a folder"],
)
def test_an_application_gets_another_name(kinesis, client, stream, nights, day, tmp_path, before, after):
    before, after = (
        {name: value.format(tmp_path if "://" in value else stream) for name, value in options.items()}
        for options in (before, after)
    )
    day()
    nights.run(**before)
    split_a_shard(client, stream)
    day()
    nights.run(**before)

    nights.run(**after)  # the same night again, under the new name: there is nothing to read
    assert sorted(nights.numbers) == list(range(200))

    for _ in range(2):
        day()
        nights.run(**after)
    former = before.get("applicationName", f"penstock-{stream}")
    if "leaseTable" in after or former != after["applicationName"]:
        kinesis.client("dynamodb").delete_table(TableName=former)  # it is not needed any more
    day()
    nights.run(**after)
    assert sorted(nights.numbers) == list(range(500))


def test_a_lease_table_is_restored_from_the_backup_of_last_week(kinesis, client, stream, nights, day):
    dynamodb = kinesis.client("dynamodb")
    day()
    nights.run(applicationName=stream)
    backup = dynamodb.create_backup(TableName=stream, BackupName="weekly")["BackupDetails"]["BackupArn"]
    split_a_shard(client, stream)
    for _ in range(3):
        day()
        nights.run(applicationName=stream)
    last = sorted(number for _, number in nights.batches[-1])

    dynamodb.delete_table(TableName=stream)
    dynamodb.restore_table_from_backup(TargetTableName=stream, BackupArn=backup)
    for _ in range(2):
        day()
        nights.run(applicationName=stream)

    assert set(nights.numbers) == set(range(600))
    assert nights.doubled == last
