"""Two processes under one worker id: the later one goes on, the earlier one stops."""

import pytest
from msgspec.structs import replace
from tests.core.leases.coordinator_bench import LEFT, RIGHT, WHOLE, Bench

from penstock.core.leases.coordinator_effects import (
    StartReader,
    Stopped,
    StopReader,
    StopWhy,
    Topic,
    WorkerIdTaken,
    WriteLease,
)
from penstock.core.leases.coordinator_events import UNKNOWN, ReaderStopped, StopRequested, Tick, WriteDone
from penstock.core.leases.lease import Lease, WorkerRun, name_run, parse_run
from penstock.core.leases.lease_rules import apply_write, shows_write
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.lease_writes import Renew, Take
from penstock.core.leases.row_checks import LaterRuns

LEASES = (Lease("a", hash_range=LEFT), Lease("b", hash_range=RIGHT))


class Process(Bench):
    """One process of worker `me`; several share a table. Its readers stop when they are asked to."""

    def __init__(self, *leases, run="0001", table=None, **options):
        super().__init__(*leases, run_name=name_run("me", run), **options)
        if table is not None:
            self.table = table

    def answer(self, effect):
        if isinstance(effect, StopReader):
            return ReaderStopped(effect.key, effect.epoch, None)
        return super().answer(effect)

    @property
    def is_stopped(self):
        return bool(self.of(Stopped))

    @property
    def held(self):
        return sorted(self.machine.lease_phases())


def pass_time(until, *processes, step=0.5):
    """Run several processes side by side."""
    now = max(process.now for process in processes)
    while now < until:
        now += step
        for process in processes:
            process.at(now)


def taken_over(**options):
    first = Process(*LEASES, **options)
    first.start()
    second = Process(run="0002", table=first.table, **options)
    second.start()
    return first, second


def test_a_process_that_is_started_again_has_its_leases_at_once():
    first = Process(*LEASES)
    first.start()
    again = Process(run="0002", table=first.table)
    again.start()
    assert again.held == ["a", "b"]
    assert [row.run.number for row in again.table.rows.values()] == [2, 2]
    pass_time(60, again)
    assert again.held == ["a", "b"]
    assert not again.is_stopped


def test_the_earlier_of_two_living_processes_stops_and_says_why():
    first, second = taken_over()
    pass_time(30, first, second)
    assert first.is_stopped
    (refusal,) = first.of(WorkerIdTaken)
    assert (refusal.later_run.own_run.number, refusal.later_run.run.number) == (1, 2)
    assert second.held == ["a", "b"]
    assert not second.of(WorkerIdTaken)


def test_the_earlier_one_reads_nothing_that_the_later_one_has():
    first, second = taken_over()
    pass_time(30, first, second)
    assert len(first.of(StartReader)) == 2
    assert [effect.why for effect in first.of(StopReader)] == [StopWhy.LOST] * 2
    assert len(second.of(StartReader)) == 2


def test_of_three_living_processes_the_last_goes_on():
    first, second = taken_over()
    third = Process(run="0003", table=first.table)
    third.start()
    pass_time(40, first, second, third)
    assert [process.is_stopped for process in (first, second, third)] == [True, True, False]
    assert third.held == ["a", "b"]


def test_of_two_that_start_at_once_exactly_one_goes_on():
    table = Bench(*LEASES).table
    processes = [Process(run=run, table=table) for run in ("0001", "0002")]
    calls = [(process, effect) for process in processes for effect in process.feed(Tick())]
    while calls:  # each call of one is followed by one of the other
        process, effect = calls.pop(0)
        answer = process.answer(effect)
        calls += [] if answer is None else [(process, effect) for effect in process.feed(answer)]
    pass_time(60, *processes)
    assert sorted(process.is_stopped for process in processes) == [False, True]
    (left,) = [process for process in processes if not process.is_stopped]
    assert left.held == ["a", "b"]


def test_a_process_that_was_paused_takes_nothing_back_from_its_successor():
    first, second = taken_over()
    pass_time(60, second)
    first.now = 60.5
    first.run(Tick())
    pass_time(90, first, second)
    assert first.is_stopped
    assert len(first.of(StartReader)) == 2
    assert second.held == ["a", "b"]
    assert len(second.of(StartReader)) == 2


def test_a_later_process_that_has_died_leaves_the_leases_to_the_earlier_one():
    first, _dead = taken_over()
    pass_time(60, first)
    assert not first.is_stopped
    assert first.held == ["a", "b"]


def test_a_lost_answer_of_its_own_is_not_taken_for_another_process():
    bench = Process(Lease("a", hash_range=WHOLE))
    bench.start()
    bench.slow = (Renew,)
    bench.at(3.0)
    (renewal,) = [e for e in bench.seen if isinstance(e, WriteLease) and isinstance(e.write, Renew)]
    bench.table.write(renewal.write)
    bench.slow = ()
    bench.run(WriteDone(renewal.write_id, renewal.write, UNKNOWN))
    assert bench.held == ["a"]
    pass_time(60, bench)
    assert bench.held == ["a"]
    assert not bench.reports(Topic.LOST)
    assert not bench.of(WorkerIdTaken)


def test_another_process_s_renewal_is_not_taken_for_a_lost_answer():
    bench = Process(Lease("a", hash_range=WHOLE))
    bench.start()
    row = bench.table.rows["a"]
    bench.table.rows["a"] = replace(row, counter=row.counter + 1, run=WorkerRun(2, name_run("me", "0002")))
    bench.at(4.0)
    assert bench.held == []
    (report,) = bench.reports(Topic.LOST)
    assert report.reason == "same_name"
    assert "under the same worker id" in report.message


@pytest.mark.parametrize("write", [Take("a", 7, "me"), Renew("a", 7, "me")])
def test_a_row_shows_a_write_of_its_own_run_only(write):
    mine, its = (WorkerRun(1, name_run("me", name)) for name in ("0001", "0002"))
    row = Lease("a", counter=7, owner="me")
    after = apply_write(row, replace(write, run=its)).lease
    assert after.run == its
    assert shows_write(after, replace(write, run=its))
    assert not shows_write(after, replace(write, run=mine))


def test_a_run_that_a_worker_of_another_name_left_behind_says_nothing():
    run = WorkerRun(9, name_run("other", "0009"))
    bench = Process(Lease("a", counter=3, owner="me", run=run, hash_range=WHOLE))
    bench.start()
    assert bench.held == ["a"]
    assert bench.table.rows["a"].run.number == 1


def test_a_run_stays_on_a_lease_that_is_given_up_so_that_the_next_one_is_later():
    bench = Process(Lease("a", hash_range=WHOLE))
    bench.start()
    bench.run(StopRequested())
    row = bench.table.rows["a"]
    assert (row.owner, row.run.number) == (None, 1)
    again = Process(table=bench.table, run="0002")
    again.start()
    assert bench.table.rows["a"].run.number == 2


def test_runs_are_ordered_by_number_and_read_back_from_their_text():
    runs = [WorkerRun(9, "ff"), WorkerRun(10, "0a"), WorkerRun(10, "0b")]
    assert sorted([runs[2], runs[0], runs[1]]) == runs
    assert [parse_run(str(run)) for run in runs] == runs
    assert [parse_run(text) for text in ("", "3", "x-1", "-1-x")] == [None] * 4


def test_a_worker_without_a_run_watches_nothing():
    view = LeaseView(10.0)
    runs = LaterRuns("me", "", view)
    runs.on_row(Lease("a", owner="me", run=WorkerRun(2, name_run("me", "1"))))
    assert runs.run is None
    assert runs.later_run is None
