"""Two streams under one applicationName are refused: shard ids are the same in every stream.

The reader is driven without Spark.
"""

from __future__ import annotations

import re
import threading
import uuid

import pytest

from lease_hands import put_java_row
from penstock.errors import OptionError, PenstockError, StreamChanged
from spark_support import numbered, put
from waiting import wait_until


def assert_refused(error, q, other):
    text = str(error.value)
    assert q.options.lease_table in text
    assert re.search(rf"{q.stream}\b", text)
    assert re.search(rf"{other.stream}\b", text)
    assert "choose another applicationName" in text


@pytest.mark.parametrize("shards", [(2, 2), (1, 3), (3, 1)])
@pytest.mark.parametrize("are_empty", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_second_stream_under_one_application_is_refused_and_nothing_is_read(
    query, client, shards, are_empty, goes_on
):
    orders = query(shards=shards[0])
    payments = query(shards=shards[1], applicationName=orders.given["applicationName"])
    if not are_empty:
        put(client, orders.stream, numbered(0, 10))
        put(client, payments.stream, numbered(0, 10))
    orders.batch()
    if not goes_on:
        orders.reader.stop()
        orders.reader = orders.fresh()
    with pytest.raises(OptionError) as error:
        payments.plan()
    assert_refused(error, payments, orders)
    put(client, orders.stream, numbered(10, 20))
    orders.drain()
    assert orders.numbers() == list(range(10 if are_empty else 0, 20))


def test_two_streams_that_begin_together_share_no_lease_and_one_is_refused(query, client):
    orders = query(shards=2, leaseDuration="2s")
    payments = query(shards=2, leaseDuration="2s", applicationName=orders.given["applicationName"])
    put(client, orders.stream, numbered(0, 100))
    put(client, payments.stream, numbered(0, 100))
    errors = {}

    def work(q):
        try:
            wait_until(lambda: errors or (q.batch() is None and len(q.rows) == 0), "one to be refused")
            q.drain()
        except PenstockError as error:
            errors[q.stream] = error

    threads = [threading.Thread(target=work, args=(q,)) for q in (orders, payments)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors
    for q in (orders, payments):
        assert q.stream in errors or q.numbers() == list(range(100))
        assert not (q.stream in errors and q.rows)


def test_a_table_written_only_by_java_workers_is_identified_by_hash_ranges(server, query, client):
    java = query(shards=3)
    q = query(shards=2, applicationName=java.given["applicationName"])
    put(client, q.stream, numbered(0, 10))
    put_java_row(server, java, "TRIM_HORIZON")
    with pytest.raises(
        OptionError, match=f"lease table {q.options.lease_table} is not one of stream {q.stream}"
    ):
        q.plan()


def test_a_table_that_java_workers_wrote_for_this_stream_is_taken_over(server, query, client):
    q = query(shards=2)
    put(client, q.stream, numbered(0, 20))
    for place in (0, 1):
        put_java_row(server, q, "TRIM_HORIZON", place)
    q.drain()
    assert q.numbers() == list(range(20))
    assert {row.stream.arn.rpartition("/")[2] for row in q.table.scan().leases} == {q.stream}


def test_a_stream_that_was_deleted_and_made_again_under_its_name_is_refused(server, query, client):
    q = query(shards=2)
    put(client, q.stream, numbered(0, 20))
    q.drain()
    q.reader.stop()
    client.delete_stream(StreamName=q.stream)
    wait_until(lambda: q.stream not in client.list_streams()["StreamNames"], "the stream to go")
    server.clock.advance(5)
    server.create_stream(q.stream, shards=2)
    put(client, q.stream, numbered(20, 40))
    q.reader = q.fresh()
    with pytest.raises(StreamChanged, match="deleted and created"):
        q.plan()
    again = query(stream=q.stream)  # a new checkpoint location, and the application's name as before
    with pytest.raises(OptionError, match="created"):
        again.plan()
    anew = query(stream=q.stream, applicationName=f"app-{uuid.uuid4().hex[:8]}")
    anew.drain()
    assert anew.numbers() == list(range(20, 40))
