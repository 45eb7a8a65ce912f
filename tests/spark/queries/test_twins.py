"""Two living processes under one worker id, of which one or both are queries: one goes on, the other ends with an error."""

from __future__ import annotations

from contextlib import suppress

import pytest

from penstock import Consumer
from penstock.errors import AnotherDriver, ClaimConflict, WorkerIdInUse
from spark_support import numbered, put
from waiting import wait_until

ONE_ID = {"workerId": "w"}


def work_until_refused(running):
    """Run batches until the query ends; return its error."""
    errors = []

    def is_refused():
        try:
            running.batch()
        except (AnotherDriver, WorkerIdInUse) as error:
            errors.append(error)
        return bool(errors)

    wait_until(is_refused, "the error of the earlier process")
    return errors[0]


def batch_or_repeat(running):
    """Run a batch if there is one; repeat a task as Spark does, if a late write of the earlier process fails it."""
    with suppress(ClaimConflict):
        running.batch()


def consumer_of(query, handler):
    return Consumer(
        query.stream,
        query.given["applicationName"],
        handler,
        worker_id="w",
        starting_position="TRIM_HORIZON",
        lease_duration_s=5.0,
        endpoint_url=query.given["endpointUrl"],
        region="us-east-1",
        connection={"access_key_id": "local", "secret_access_key": "local"},
    )


def test_the_earlier_of_two_queries_with_one_worker_id_ends_with_an_error(query, client):
    first = query(**ONE_ID)
    put(client, first.stream, numbered(0, 20))
    first.drain()
    second = query(stream=first.stream, **ONE_ID)
    second.batch()
    error = work_until_refused(first)
    assert "worker" in str(error)
    put(client, first.stream, numbered(20, 40))
    wait_until(lambda: second.batch() or len({*first.numbers(), *second.numbers()}) >= 40, "every record")
    assert set(first.numbers()) | set(second.numbers()) == set(range(40))


def test_a_query_whose_worker_id_a_later_consumer_has_ends_with_an_error(query, client):
    first = query(**ONE_ID)
    put(client, first.stream, numbered(0, 20))
    first.drain()
    got = []
    later = consumer_of(first, lambda batch: got.extend(record.data for record in batch))
    later.start()
    try:
        assert isinstance(work_until_refused(first), WorkerIdInUse)
        put(client, first.stream, numbered(20, 40))
        wait_until(lambda: len(set(got)) >= 20, "the consumer's records")
        assert later.health().is_healthy
    finally:
        later.stop()


def test_a_consumer_whose_worker_id_a_later_query_has_ends_with_an_error(query, client):
    later = query(**ONE_ID)
    put(client, later.stream, numbered(0, 20))
    got = []
    first = consumer_of(later, lambda batch: got.extend(record.data for record in batch))
    first.start()
    wait_until(lambda: len(got) >= 20, "the consumer's records")
    batch_or_repeat(later)
    wait_until(lambda: not first.is_running, "the consumer's end")
    with pytest.raises(WorkerIdInUse, match=r"worker_id.* checkpoint location: let one run of it end"):
        first.stop()
    put(client, later.stream, numbered(20, 40))
    wait_until(lambda: batch_or_repeat(later) or len(later.rows) >= 20, "every record")
    assert set(later.numbers()) >= set(range(20, 40))


def test_a_killed_query_has_its_leases_at_once_and_is_no_second_process(query, client):
    running = query(**ONE_ID)
    put(client, running.stream, numbered(0, 20))
    running.drain()
    running.die()
    put(client, running.stream, numbered(20, 40))
    running.drain()
    assert running.numbers() == list(range(40))
    runs = {row.run.number for row in running.table.scan().leases}
    assert runs == {2}
