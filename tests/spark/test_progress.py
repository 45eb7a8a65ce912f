"""The progress of a running query: its lag, its leases, and the columns' event time."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from penstock.spark import StreamLag, lag
from penstock.spark.monitoring.progress import with_report

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


OFFSET = with_report({"batch": 3, "whole": True}, REPORT)


@pytest.mark.parametrize(
    ("shape", "report"),
    [
        ("json", REPORT),
        ("object", REPORT),
        ("text", json.dumps(REPORT)),
        ("in the offset", OFFSET),
        ("in the offset, as PySpark 4.0 shows it", str(OFFSET)),
    ],
)
def test_the_lag_is_read_from_whatever_shape_spark_gives_the_progress(shape, report):
    progress = {"sources": [{"latestOffset": report}], "durationMs": {}}
    if shape == "object":
        progress = SimpleNamespace(sources=[SimpleNamespace(latestOffset=report)], durationMs={})
    assert lag(SimpleNamespace(lastProgress=progress, isActive=False)) == [LAG]
    assert LAG.max_millis_behind_latest == 70


def test_a_notebook_shows_the_lag_as_a_table():
    progress = {"sources": [{"latestOffset": REPORT}], "durationMs": {}}
    shown = lag(SimpleNamespace(lastProgress=progress, isActive=False))._repr_html_()
    assert shown.count("<tr>") == 3
    assert "<tr><td>orders</td><td>shardId-1</td><td>0.1</td><td>100</td><td>800</td>" in shown


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


def test_an_available_now_run_leaves_what_came_since_it_began():
    report = {
        **REPORT,
        "millisBehindLatest": {"shardId-1": 1_800_000},
        "readsToTip": True,
        "tipAgeMillis": 3000,
    }
    progress = {"sources": [{"latestOffset": report}], "durationMs": RAN}
    query = SimpleNamespace(lastProgress=progress, isActive=False, status=STOPPED)
    assert lag(query)[0].millis_behind_latest == {"shardId-1": 3040}
