"""A job moves from Databricks to a cluster of its own, with the options that it had."""

import json

from user_programs import all_records
from waiting import wait_by_limited_calls

JOB = """
    import json
    import sys

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    reader = spark.readStream.format("kinesis").options(**json.loads(sys.argv[1]))
    query = (
        reader.load()
        .selectExpr("partitionKey", "data")
        .writeStream.format("kinesis")
        .option("streamName", "billed")
        .option("checkpointLocation", sys.argv[2])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(sum(progress.numInputRows for progress in query.recentProgress))
"""
OPTIONS = {
    "streamName": "orders",
    "region": "us-east-1",
    "initialPosition": "trim_horizon",
    "consumerMode": "efo",
    "consumerNamePrefix": "databricks_",
    "consumerName": "billing",
    "consumerRefreshInterval": "300s",
    "requireConsumerDeregistration": "true",
    "maxFetchDuration": "10s",
    "minFetchPeriod": "400ms",
    "shardsPerTask": "5",
    "serviceCredential": "kinesis-reader",
}


def test_a_job_runs_with_its_old_options_but_the_one_that_only_databricks_can_use(
    local_kinesis, programs, tmp_path
):
    for name in ("orders", "billed"):
        local_kinesis.create_stream(name, shards=2)
    client = local_kinesis.client()
    records = [{"Data": b"%d" % number, "PartitionKey": f"c{number % 9}"} for number in range(300)]
    assert client.put_records(StreamName="orders", Records=records)["FailedRecordCount"] == 0

    checkpoint = str(tmp_path / "checkpoint")
    job = programs.start(JOB, json.dumps(OPTIONS), checkpoint, name="first-try")
    assert job.wait() == 1
    assert "option serviceCredential: it names a credential of Databricks' Unity Catalog" in job.log()

    without = {name: value for name, value in OPTIONS.items() if name != "serviceCredential"}
    job = programs.start(JOB, json.dumps(without), checkpoint, name="second-try")
    assert (job.wait(), job.lines()) == (0, ["300"])
    for name in ("consumerRefreshInterval", "maxFetchDuration"):
        assert f"option {name} has no effect: " in job.log()
    assert sorted(int(record.data) for record in all_records(local_kinesis, "billed")) == list(range(300))
    arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    assert local_kinesis.calls().count("RegisterStreamConsumer") == 1
    wait_by_limited_calls(
        lambda: not client.list_stream_consumers(StreamARN=arn)["Consumers"], "the consumer's end"
    )
