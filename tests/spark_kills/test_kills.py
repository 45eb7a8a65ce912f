"""Exactly-once, shown: a real Spark program is killed again and again, and every batch holds what it held."""

from __future__ import annotations

import pytest
from checks import everything_wrong
from harness import Plan, Run

pytestmark = pytest.mark.spark

DEFAULT = Plan(seed=1, records=200_000, kills=60)
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


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(DEFAULT, id="sixty kills"),
        pytest.param(
            Plan(seed=3, records=500_000, kills=200, reshards=20, finish_s=900.0),
            id="long",
            marks=[pytest.mark.soak, pytest.mark.timeout(3600)],
        ),
    ],
)
def test_no_kill_loses_repeats_or_reorders_a_record(tmp_path, plan):
    run = Run(plan, tmp_path)
    history = run.play()
    assert everything_wrong(history) == {}
    assert sum(run.killed.values()) >= plan.kills * 0.9
    assert set(run.killed) == {"driver", "planner", "worker"}
    assert len(history.executions) >= 20
    assert any(
        len(told) > 1 for told in history.executions.values()
    )  # batches were repeated, and held the same
    assert any(history.parents.values())


@pytest.mark.timeout(1200)
def test_executors_of_their_own_may_die_as_well(tmp_path):
    run = Run(CLUSTER, tmp_path)
    history = run.play()
    assert everything_wrong(history) == {}
    assert {"executor", "worker"} <= set(run.killed)
