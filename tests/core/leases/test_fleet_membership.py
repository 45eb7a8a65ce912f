"""When a worker may ask for its share: not before a round has passed in which every worker could appear."""

from penstock.core.leases.move_planner import FleetSettling

ROUND_S = 8.0


def watching(*sights):
    """A watcher that saw these workers at these seconds."""
    membership = FleetSettling()
    for at_s, workers in sights:
        membership.on_workers(workers.split(), at_s, ROUND_S)
    return membership


def test_a_new_worker_waits_for_a_round():
    membership = watching((0.0, "me old"))
    assert not membership.is_settled(7.9)
    assert membership.due_s == 8.0
    assert membership.is_settled(8.0)


def test_whoever_comes_late_in_the_round_is_waited_for_a_moment_more():
    assert watching((0.0, "me old"), (7.0, "me old new")).due_s == 9.0
    assert watching((0.0, "me old"), (3.0, "me old new")).due_s == 8.0


def test_one_that_comes_to_a_settled_fleet_is_waited_for_a_moment():
    membership = watching((0.0, "me old"), (8.0, "me old"), (16.0, "me old new"))
    assert not membership.is_settled(17.9)
    assert membership.is_settled(18.0)


def test_the_wait_ends_although_one_comes_after_the_other():
    membership = watching(*[(at_s, f"me old w{at_s}") for at_s in range(24)])
    assert membership.due_s == 24.0


def test_a_worker_between_two_leases_is_no_newcomer():
    membership = watching((0.0, "me old"), (8.0, "me old"), (16.0, "me"), (24.0, "me old"))
    assert membership.is_settled(24.0)


def test_one_that_was_gone_for_long_is_a_newcomer_again():
    sights = [(float(at_s), "me") for at_s in range(8, 80, 8)]
    assert not watching((0.0, "me old"), *sights, (80.0, "me old")).is_settled(81.0)
