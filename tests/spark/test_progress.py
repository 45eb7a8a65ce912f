"""What a user sees of a running query: its lag, its leases, and the columns' event time."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from penstock.local import LocalKinesis
from penstock.spark import StreamLag, lag
from spark_support import numbered, put, wait_until

REPORT = {
    "bytes": 800,
    "claims": 2,
    "keptIterators": 1,
    "leases": {"held": 2, "lost": 1, "taken": 3, "total": 6},
    "maxMillisBehindLatest": 70,
    "millisBehindLatest": {"shardId-0": 0, "shardId-1": 70},
    "readsToTip": False,
    "records": 100,
    "stream": "orders",
}
LAG = StreamLag(
    stream="orders",
    millis_behind_latest={"shardId-0": 0, "shardId-1": 70},
    record_count=100,
    bytes_count=800,
    held_leases=2,
    total_leases=6,
    taken_leases=3,
    lost_leases=1,
)


@pytest.mark.parametrize("shape", ["json", "object", "text"])
def test_the_lag_is_read_from_whatever_shape_spark_gives_the_progress(shape):
    report = json.dumps(REPORT) if shape == "text" else REPORT
    progress = {"sources": [{"latestOffset": report}], "durationMs": {}}
    if shape == "object":
        progress = SimpleNamespace(sources=[SimpleNamespace(latestOffset=report)], durationMs={})
    assert lag(SimpleNamespace(lastProgress=progress, isActive=False)) == [LAG]
    assert LAG.max_millis_behind_latest == 70


def test_there_is_no_lag_before_the_first_progress_and_none_of_other_sources():
    others = [{"latestOffset": offset} for offset in (None, "12", "not json", {"topic": {"0": 5}})]
    assert lag(SimpleNamespace(lastProgress=None)) == []
    progress = {"sources": others, "durationMs": {}}
    assert lag(SimpleNamespace(lastProgress=progress, isActive=False)) == []


RAN = {"addBatch": 30, "triggerExecution": 40}
READING = {"isDataAvailable": True, "isTriggerActive": True, "message": "Processing new data"}
WAITING = {"isDataAvailable": False, "isTriggerActive": False, "message": "Waiting for data to arrive"}
STOPPED = {"isDataAvailable": False, "isTriggerActive": False, "message": "Stopped"}


@pytest.mark.parametrize(
    ("why", "reads_to_tip", "durations", "is_active", "status", "behind"),
    [
        ("a batch with a limit leaves what it leaves", False, RAN, True, READING, 70),
        ("a batch to the tip leaves what came after its planning", True, RAN, True, READING, 40),
        ("no batch ran: the figures are new", True, {"triggerExecution": 5}, True, READING, 70),
        ("the query has asked since, and nothing was there", False, RAN, True, WAITING, 0),
        ("a query that has ended knows no more", False, RAN, False, STOPPED, 70),
        ("it is just starting", False, RAN, True, {**WAITING, "message": "Initializing sources"}, 70),
    ],
)
def test_the_lag_follows_what_became_of_the_query_since_it_was_reported(
    why, reads_to_tip, durations, is_active, status, behind
):
    progress = {
        "sources": [{"latestOffset": {**REPORT, "readsToTip": reads_to_tip}}],
        "durationMs": durations,
    }
    query = SimpleNamespace(lastProgress=progress, isActive=is_active, status=status)
    assert lag(query)[0].millis_behind_latest == {"shardId-0": 0, "shardId-1": behind}, why


def test_a_running_query_tells_its_lag_its_claims_and_its_leases(job, client):
    put(client, job.stream, numbered(0, 100))
    run = job.start(maxRecordsPerTrigger="40")
    run.wait_for(100)
    wait_until(lambda: lag(run.query) and lag(run.query)[0].held_leases == 2, "the lag to be told")
    found = lag(run.query)[0]
    assert (found.stream, found.total_leases, found.lost_leases) == (job.stream, 2, 0)
    assert set(found.millis_behind_latest) == {"shardId-000000000000", "shardId-000000000001"}
    wait_until(lambda: lag(run.query)[0].max_millis_behind_latest == 0, "the query to be at the tip")
    assert set(reports_of(run.query)[-1]) == set(REPORT)


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
    # Which of its Python processes gets a task is Spark's choice, so batches follow until one met its own iterator;
    # every other batch has one task, so that the processes do not take turns for ever.
    run = job.start(maxRecordsPerTrigger="1000")
    kept, put_count = 0, 0
    for turn in range(60):
        new = numbered(put_count, put_count + 20, keys=20 if turn % 2 else 1)
        put(client, job.stream, new)
        put_count += len(new)
        run.wait_for(put_count)
        kept += sum(report["keptIterators"] for report in reports_of(run.query)[-2:])
        if kept:
            break
    assert kept, f"{turn + 1} batches, and none went on with an iterator that was kept"
    assert run.numbers() == list(range(put_count))


def reports_of(query):
    found = [progress["sources"][0]["latestOffset"] for progress in query.recentProgress]
    return [json.loads(report) for report in found if report]
