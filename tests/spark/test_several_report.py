"""The figures of a query of several streams."""

from __future__ import annotations

from penstock.spark.streams.several_report import add_reports, without_batch_figures


def report(stream, records, millis, **more):
    return {
        "bytes": 10 * records,
        "claims": 1,
        "keptIterators": 1,
        "leases": {"held": 1, "lost": 0, "taken": 2, "total": 3},
        "maxMillisBehindLatest": millis,
        "millisBehindLatest": {"shardId-0": millis},
        "problems": ["Renew: throttled"] if millis else [],
        "readsToTip": not millis,
        "records": records,
        "stream": stream,
        **more,
    }


def test_the_figures_add_up_and_name_their_streams():
    streams = [report("a", 3, 0), report("b", 4, 500)]
    assert add_reports(streams, "a,b") == {
        "bytes": 70,
        "claims": 2,
        "keptIterators": 2,
        "leases": {"held": 2, "lost": 0, "taken": 4, "total": 6},
        "maxMillisBehindLatest": 500,
        "millisBehindLatest": {"a:shardId-0": 0, "b:shardId-0": 500},
        "problems": ["b: Renew: throttled"],
        "readsToTip": False,
        "records": 7,
        "stream": "a,b",
        "streams": streams,
    }


def test_pushed_records_add_up():
    pushed = [{"records": 2, "ends": {"expired": 1}}, {"records": 3, "ends": {"expired": 2, "lost": 1}}]
    both = [report(name, 5, 0, pushed=each) for name, each in zip("ab", pushed, strict=True)]
    assert add_reports(both, "a,b")["pushed"] == {"records": 5, "ends": {"expired": 3, "lost": 1}}
    assert without_batch_figures(both[0])["pushed"] == {"records": 0, "ends": {}}


def test_a_stream_without_a_part_in_the_last_batch_has_no_records_of_it_and_keeps_its_lag():
    idle = without_batch_figures(report("b", 4, 500))
    assert (idle["records"], idle["bytes"], idle["claims"]) == (0, 0, 0)
    assert idle["millisBehindLatest"] == {"shardId-0": 500}
