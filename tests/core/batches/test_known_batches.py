"""Which batches one line of history knows: by their numbers, and by who planned them."""

from __future__ import annotations

import pytest

from penstock.core.batches.known_batches import RUNS_MAX, KnownBatches
from penstock.core.leases.lease import BatchClaim
from penstock.core.position import TRIM_HORIZON, at_record

KNOWN = KnownBatches(9, ((3, "b"), (7, "c")))


def claim(batch, planned_by):
    return BatchClaim("w", batch, "run", TRIM_HORIZON, at_record("5"), planned_by=planned_by)


@pytest.mark.parametrize(("batch", "planner"), [(2, None), (3, "b"), (6, "b"), (7, "c"), (9, "c")])
def test_a_run_planned_the_batches_up_to_the_next_run(batch, planner):
    assert KNOWN.planner_of(batch) == planner


@pytest.mark.parametrize(
    ("batch", "planned_by", "expected"),
    [
        (8, "c", True),
        (8, "b", False),
        (8, None, True),
        (6, "b", True),
        (6, "c", False),
        (2, "anybody", True),
        (10, "c", False),
        (10, None, False),
    ],
)
def test_a_claim_is_known_if_its_batch_is_and_nobody_else_planned_it(batch, planned_by, expected):
    assert KNOWN.has(claim(batch, planned_by)) is expected


def test_a_location_of_an_early_version_knows_batches_by_their_numbers():
    assert KnownBatches(9).has(claim(9, "anybody"))
    assert not KnownBatches(9).has(claim(10, None))


def test_a_new_run_plans_from_the_next_batch_on():
    assert KnownBatches().runs_with("a") == ((1, "a"),)
    assert KNOWN.runs_with("d") == ((3, "b"), (7, "c"), (10, "d"))
    assert KNOWN.runs_with("c") == KNOWN.runs


def test_batches_of_a_restored_copy_are_not_those_of_its_successor():
    restored = KnownBatches(5, ((1, "a"),))
    following = KnownBatches(
        12, restored.runs_with("b")
    )  # its numbers follow the highest claim on the leases
    assert following.has(claim(5, "a"))
    assert not any(following.has(claim(batch, "a")) for batch in range(6, 13))


def test_two_drivers_that_begin_at_one_state_do_not_know_each_others_batches():
    state = KnownBatches(6, ((1, "a"),))
    one, other = (KnownBatches(7, state.runs_with(run)) for run in ("b", "c"))
    assert one.has(claim(7, "b"))
    assert not one.has(claim(7, "c"))
    assert not other.has(claim(7, "b"))


def test_the_number_of_runs_is_bounded_and_the_oldest_go_first():
    known = KnownBatches()
    for start in range(RUNS_MAX + 5):
        known = KnownBatches(known.last + 1, known.runs_with(f"r{start}"))
    assert len(known.runs) == RUNS_MAX
    assert known.runs[0] == (6, "r5")
    assert known.has(claim(3, "r2"))
