"""Orders are copied to a second stream, for a team that shall not read the first one."""

import pytest

from penstock import Producer
from user_programs import all_records

COPY = """
    import sys

    from pyspark.sql import SparkSession

    source, target, checkpoint, *select = sys.argv[1:]
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    orders = (
        spark.readStream.format("kinesis")
        .option("streamName", source)
        .option("applicationName", "copy-orders")
        .option("startingPosition", "TRIM_HORIZON")
        .load()
    )
    if select:
        orders = orders.select(*select)
    writer = orders.writeStream.format("kinesis").option("checkpointLocation", checkpoint)
    if target:
        writer = writer.option("streamName", target)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    print(sum(progress.numInputRows for progress in query.recentProgress))
"""
OVERRULED = "the column streamName of "
OWN_SOURCE = "this query writes to the stream that it reads"


def put_orders(first, end):
    with Producer(stream="orders") as producer:
        for number in range(first, end):
            producer.put(b"order %d" % number, f"c{number % 20}", str(number) if number % 10 == 0 else None)


def test_a_job_copies_a_stream_night_after_night(local_kinesis, programs, tmp_path):
    local_kinesis.create_stream("orders", shards=2)
    local_kinesis.create_stream("copies", shards=3)
    arguments = ("orders", "copies", str(tmp_path / "checkpoint"))
    for night in range(2):
        put_orders(500 * night, 500 * night + 500)
        copy = programs.start(COPY, *arguments, name=f"night-{night}")
        assert (copy.wait(), copy.lines()) == (0, ["500"])
        # The rows' column names the stream that they were read from. A query says once that the option decides.
        assert copy.log().count(OVERRULED) == (night == 0)
        assert OWN_SOURCE not in copy.log()
    for stream in ("orders", "copies"):  # the copy holds each record once, and the source is as it was
        found = all_records(local_kinesis, stream)
        assert sorted(int(record.data.split()[1]) for record in found) == list(range(1000))
    keys_of = [
        {record.data: record.partition_key for record in all_records(local_kinesis, stream)}
        for stream in ("orders", "copies")
    ]
    assert keys_of[0] == keys_of[1]


@pytest.mark.parametrize(
    "columns", [(), ("streamName", "partitionKey", "data")], ids=["all columns", "some columns"]
)
def test_a_job_that_names_no_target_copies_nothing_without_a_word(local_kinesis, programs, tmp_path, columns):
    local_kinesis.create_stream("orders", shards=2)
    put_orders(0, 100)
    copy = programs.start(COPY, "orders", "", str(tmp_path / "checkpoint"), *columns, name="job")
    if columns:  # the column routes, as it was told to, to the source; and the log warns
        assert (copy.wait(), copy.lines(), copy.log().count(OWN_SOURCE)) == (0, ["100"], 1)
        assert len(all_records(local_kinesis, "orders")) == 200
    else:
        assert copy.wait() == 1
        assert "where to write? Set option streamName: these rows were read from a stream" in copy.log()
        assert len(all_records(local_kinesis, "orders")) == 100


def test_a_job_that_names_its_source_as_the_target_is_warned_once(local_kinesis, programs, tmp_path):
    local_kinesis.create_stream("orders", shards=2)
    put_orders(0, 100)
    checkpoint = str(tmp_path / "checkpoint")
    for run, count in enumerate((100, 100)):  # the second run reads what the first one wrote
        copy = programs.start(COPY, "orders", "orders", checkpoint, name=f"run-{run}")
        assert (copy.wait(), copy.lines()) == (0, [str(count)])
        assert copy.log().count(OWN_SOURCE) == (run == 0)
    assert len(all_records(local_kinesis, "orders")) == 300
