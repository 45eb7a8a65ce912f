"""A Spark that passes a source neither a batch's start nor a limit: 4.0 and 4.1, imitated on the installed Spark."""

from __future__ import annotations

import logging
import time

import pytest

from penstock.errors import UsageError
from penstock.spark.monitoring.progress import report_of
from penstock.spark.options.table_properties import UNTIL_MS
from spark_support import numbered, put, wait_for_next_second

QUERY_OPTIONS = {"is_told_starts": False}


def test_a_query_goes_on_where_it_was_after_each_kind_of_restart(query, client):
    q = query()
    put(client, q.stream, numbered(0, 40))
    q.drain()
    q.die()  # the last batch is committed
    put(client, q.stream, numbered(40, 70))
    end = q.next_plan()
    first = q.execute(end)
    put(client, q.stream, numbered(70, 90))
    q.die()  # it is not: Spark runs it again
    assert q.execute(end) == first
    q.commit(end, first)
    q.drain()
    assert q.numbers() == list(range(90))


def test_limits_hold_without_being_asked_for(query, client):
    q = query(maxRecordsPerTrigger="30")
    put(client, q.stream, numbered(0, 100))
    sizes = []
    while len(q.rows) < 100:
        sizes.append(len(q.next_batch()))
    assert max(sizes) <= 30
    assert q.numbers() == list(range(100))


def test_the_first_batch_of_a_run_reads_every_shard_since_it_may_be_the_only_one(query, client):
    q = query(shards=6)
    put(client, q.stream, numbered(0, 300))
    assert len(q.next_batch()) == 300
    q.reader.stop()
    q.reader = q.fresh()
    put(client, q.stream, numbered(300, 600))
    assert len(q.next_batch()) == 300
    assert q.numbers() == list(range(600))


@pytest.mark.parametrize("limit", [{"maxRecordsPerTrigger": "30"}, {"maxRecordsPerShard": "10"}])
def test_a_run_that_ends_after_one_limited_batch_says_that_there_may_be_more(query, client, caplog, limit):
    q = query(**limit)
    put(client, q.stream, numbered(0, 100))
    q.next_batch()
    with caplog.at_level(logging.WARNING, logger="penstock.spark"):
        q.reader.stop()
    assert f"this run ends after one batch, which the query limits by {next(iter(limit))}." in caplog.text


@pytest.mark.parametrize("options", [{}, {"maxRecordsPerTrigger": "30"}])
def test_a_run_of_several_batches_ends_without_a_word(query, client, caplog, options):
    q = query(**options)
    for start in (0, 10):
        put(client, q.stream, numbered(start, start + 10))
        q.next_batch()
    with caplog.at_level(logging.WARNING, logger="penstock.spark"):
        q.reader.stop()
    assert "this run ends after one batch" not in caplog.text


def test_the_offset_carries_the_report_that_this_spark_does_not_ask_for(query, client):
    q = query()
    put(client, q.stream, numbered(0, 20))
    q.next_batch()
    put(client, q.stream, numbered(20, 40))
    end = q.next_plan()
    report = report_of({"latestOffset": end})
    assert (report["stream"], report["records"]) == (q.stream, 20)
    q.die()
    q.commit(end, q.execute(end))
    assert q.plan() is None  # and is returned as it was logged


def test_an_offset_that_is_asked_for_before_the_log_is_read_is_refused(query, client):
    q = query()
    put(client, q.stream, numbered(0, 20))
    q.drain()
    q.reader.stop()
    put(client, q.stream, numbered(20, 40))
    hasty = q.fresh()._reader
    hasty.latestOffset()
    with pytest.raises(UsageError, match=r"triggerAvailableNowWrapper\.enabled"):
        hasty.partitions(q.done, q.done)
    hasty.stop()
    q.reader = q.fresh()
    q.drain()
    assert q.numbers() == list(range(40))


def test_a_checkpoint_location_goes_on_with_a_later_spark_and_back(query, client):
    q = query()
    for number, is_told_starts in enumerate((False, True, False, True)):
        q.reader.stop()
        q.is_told_starts = is_told_starts
        q.reader = q.fresh()
        put(client, q.stream, numbered(30 * number, 30 * number + 30))
        q.drain()
    put(client, q.stream, numbered(120, 150))
    q.is_told_starts = False
    q.die()
    end = q.next_plan()
    first = q.execute(end)
    q.is_told_starts = True
    q.die()
    assert q.execute(end) == first
    q.commit(end, first)
    q.drain()
    assert q.numbers() == list(range(150))


def test_runs_with_an_end_read_all_earlier_records_though_later_ones_arrive(query, client, caplog):
    q = query(maxRecordsPerTrigger="20")
    put(client, q.stream, numbered(0, 40))
    # The server dates records by this machine's clock.
    wait_for_next_second()
    until_ms = int(time.time() * 1000)
    q.given[UNTIL_MS] = str(until_ms)
    first = 40
    with caplog.at_level(logging.WARNING, logger="penstock.spark"):
        for _ in range(30):
            put(client, q.stream, numbered(first, first + 20))
            first += 20
            before = q.done
            q.night()
            if q.done is before:
                break
        else:
            pytest.fail("the runs go on")
    assert q.numbers() == list(range(40))
    assert "this run ends after one batch" not in caplog.text
