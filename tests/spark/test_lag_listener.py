"""The listener of a session's queries: its logs, metrics and warnings."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from penstock.errors import OptionError
from penstock.runtime.metrics_tally import MetricsTally
from penstock.spark import LagListener
from penstock.spark.monitoring.lag_listener import LagGrowth
from penstock.spark.streams.several_report import add_reports

RAN = {"addBatch": 30, "triggerExecution": 40}
WAITING = {"isDataAvailable": False, "isTriggerActive": False, "message": "Waiting for data to arrive"}


@pytest.fixture
def tally():
    return MetricsTally()


def progress_of(*behinds, records=10, durations=None, name="billing"):
    sources = [SimpleNamespace(latestOffset="of another source", numInputRows=99)]
    sources += [SimpleNamespace(latestOffset=report_of(behind), numInputRows=records) for behind in behinds]
    return SimpleNamespace(id="q-1", name=name, batchId=7, sources=sources, durationMs=durations or RAN)


def report_of(behind):
    return {
        "bytes": 80,
        "leases": {"held": len(behind), "lost": 0, "taken": 3, "total": 6},
        "millisBehindLatest": behind,
        "readsToTip": False,
        "records": 10,  # of the batch before
        "stream": "orders",
    }


def batch(listener, *behinds, **more):
    listener.onQueryProgress(SimpleNamespace(progress=progress_of(*behinds, **more)))


def gauges(tally):
    return {
        (name, dict(labels).get("shard")): value for (name, labels), value in tally.snapshot().gauges.items()
    }


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("it grows steadily: told for each ten", ([0, 5, 9, 10, 15, 19, 20], [0, 10])),
        ("a backlog is worked off", ([500, 400, 300, 0], [])),
        ("it is large, and stays", ([500, 505, 500, 509], [])),
        ("it grows from its lowest", ([50, 20, 25, 30, 0, 10], [20, 0])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_growth_is_told(why, told):
    lags, expected = told
    growth = LagGrowth(10)
    assert [low for low in map(growth.add, lags) if low is not None] == expected


def test_a_batch_is_logged_and_measured_with_the_querys_name(tally, caplog):
    listener = LagListener(metrics=tally)
    with caplog.at_level(logging.INFO, "penstock.spark"):
        batch(listener, {"shardId-0": 0, "shardId-1": 4_000})
        batch(listener, {"shardId-1": 5_000}, records=5)
    assert caplog.messages == [
        "query billing, batch 7: 10 records of stream orders; lag 4.0 s, 2 of 6 leases",
        "query billing, batch 7: 5 records of stream orders; lag 5.0 s, 1 of 6 leases",
    ]
    labels = (("query", "billing"), ("stream", "orders"))
    counters = tally.snapshot().counters
    assert dict(counters) == {("records", labels): 15}
    assert gauges(tally) == {("millis_behind_latest", "shardId-1"): 5_000}


def test_a_lag_that_grows_is_warned_of_with_the_shard_that_is_furthest_behind(caplog):
    listener = LagListener(warn_growth_s=60)
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        for lag_ms in (0, 59_000, 61_000):
            batch(listener, {"shardId-0": 0, "shardId-1": lag_ms})
    (message,) = caplog.messages
    assert message.startswith(
        "query billing falls behind: the lag of stream orders has grown from 0.0 to 61.0 s (shardId-1 is"
    )


def test_a_query_that_reads_a_stream_twice_has_two_lags(tally, caplog):
    listener = LagListener(warn_growth_s=60, metrics=tally)
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        for _ in range(3):  # the one works off a backlog, the other is at the tip
            batch(listener, {"shardId-0": 500_000, "shardId-1": 7}, {"shardId-0": 0})
    assert caplog.messages == []
    shown = {("millis_behind_latest", "shardId-0"): 500_000, ("millis_behind_latest", "shardId-1"): 7}
    assert gauges(tally) == shown
    batch(
        listener, {"shardId-0": 500_000}, {"shardId-0": 0, "shardId-1": 7}
    )  # a lease went from one to the other
    assert gauges(tally) == shown
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        batch(listener, {"shardId-0": 400_000}, {"shardId-0": 70_000})
    (message,) = caplog.messages
    assert "has grown from 0.0 to 70.0 s" in message


def test_a_query_that_waits_is_at_the_tip_and_one_that_ended_is_not_shown(tally):
    listener = LagListener(metrics=tally)
    batch(listener, {"shardId-0": 4_000})
    query = SimpleNamespace(
        lastProgress=progress_of({"shardId-0": 4_000}), isActive=True, status=WAITING, name=None
    )
    listener.spark = SimpleNamespace(streams=SimpleNamespace(get={"q-1": query}.get))
    listener.onQueryIdle(SimpleNamespace(id="q-1"))
    assert gauges(tally) == {("millis_behind_latest", "shardId-0"): 0}
    listener.onQueryTerminated(SimpleNamespace(id="q-1"))
    assert gauges(tally) == {}
    listener.onQueryIdle(SimpleNamespace(id="gone"))


def test_a_growth_of_nothing_is_refused():
    with pytest.raises(OptionError, match="warn_growth_s=0: expected more than 0"):
        LagListener(warn_growth_s=0)


def test_a_source_of_several_streams_has_the_lag_of_each_and_one_count(tally, caplog):
    streams = [
        {**report_of({"shardId-0": millis}), "stream": name} for name, millis in (("a", 0), ("b", 4_000))
    ]
    progress = progress_of({"shardId-0": 0})
    progress.sources[-1].latestOffset = add_reports([{**each, **REST} for each in streams], "a,b")
    with caplog.at_level(logging.INFO, "penstock.spark"):
        LagListener(metrics=tally).onQueryProgress(SimpleNamespace(progress=progress))
    assert "batch 7: 10 records of stream a,b; lag 4.0 s, 2 of 12 leases" in caplog.text
    shown = {dict(labels)["stream"]: value for (_, labels), value in tally.snapshot().gauges.items()}
    assert shown == {"a": 0, "b": 4_000}


REST = {"claims": 1, "keptIterators": 0, "maxMillisBehindLatest": 0, "problems": []}
