"""A stream that is deleted and created again under its name, while a query runs: shard ids are the same, records are not.

The reader is driven without Spark.
"""

from __future__ import annotations

import pytest

from penstock.errors import StreamChanged
from penstock.runtime import stream_name_check
from penstock.spark.batch import KinesisBatchReader
from penstock.spark.driver import joining
from penstock.spark.options.spark_options import parse_batch
from spark_support import numbered, put
from waiting import wait_until


@pytest.fixture(autouse=True)
def _nothing_is_believed(monkeypatch):
    """Describe the stream at every check, not only after ten seconds."""
    monkeypatch.setattr(stream_name_check, "_TRUSTED_S", 0.0)


def recreate(server, q, shards=2):
    q.client.delete_stream(StreamName=q.stream)
    wait_until(lambda: q.stream not in q.client.list_streams()["StreamNames"], "the stream to go")
    server.clock.advance(5)
    server.create_stream(q.stream, shards=shards)


def assert_told(error, q):
    text = str(error.value)
    assert q.stream in text
    assert "deleted and created again" in text
    assert f"application {q.options.application}" in text
    assert "new checkpoint location" in text


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "LATEST"])
def test_a_shard_in_which_nothing_was_read_is_not_taken_for_the_other_streams(server, query, start):
    q = query(startingPosition=start)
    assert q.plan() is None
    recreate(server, q)
    put(q.client, q.stream, numbered(0, 10))
    with pytest.raises(StreamChanged) as error:
        wait_until(lambda: q.batch() is not None, "the error")
    assert_told(error, q)
    assert q.rows == []


def test_a_query_that_goes_on_from_a_batch_that_was_not_read_refuses_too(server, query):
    q = query()
    put(q.client, q.stream, numbered(0, 10))
    planned = q.next_plan()
    q.die()
    recreate(server, q)
    put(q.client, q.stream, numbered(10, 20))
    with pytest.raises(StreamChanged) as error:
        q.execute(planned)
    assert_told(error, q)


def test_a_batch_whose_tasks_come_late_does_not_read_another_streams_records(server, query):
    q = query()
    put(q.client, q.stream, numbered(0, 10))
    planned = q.next_plan()
    parts = q.reader.partitions({}, planned)
    recreate(server, q)
    server.clock.advance(60)
    put(q.client, q.stream, numbered(10, 20))
    for part in parts:
        with pytest.raises(StreamChanged) as error:
            q.read(part)
        assert_told(error, q)


def test_more_shards_of_another_stream_get_no_leases(server, query):
    q = query()
    assert q.plan() is None
    recreate(server, q, shards=4)
    with pytest.raises(StreamChanged) as error:
        wait_until(lambda: q.batch() is not None, "the error")
    assert_told(error, q)
    assert len(q.table.scan().leases) == 2


def test_an_iterator_that_expired_meanwhile_is_not_begun_anew_in_another_stream(server, query):
    q = query()
    assert q.plan() is None
    recreate(server, q)
    server.clock.advance(400)
    put(q.client, q.stream, numbered(0, 10))
    with pytest.raises(StreamChanged) as error:
        wait_until(lambda: q.batch() is not None, "the error")
    assert_told(error, q)
    assert q.rows == []


def test_the_shards_of_another_stream_get_no_leases_while_a_query_joins(server, query, monkeypatch):
    q = query()
    monkeypatch.setattr(joining, "register_consumer", lambda *_: recreate(server, q))
    with pytest.raises(StreamChanged) as error:
        q.plan()
    assert_told(error, q)
    assert not q.table.scan().leases


def test_a_batch_read_whose_tasks_come_late_does_not_read_another_streams_records(server, query):
    q = query()
    put(q.client, q.stream, numbered(0, 10))
    wanted = ("streamName", "endpointUrl", "region", "awsAccessKeyId", "awsSecretKey", "startingPosition")
    reader = KinesisBatchReader(parse_batch({name: q.given[name] for name in wanted})[0])
    parts = reader.partitions()
    recreate(server, q)
    put(q.client, q.stream, numbered(10, 20))
    server.clock.advance(60)
    for part in parts:
        with pytest.raises(StreamChanged, match=r"created again.*Start the read again"):
            list(reader.read(part))


def test_a_task_that_may_not_describe_the_stream_reads_on_and_says_so(server, query, caplog):
    q = query(shards=1)
    put(q.client, q.stream, numbered(0, 10))
    planned = q.next_plan()
    server.clock.advance(60)
    server.faults.error("DescribeStreamSummary", count=None, status=400, code="AccessDeniedException")
    q.commit(planned, q.execute(planned))
    assert q.numbers() == list(range(10))
    assert "cannot check whether it is still the stream of the plan" in caplog.text
