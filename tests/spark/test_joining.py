"""The order of the checks by which a query joins its application."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.core.batches.offsets import INITIAL_OFFSET
from penstock.core.shard import StreamSummary
from penstock.spark.driver import joining
from penstock.spark.options.spark_options import parse_source

CHECKS = [
    "check_stream",
    "refuse_future_start",
    "ensure_exists",
    "refuse_shared_default_name",
    "scan_leases",
    "refuse_other_stream",
    "check_named_shards",
    "warn_of_ignored_start",
    "register_consumer",
    "warn_of_skipped_shards",
    "open_metrics",
]


def test_nothing_is_made_before_the_checks_that_can_refuse_the_query(monkeypatch):
    called = []

    def noting(name, result=None):
        return lambda *_, **__: called.append(name) or result

    for name in set(CHECKS) - {"ensure_exists", "open_metrics"}:
        monkeypatch.setattr(joining, name, noting(name, {} if name == "scan_leases" else None))
    monkeypatch.setattr(joining, "QueryWorker", lambda *_, **__: None)
    ports = SimpleNamespace(
        kinesis=SimpleNamespace(fetch_summary=lambda name: StreamSummary(name, "arn", "ACTIVE", 1)),
        table=SimpleNamespace(ensure_exists=noting("ensure_exists")),
        clock=None,
        chance=None,
        name_check_of=None,
        kcl3=None,
        open_metrics=noting("open_metrics"),
    )
    position = '{"shardId-000000000000": "TRIM_HORIZON"}'
    options, _ = parse_source({"streamName": "s", "workerId": "w", "startingPosition": position})
    joining.join(ports, options, INITIAL_OFFSET, None, "run")
    assert called == CHECKS
