"""What readers have done after their leases were gone: the furthest position is written, when there is room."""

import pytest

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_effects import Turn
from penstock.core.leases.coordinator_events import UNKNOWN, NotDone, Problem
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.held_leases import LateCheckpoints
from penstock.core.leases.lease import BatchClaim, Lease, SeenClaim
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.lease_writes import (
    Applied,
    LateCheckpoint,
    Refusal,
    Refused,
)
from penstock.core.leases.pending_writes import PendingWrites
from penstock.core.leases.table_scans import TableScans
from penstock.core.position import LATEST, at_record

ROW = Lease("s", counter=4, owner="another", checkpoint=at_record("5"))


class Bench:
    """The late checkpoints of one worker, and their writes."""

    def __init__(self):
        self.turn = Turn()
        self.writes = PendingWrites(self.turn, 5)
        self.view = view = LeaseView(10.0)
        view.on_row(ROW, 0.0)
        options = CoordinatorOptions()
        scans = TableScans("w", options, view, self.turn)
        self.late = LateCheckpoints(CoordinatorContext("w", options, view, self.turn, self.writes, scans))

    def written(self, now_s):
        self.turn.begin(0.5)
        self.late.enqueue_writes(now_s)
        self.writes.send_queued(now_s)
        return [effect.write for effect in self.turn.effects]


@pytest.fixture
def bench():
    return Bench()


@pytest.mark.parametrize("order", [("7", "9"), ("9", "7")])
def test_the_furthest_of_several_positions_is_written_once(bench, order):
    for number in order:
        bench.late.keep("s", at_record(number))
    assert bench.written(1.0) == [LateCheckpoint("s", at_record("9"))]
    assert bench.written(2.0) == []


@pytest.mark.parametrize("outcome", [UNKNOWN, NotDone(Problem.THROTTLED)])
def test_a_position_that_was_not_written_does_not_take_the_place_of_a_further_one(bench, outcome):
    bench.late.keep("s", at_record("7"))
    (write,) = bench.written(1.0)
    bench.late.keep("s", at_record("9"))
    assert bench.written(1.5) == []  # the first one has no answer yet
    bench.writes.settle(1)
    bench.turn.begin(0.1)
    bench.late.on_answer(write, outcome, 2.0)  # again after 0.1 + golden ratio of a third of 10 s
    assert bench.written(4.3) == []
    assert bench.written(4.5) == [LateCheckpoint("s", at_record("9"))]


@pytest.mark.parametrize("outcome", [Applied(ROW), Refused(Refusal.BACKWARDS, ROW)])
def test_a_position_whose_write_was_decided_is_not_written_again(bench, outcome):
    bench.late.keep("s", at_record("7"))
    bench.written(1.0)
    bench.writes.settle(1)
    bench.late.on_answer(LateCheckpoint("s", at_record("7")), outcome, 2.0)
    assert bench.written(99.0) == []


@pytest.mark.parametrize("position", [None, LATEST, at_record("5")])
def test_what_is_not_ahead_of_the_checkpoint_is_not_written(bench, position):
    bench.late.keep("s", position)
    assert bench.written(1.0) == []


def test_a_position_is_forgotten_with_its_row(bench):
    bench.late.keep("gone", at_record("9"))
    assert bench.written(1.0) == []


def test_a_lease_that_comes_back_takes_the_position_with_it(bench):
    bench.late.keep("s", at_record("9"))
    assert bench.late.pop("s") == LateCheckpoint("s", at_record("9"))
    assert bench.written(1.0) == []


@pytest.mark.parametrize("outcome", [UNKNOWN, NotDone(Problem.THROTTLED)])
def test_a_querys_position_needs_the_claim_that_it_saw_each_time_it_is_written(bench, outcome):
    seen = SeenClaim("w", (3, "run"))
    bench.late.keep("s", at_record("7"), seen)
    (write,) = bench.written(1.0)
    assert write == LateCheckpoint("s", at_record("7"), seen)
    bench.writes.settle(1)
    bench.late.on_answer(write, outcome, 2.0)
    assert bench.written(9.0) == [write]


@pytest.mark.parametrize(("counter", "is_new"), [(1_000_002, True), (5, True), (9, False)])
def test_a_lease_that_was_deleted_and_created_again_has_no_claim(bench, counter, is_new):
    seen = SeenClaim("w", (3, "run"), counter=6)
    bench.view.on_row(Lease("s", counter=counter, owner=None, checkpoint=at_record("5")), 0.5)
    bench.late.keep("s", at_record("7"), seen)
    assert bench.written(1.0) == [LateCheckpoint("s", at_record("7"), SeenClaim("w") if is_new else seen)]


def test_an_older_copy_of_a_row_with_an_earlier_claim_does_not_count_as_created_again(bench):
    seen = SeenClaim("w", (3, "run"), counter=9)
    earlier = BatchClaim("w", 2, "run", at_record("1"), at_record("5"))
    bench.view.on_row(Lease("s", counter=6, owner="w", checkpoint=at_record("5"), claims=(earlier,)), 0.5)
    bench.late.keep("s", at_record("7"), seen)
    assert bench.written(1.0) == [LateCheckpoint("s", at_record("7"), seen)]
