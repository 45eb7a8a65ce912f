"""The progress of a running query: its lag, its leases, and the iterators that its processes keep."""

from __future__ import annotations

import random

from penstock.spark import lag
from penstock.spark.monitoring.progress import report_of
from penstock_local import LocalKinesis
from spark_support import numbered, put
from waiting import wait_until

_BATCHES_MAX = 60
REPORT_KEYS = {
    "bytes",
    "claims",
    "keptIterators",
    "leases",
    "maxMillisBehindLatest",
    "millisBehindLatest",
    "problems",
    "readsToTip",
    "records",
    "stream",
}


def test_a_running_query_tells_its_lag_its_claims_and_its_leases(job, client):
    put(client, job.stream, numbered(0, 100))
    run = job.start(maxRecordsPerTrigger="40")
    run.wait_for(100)

    def is_told():
        put(client, job.stream, numbered(0, 1))  # so that a batch follows, and reports
        return lag(run.query) and lag(run.query)[0].held_leases == 2

    wait_until(is_told, "the lag to be told")
    found = lag(run.query)[0]
    assert (found.stream, found.total_leases, found.lost_leases) == (job.stream, 2, 0)
    assert set(found.millis_behind_latest) == {"shardId-000000000000", "shardId-000000000001"}
    wait_until(lambda: lag(run.query)[0].max_millis_behind_latest == 0, "the query to be at the tip")
    assert set(reports_of(run.query)[-1]) == REPORT_KEYS


def test_the_lag_is_the_age_of_the_oldest_unread_record_before_and_after_it_is_read(job):
    """Records wait for an hour before the query starts; ten seconds pass before Spark shows new figures by itself."""
    with LocalKinesis(limits=False, settle_s=0) as server:  # one whose clock can be moved
        server.create_stream(job.stream, shards=2)
        put(server.client("kinesis"), job.stream, numbered(0, 100))
        server.clock.advance(3600)
        run = job.start(maxRecordsPerTrigger="60", endpointUrl=server.endpoint_url)
        run.wait_for(100)
        wait_until(
            lambda: lag(run.query) and lag(run.query)[0].max_millis_behind_latest == 0, "nothing to be unread"
        )
        assert not run.query.status["isDataAvailable"]
        reported = [max(report["millisBehindLatest"].values()) for report in reports_of(run.query)]
        assert all(3_600_000 <= each < 4_200_000 for each in reported[:2])
        run.query.stop()


def test_a_task_goes_on_with_the_iterator_that_its_process_kept(job, client):
    # Which of its Python processes gets a task is Spark's choice, so batches follow until one met its own iterator. How many
    # tasks they have changes without a pattern, so that the processes do not take turns for ever.
    chance = random.Random(0)
    run = job.start(maxRecordsPerTrigger="1000")
    kept, put_count = 0, 0
    for _ in range(_BATCHES_MAX):
        new = numbered(put_count, put_count + 20, keys=chance.choice((1, 20)))
        put(client, job.stream, new)
        put_count += len(new)
        run.wait_for(put_count)
        kept += sum(report["keptIterators"] for report in reports_of(run.query)[-2:])
        if kept:
            break
    assert kept, f"{_BATCHES_MAX} batches, and none went on with an iterator that was kept"
    assert run.numbers() == list(range(put_count))


def reports_of(query):
    found = [report_of(progress["sources"][0]) for progress in query.recentProgress]
    return [report for report in found if report]
