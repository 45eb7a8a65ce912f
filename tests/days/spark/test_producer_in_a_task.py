"""A task of Spark puts records through a producer: in a `with` block all arrive, and without one it is refused."""

import pytest

from user_programs import all_records


def test_every_partition_puts_its_rows(kinesis, stream, spark):
    def put(rows):
        from penstock import Producer

        with Producer(stream=stream) as producer:
            for row in rows:
                producer.put(b"%d" % row.id, "k")

    spark.range(0, 200, 1, 4).rdd.foreachPartition(put)
    assert sorted(int(record.data) for record in all_records(kinesis, stream)) == list(range(200))


def test_a_producer_that_a_task_leaves_open_is_refused(kinesis, stream, spark):
    def put(rows):
        from penstock import Producer

        producer = Producer(stream=stream)
        for row in rows:
            producer.put(b"%d" % row.id, "k")

    with pytest.raises(Exception, match="works only in a `with` block"):
        spark.range(0, 200, 1, 4).rdd.foreachPartition(put)
    assert all_records(kinesis, stream) == []
