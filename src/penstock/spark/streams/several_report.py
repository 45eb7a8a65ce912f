"""The figures of a query of several streams: the sums, and each stream's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

_SUMS: Final = ("bytes", "claims", "keptIterators", "records")
_LEASES: Final = ("held", "lost", "taken", "total")


def without_batch_figures(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report of a stream that the last batch did not read, with zeros in place of an earlier batch's figures."""
    idle = {**report, **dict.fromkeys(_SUMS, 0)}
    return {**idle, "pushed": {"records": 0, "ends": {}}} if "pushed" in report else idle


def add_reports(reports: Sequence[dict[str, Any]], streams: str) -> dict[str, Any]:
    """Return the report of a query of several streams.

    Args:
        reports: The report of each stream, as `penstock.spark.driver.figures.progress_report` returns it; at least one.
        streams: The streams, as the options name them.
    """
    pushed = [report["pushed"] for report in reports if "pushed" in report]
    ends: Counter[str] = Counter()
    for each in pushed:
        ends.update(each["ends"])
    total = {"records": sum(each["records"] for each in pushed), "ends": dict(sorted(ends.items()))}
    return {
        **({"pushed": total} if pushed else {}),
        **{name: sum(report[name] for report in reports) for name in _SUMS},
        "leases": {name: sum(report["leases"][name] for report in reports) for name in _LEASES},
        "maxMillisBehindLatest": max(report["maxMillisBehindLatest"] for report in reports),
        "millisBehindLatest": {
            f"{report['stream']}:{shard}": millis
            for report in reports
            for shard, millis in report["millisBehindLatest"].items()
        },
        "problems": [
            f"{report['stream']}: {problem}" for report in reports for problem in report["problems"]
        ],
        "readsToTip": all(report["readsToTip"] for report in reports),
        "stream": streams,
        "streams": list(reports),
    }
