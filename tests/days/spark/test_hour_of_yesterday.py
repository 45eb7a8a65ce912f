"""A batch job reads the hour from 14:00 to 15:00, and reads the same when it is run again in the evening."""

from datetime import UTC, datetime

HOUR = """
    import sys

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    orders = (
        spark.read.format("kinesis")
        .option("streamName", "orders")
        .option("startingTimestamp", sys.argv[1])
        .option("endingTimestamp", sys.argv[2])
        .load()
    )
    for row in orders.selectExpr("cast(data as string) as data").collect():
        print(row.data)
"""


def test_a_batch_job_reads_one_hour(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    kinesis, clock = local_kinesis.client(), local_kinesis.clock
    two_o_clock_s = (clock.now_s() // 3600 + 2) * 3600
    # Every five minutes from 13:32:30 to 15:27:30, and once more in the evening.
    moments_s = [two_o_clock_s - 1650 + 300 * n for n in range(24)]
    for n, moment_s in enumerate(moments_s):
        clock.advance(moment_s - clock.now_s())
        records = [{"Data": b"order %d of %d" % (m, n), "PartitionKey": f"c{m}"} for m in range(50)]
        assert kinesis.put_records(StreamName="orders", Records=records)["FailedRecordCount"] == 0
    begin, end = (datetime.fromtimestamp(two_o_clock_s + 3600 * n, UTC).isoformat() for n in (0, 1))
    expected = [f"order {m} of {n}" for n in range(6, 18) for m in range(50)]

    assert programs.start(HOUR, begin, end, name="at-half-past-three").wait() == 0
    assert programs.printed() == dict.fromkeys(expected, 1)
    clock.advance(5 * 3600)
    assert programs.start(HOUR, begin, end, name="in-the-evening").wait() == 0
    assert programs.printed() == dict.fromkeys(expected, 2)
