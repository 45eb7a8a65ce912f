"""An observer's judgement of leases: ages on its own clock, and rows that a scan misses."""

import pytest

from penstock.core.leases.lease import Lease, LeaseTerm
from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.position import SHARD_END, at_record


def view_of(*leases, now=0.0):
    view = LeaseView(10.0)
    view.on_scan(leases, now)
    return view


def test_a_row_seen_for_the_first_time_is_alive_whoever_owns_it():
    assert view_of(Lease("s", counter=99, owner="x")).owner_state("s", 9.99) is OwnerState.ALIVE


def test_a_counter_that_stands_still_for_the_lease_duration_means_a_dead_owner():
    view = view_of(Lease("s", counter=1, owner="x"))
    view.on_scan([Lease("s", counter=1, owner="x")], 8.0)
    assert view.owner_state("s", 9.99) is OwnerState.ALIVE
    assert view.owner_state("s", 10.0) is OwnerState.EXPIRED


@pytest.mark.parametrize(
    "changed",
    [
        Lease("s", counter=2, owner="x"),
        Lease("s", counter=0, owner="x"),
        Lease("s", counter=1, owner="y"),
        Lease("s", counter=1, owner="x", checkpoint=at_record("7")),
    ],
    ids=["counter up", "counter down", "owner", "checkpoint"],
)
def test_any_change_counts_as_a_sign_of_life(changed):
    view = view_of(Lease("s", counter=1, owner="x"))
    view.on_scan([changed], 8.0)
    assert view.owner_state("s", 17.9) is OwnerState.ALIVE
    assert view.owner_state("s", 18.0) is OwnerState.EXPIRED


def test_a_row_without_an_owner_is_free_at_once():
    assert view_of(Lease("s")).owner_state("s", 0.0) is OwnerState.UNOWNED


def test_a_finished_lease_is_neither_free_nor_held():
    assert view_of(Lease("s", owner="x", checkpoint=SHARD_END)).owner_state("s", 99.0) is OwnerState.ENDED


def test_while_a_lease_is_handed_over_its_reader_keeps_it_alive():
    assert view_of(Lease("s", owner="next", checkpoint_owner="old")).owner_state("s", 5.0) is OwnerState.ALIVE


def test_a_suspect_is_looked_at_when_it_expires():
    view = view_of(Lease("s", counter=1, owner="x"), Lease("t", counter=1, owner="me"))
    assert view.next_expiry_s("me") is None
    view.on_scan([Lease("s", counter=1, owner="x"), Lease("t", counter=1, owner="me")], 6.0)
    assert view.next_expiry_s("me") == 10.0


def test_rows_that_a_scan_misses_are_forgotten():
    view = view_of(Lease("s"), Lease("t"))
    assert view.on_scan([Lease("t")], 8.0, began_s=7.9) == ["s"]
    assert "s" not in view


def test_rows_that_were_written_while_the_scan_ran_or_just_before_are_kept():
    view = view_of()
    view.on_row(Lease("s", counter=1, owner="me"), 6.5)
    assert view.on_scan([], 8.0, began_s=7.9) == []
    assert "s" in view


def test_a_held_row_that_a_scan_misses_is_named_but_kept():
    view = view_of(Lease("s", owner="me"))
    assert view.on_scan([], 8.0, began_s=7.9, held_keys={"s"}) == ["s"]
    assert "s" in view


def test_a_scan_that_began_before_a_write_does_not_turn_it_back():
    view = view_of()
    view.on_row(Lease("s", counter=5, owner="me"), 7.95)
    view.on_scan([Lease("s", counter=4, owner="other")], 8.0, began_s=7.9)
    assert view.get("s").owner == "me"


def test_a_child_waits_while_a_parent_is_unfinished():
    view = view_of(Lease("a", checkpoint=SHARD_END), Lease("b", owner="x"))
    assert view.waits_for_parents(Lease("c", parents=frozenset({"a", "b"})))
    assert not view.waits_for_parents(Lease("c", parents=frozenset({"a"})))


def test_a_child_whose_parents_are_all_unknown_does_not_wait():
    assert not view_of().waits_for_parents(Lease("c", parents=frozenset({"a", "b"})))


def test_a_child_at_its_start_waits_for_a_missing_parent_until_it_has_vanished():
    view = view_of(Lease("a", checkpoint=SHARD_END))
    child = Lease("c", parents=frozenset({"a", "b"}))
    assert view.waits_for_parents(child)
    view.on_shards_vanished({"b"})
    assert not view.waits_for_parents(child)


def test_a_child_waits_for_a_missing_parent_although_the_other_one_has_left_the_stream():
    child = Lease("c", parents=frozenset({"a", "b"}))
    view = view_of(child)
    view.on_shards_vanished({"a"})
    assert view.missing_parents() == {"b"}
    assert view.waits_for_parents(child)


def test_a_child_past_its_start_does_not_wait_for_a_missing_parent():
    view = view_of(Lease("a", checkpoint=SHARD_END))
    assert not view.waits_for_parents(Lease("c", parents=frozenset({"a", "b"}), checkpoint=at_record("4")))


def test_a_row_counts_as_renewed_once_its_counter_has_moved():
    view = view_of(Lease("s", counter=4, owner="x"))
    view.on_row(Lease("s", counter=4, owner="x", checkpoint=at_record("5")), 1.0)
    assert not view.was_renewed("s")
    view.on_row(Lease("s", counter=5, owner="x", checkpoint=at_record("5")), 2.0)
    view.on_row(Lease("s", counter=5, owner="y", checkpoint=at_record("5")), 3.0)
    assert view.was_renewed("s")


@pytest.mark.parametrize(
    ("lease", "expires_s"),
    [
        (Lease("s", owner="x", term=LeaseTerm("x", 60_000)), 60.0),
        (Lease("s", owner="next", checkpoint_owner="x", term=LeaseTerm("x", 60_000)), 60.0),
        (Lease("s", owner="x", term=LeaseTerm("x", 5_000)), 10.0),
        # A Java worker took it, and left the attributes that it does not know.
        (Lease("s", owner="java", term=LeaseTerm("x", 60_000)), 10.0),
    ],
    ids=["longer", "being handed over", "shorter", "another reader's"],
)
def test_a_lease_lasts_for_as_long_as_its_reader_says(lease, expires_s):
    view = view_of(lease)
    view.on_scan([lease], 1.0)
    assert view.owner_state("s", expires_s - 0.01) is OwnerState.ALIVE
    assert view.owner_state("s", expires_s) is OwnerState.EXPIRED
    assert view.next_expiry_s("me") == expires_s
