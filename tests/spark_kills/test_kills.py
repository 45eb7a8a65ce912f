"""Exactly-once: a real Spark program is killed again and again, and every execution of a batch holds the same records."""

from __future__ import annotations

from dataclasses import replace

import company_checks
import pytest
from checks import everything_wrong
from company import CompanyRun
from company_checks import Processed, Taken
from harness import Plan, Run

from lease_logs import assert_are_behaviours

DEFAULT = Plan(seed=1, records=70_000, kills=21, reshards=4, weights=(2, 2, 3, 0))
SHORT = Plan(seed=6, records=15_000, kills=5, reshards=2, weights=(2, 2, 3, 0))
"""For CI, on the oldest Spark and the newest: enough for every kind of process to die."""
CLUSTER = Plan(
    seed=2,
    records=12_000,
    kills=8,
    shards=4,
    reshards=2,
    weights=(0, 1, 2, 2),
    master="local-cluster[2,1,1024]",
)
"""Executors in processes of their own; the driver lives, since its start is the dear part."""


# A mark on the function would overrule the one on a case.
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(SHORT, id="five kills", marks=pytest.mark.timeout(900)),
        pytest.param(
            replace(SHORT, seed=22, consumer_type="fan-out"),
            id="five kills with fan-out",
            marks=[pytest.mark.soak, pytest.mark.timeout(1800)],
        ),
        pytest.param(DEFAULT, id="twenty-one kills", marks=[pytest.mark.soak, pytest.mark.timeout(2400)]),
        pytest.param(
            Plan(seed=3, records=500_000, kills=200, reshards=20, finish_s=900.0),
            id="long",
            marks=[pytest.mark.soak, pytest.mark.timeout(7200)],
        ),
    ],
)
def test_no_kill_loses_repeats_or_reorders_a_record(tmp_path, plan):
    run = Run(plan, tmp_path)
    history = run.play()
    assert everything_wrong(history) == {}
    assert_are_behaviours(run.traces, tmp_path)
    assert sum(run.killed.values()) >= plan.kills * 0.9
    assert set(run.killed) == {"driver", "planner", "worker"}
    assert len(history.executions) >= plan.kills * 0.4
    assert any(len(told) > 1 for told in history.executions.values())  # repeated, and the same
    assert any(history.parents.values())
    assert (run.subscription_count > 0) == (plan.consumer_type != "polling")


@pytest.mark.timeout(1200)
def test_executors_of_their_own_may_die_as_well(tmp_path):
    run = Run(CLUSTER, tmp_path)
    history = run.play()
    assert everything_wrong(history) == {}
    assert_are_behaviours(run.traces, tmp_path)
    assert {"executor", "worker"} <= set(run.killed)


COMPANY = Plan(
    seed=6,
    records=15_000,
    kills=7,
    shards=6,
    reshards=3,
    weights=(1, 2, 4, 0, 3),
    queries=("first", "second"),
)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(COMPANY, id="seven kills", marks=pytest.mark.timeout(1200)),
        pytest.param(
            replace(COMPANY, seed=5, records=250_000, kills=120, reshards=16, finish_s=900.0),
            id="long",
            marks=[pytest.mark.soak, pytest.mark.timeout(7200)],
        ),
    ],
)
def test_two_queries_and_a_kcl2_worker_of_one_application_lose_nothing_and_repeat_only_at_takeovers(
    tmp_path, plan
):
    run = CompanyRun(plan, tmp_path)
    history = run.play()
    assert company_checks.everything_wrong(history) == {}
    assert sum(run.killed.values()) >= plan.kills * 0.9
    # Everybody had a part in it.
    assert all(query.rows for query in history.queries.values())
    assert any(isinstance(each, Processed) for did in history.workers.values() for each in did)
    assert any(
        isinstance(each, Taken) and each.owner in plan.queries
        for did in history.workers.values()
        for each in did
    )
