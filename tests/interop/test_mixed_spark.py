"""A Spark query and real workers of the KCL share an application, and both are killed again and again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
from company import FAILOVER_S, TABLE, CompanyRun
from company_checks import Processed
from counterparts import KCL_2, KCL_3_COMPATIBLE, KCL_3_NATIVE, Counterpart
from fleet import everything_wrong, report_repeats
from harness import Plan
from worker_process import WorkerProcess

PLAN = Plan(
    seed=7, records=12_000, kills=9, shards=4, reshards=4, weights=(1, 1, 2, 0, 3), queries=("first",)
)
PLAN_3 = replace(PLAN, records=8_000, kills=6, weights=(1, 1, 1, 0, 2))
"""A worker of KCL 3 takes about a minute until it reads."""
BEGIN_S = 90.0


@dataclass
class KclRun(CompanyRun):
    """A run whose worker is a real one, in place of the program that does as the KCL does."""

    counterpart: Counterpart = KCL_2
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    waiting_kinds: ClassVar = ("driver", "planner", "worker")

    def start_worker(self):
        name = f"kcl-{next(self.names)}"
        failover = f"-Dfailover.ms={FAILOVER_S * 1000:.0f}"
        arguments = (self.folder, name, "numbers", TABLE)
        self.worker = WorkerProcess(self.counterpart, self.server, *arguments, java=(failover,))
        self.workers[name] = self.worker

    def kill_worker(self):
        """Kill it once it reads something: it takes longer to start than anything else here.

        Where the query has read everything before, there may be nothing left for it: then it is killed in a while.
        """
        deadline_s = time.monotonic() + BEGIN_S
        while not self.worker.did and time.monotonic() < deadline_s:
            assert self.worker.is_alive, self.worker.log()
            time.sleep(0.1)
        self.dismiss()

    def dismiss(self):
        if self.worker is not None:
            self.worker.close()

    def check_worker(self):
        assert self.worker.is_alive, self.worker.log()

    def gather_workers(self):
        self.history.workers = {name: list(worker.did) for name, worker in self.workers.items()}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("counterpart", "plan"),
    [
        pytest.param(KCL_2, PLAN, id="KCL 2.7.2"),
        pytest.param(KCL_3_COMPATIBLE, PLAN_3, id="KCL 3.5.1 as 2.x"),
        pytest.param(KCL_3_NATIVE, PLAN_3, id="a native fleet of KCL 3.5.1"),
    ],
)
def test_a_query_and_kcl_workers_lose_nothing_and_repeat_only_at_takeovers(
    counterpart: Counterpart, plan: Plan, tmp_path, record_property
):
    run = KclRun(plan, tmp_path, counterpart=counterpart)
    history = run.play()
    report_repeats(history, run.workers.keys() - {run.worker.name}, record_property)
    assert everything_wrong(history) == {}
    assert run.killed["kcl2"] > 0
    assert sum(run.killed.values()) >= plan.kills - 1  # a process may be gone before it is killed
    assert history.queries["first"].rows
    assert any(isinstance(each, Processed) for did in history.workers.values() for each in did)
