"""A simulated Spark job: how often a task is tried, which attempt counts, and its error when one fails for the last time."""

from __future__ import annotations

import pytest

from penstock.core.leases.coordinator_options import BalancePolicy
from penstock_sim.process import SimProcess
from penstock_sim.spark_job import TASK_FAILURES_MAX, JobFailed, SparkJob, TaskFailed
from penstock_sim.world import World
from sim.calm import calm


class Job:
    """A job whose attempts end as each task's list says: after how many seconds, and with what."""

    def __init__(self, attempts, *, runs_twice=False):
        self.world = World(calm((), 2, BalancePolicy.EVEN), lambda entry: None)
        self.driver = SimProcess(self.world, "driver")
        self.attempts = [list(each) for each in attempts]
        self.begun = []
        self.job = SparkJob(self.driver, len(attempts), self.start, lambda: runs_twice)
        self.result, self.error = None, None

    def start(self, number, on_end):
        self.begun.append((number, self.world.now))
        after_s, result = self.attempts[number].pop(0)
        self.driver.later(after_s, on_end, result)

    def run(self, until_s=120.0):
        def body():
            try:
                self.result = self.job.run()
            except JobFailed as failed:
                self.error = str(failed)
            self.ended_s = self.world.now

        self.driver.spawn(body)
        self.world.run_until(until_s)
        self.world.fibers.close()
        return self

    def tries_of(self, number):
        return sum(each == number for each, _ in self.begun)


def failing(name, after_s=1.0):
    return (after_s, TaskFailed(ValueError(name)))


def test_results_come_in_the_tasks_order_whichever_ends_first():
    found = Job([[(5.0, "slow")], [(1.0, "fast")]]).run()
    assert found.result == ["slow", "fast"]
    assert found.ended_s == 5.0


def test_a_task_that_fails_is_tried_again_alone():
    found = Job([[failing("a"), failing("b"), (1.0, "done")], [(1.0, "other")]]).run()
    assert found.result == ["done", "other"]
    assert (found.tries_of(0), found.tries_of(1)) == (3, 1)


def test_a_task_that_fails_four_times_fails_the_job_and_is_the_one_that_is_named():
    failures = [failing(f"try {number}") for number in range(TASK_FAILURES_MAX)]
    found = Job([[failing("other"), (70.0, "late")], failures]).run()
    assert found.error == "a task failed 4 times, last: ValueError('try 3')"
    assert found.ended_s < 60


def test_the_first_attempt_that_succeeds_counts_and_the_others_end_does_not():
    slow, fast = (30.0, "first"), (1.0, "second")
    found = Job([[slow, fast], [(40.0, "longest"), failing("beside")]], runs_twice=True)
    found.attempts[1].append((50.0, "never asked for"))
    found.run()
    assert found.result == ["second", "longest"]
    assert found.ended_s == 40.0


def test_failures_of_a_second_attempt_beside_a_successful_first_do_not_fail_the_job():
    tries = [(3.0, "first"), *[failing(f"second {number}", 2.0) for number in range(TASK_FAILURES_MAX + 1)]]
    found = Job([tries, [(30.0, "other")]], runs_twice=False)
    found.driver.later(0.5, lambda: found.job._speculate(found.job._tasks[0]))
    found.run()
    assert (found.result, found.error) == (["first", "other"], None)


def test_a_second_attempt_is_not_begun_for_a_task_that_is_done():
    found = Job([[(0.0, "at once")]], runs_twice=True).run()
    assert (found.result, found.tries_of(0)) == (["at once"], 1)


def test_a_job_whose_driver_has_ended_begins_nothing_more():
    found = Job([[failing("a"), (1.0, "never")]])
    found.driver.later(1.0001, found.driver.end)
    found.run()
    assert (found.result, found.error, found.tries_of(0)) == (None, None, 1)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_job_has_as_many_results_as_tasks(count):
    found = Job([[(float(number), number)] for number in range(count)]).run()
    assert found.result == list(range(count))
