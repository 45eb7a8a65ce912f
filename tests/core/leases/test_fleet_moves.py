"""Whole fleets in virtual time: who reads what, how soon, and how much moves on the way."""

import pytest
from msgspec.structs import replace

from core.leases.fleet_world import World, leases
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.shard import Shard
from penstock.core.stream_identity import StreamIdentity

ROUND_S = CoordinatorOptions().interval_s
LEASE_S = CoordinatorOptions().lease_duration_s
HANDOVER_S = CoordinatorOptions().handover_timeout_s


# --- newcomers --------------------------------------------------------------------------------------------


STAGGERINGS = {
    "all at once": [0.0] * 9,
    "one, and the others at the end of its round": [0.0] + [0.97 * ROUND_S] * 8,
    "five and four": [0.0] * 5 + [0.75 * ROUND_S] * 4,
    "evenly": [number * ROUND_S / 9 for number in range(9)],
    "faster and faster": [ROUND_S * (1 - 0.6**number) for number in range(9)],
    "slower and slower": [ROUND_S * 0.6 ** (8 - number) for number in range(9)],
}


@pytest.mark.parametrize("stagger", STAGGERINGS)
def test_nine_workers_that_join_one_move_no_more_leases_than_they_need(stagger):
    _join_nine(World(*leases(100), seed=0), STAGGERINGS[stagger], BalancePolicy.EVEN)


@pytest.mark.parametrize(
    ("policy", "seed"),
    [
        (BalancePolicy.EVEN, 1),
        (BalancePolicy.EVEN, 2),
        (BalancePolicy.BY_ZONE, 0),
        (BalancePolicy.BY_THROUGHPUT, 0),
    ],
)
@pytest.mark.parametrize("stagger", STAGGERINGS)
def test_nine_workers_that_join_one_move_no_more_in_other_draws(stagger, policy, seed):
    _join_nine(World(*leases(100), seed=seed), STAGGERINGS[stagger], policy)


def _join_nine(world, offsets_s, policy):
    def is_even():
        return len(world.workers) == 10 and set(world.loads().values()) <= {9, 10, 11}

    world.start("w0", policy=policy)
    world.run_until(60.0)
    assert world.loads() == {"w0": 100}
    before = len(world.moves)
    for number, offset_s in enumerate(offsets_s, 1):
        world.at(60.0 + offset_s, lambda number=number: world.start(f"w{number}", policy=policy))
    world.run_until(61.0)
    assert world.when(is_even, 60.0) <= 4 * ROUND_S
    world.run_until(world.now + 4 * ROUND_S)
    assert is_even()
    assert len(world.moves) - before <= 100
    assert world.unread_keys() == []


def test_a_newcomer_is_seen_at_once_and_has_its_share_after_a_round_and_a_hand_over():
    world = World(*leases(12))
    for name in "abc":
        world.start(name)
    world.run_until(60.0)
    assert sorted(world.loads().values()) == [4, 4, 4]
    before = len(world.moves)
    world.start("d")
    assert world.when(lambda: "d" in {row.owner for row in world.rows.values()}, 2.0) < 1.0
    assert world.when(lambda: set(world.loads().values()) == {3}, 60.0) <= 2 * ROUND_S
    assert len(world.moves) == before + 3


def test_workers_that_start_one_after_the_other_wait_for_a_bounded_time():
    world = World(*leases(100))
    world.start("w0")
    world.run_until(60.0)
    for number in range(1, 10):
        world.at(60.0 + 0.5 * ROUND_S * number, lambda number=number: world.start(f"w{number}"))
    world.run_until(60.0 + 4.5 * ROUND_S)
    assert sum(count for name, count in world.loads().items() if name != "w0") > 10
    assert world.when(lambda: set(world.loads().values()) <= {9, 10, 11}, 90.0) <= 5 * ROUND_S


def test_free_leases_are_taken_while_the_fleet_is_still_gathering():
    world = World(*leases(30))
    for number in range(3):
        world.at(number * 0.4 * ROUND_S, lambda number=number: world.start(f"w{number}"))
    assert world.when(lambda: not world.unread_keys(), 10.0) < 1.0


# --- workers with unlike limits ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [BalancePolicy.EVEN, BalancePolicy.BY_ZONE, BalancePolicy.BY_THROUGHPUT])
@pytest.mark.parametrize(
    ("limits", "count", "expected"),
    [
        ([2] * 10 + [None], 60, [2] * 10 + [40]),
        ([1, 2, 3, 4, 5, 6, None], 60, [1, 2, 3, 4, 5, 6, 39]),
        ([5, 5, 20], 30, [5, 5, 20]),
        ([5, 10, 20, 40], 75, [5, 10, 20, 40]),
    ],
)
def test_every_lease_is_read_while_one_worker_has_room(policy, limits, count, expected):
    world = World(*leases(count))
    for number, limit in enumerate(limits):
        world.start(f"w{number:02}", max_leases=limit, policy=policy)
    assert world.when(lambda: not world.unread_keys(), 60.0) <= 3 * ROUND_S
    world.run_until(world.now + 5 * ROUND_S)
    assert list(world.loads().values()) == expected
    largest = f"w{len(limits) - 1:02}"
    world.kill(largest)
    world.start("next", max_leases=limits[-1], policy=policy)
    assert world.when(lambda: not world.unread_keys(), 90.0) <= LEASE_S + 3 * ROUND_S
    for (name, found), limit in zip(sorted(world.loads().items()), [limits[-1], *limits[:-1]], strict=True):
        assert limit is None or found <= limit, name


def test_a_fleet_without_room_leaves_the_rest_free_and_writes_nothing_for_it():
    world = World(*leases(20))
    for name in "abc":
        world.start(name, max_leases=4)
    world.run_until(60.0)
    assert set(world.loads().values()) == {4}
    before = len(world.moves)
    world.run_until(160.0)
    assert len(world.moves) == before
    assert len(world.unread_keys()) == 8


# --- unanswered hand-overs --------------------------------------------------------------------------------


def mixed(count=4, **more):
    """A Java worker that holds everything."""
    world = World(*leases(count, "java", **more))
    world.start_java("java")
    return world


def test_a_requester_that_died_counts_no_longer_than_a_hand_over():
    world = mixed()
    world.start("dead")
    world.when(lambda: sum(row.checkpoint_owner is not None for row in world.rows.values()) == 2, 30.0)
    world.kill("dead")
    world.run_until(world.now + 1.0)
    world.start("me")
    took_s = world.when(lambda: world.loads() == {"java": 2, "me": 2}, 90.0)
    assert took_s <= HANDOVER_S + 2 * ROUND_S
    assert "dead" not in {row.owner for row in world.rows.values()}


def test_a_readers_field_that_was_left_standing_counts_for_nobody():
    rows = leases(4, "java")
    world = World(replace(rows[0], checkpoint_owner="gone"), *rows[1:])
    world.start_java("java")
    world.start("me")
    assert world.when(lambda: world.loads() == {"java": 2, "me": 2}, 90.0) <= HANDOVER_S + 2 * ROUND_S


def test_a_lease_that_a_java_worker_took_in_the_middle_of_a_hand_over_is_its_own():
    world = mixed(2)
    world.start("me")
    world.when(lambda: any(row.checkpoint_owner == "java" for row in world.rows.values()), 30.0)
    (asked,) = [row.key for row in world.rows.values() if row.checkpoint_owner == "java"]
    world.start_java("java-2")
    world.workers["java-2"].take(asked)
    world.run_until(world.now + 2 * HANDOVER_S)
    assert world.rows[asked].checkpoint_owner == "java"  # left as it was
    assert world.loads() == {"java": 1, "java-2": 1, "me": 0}
    world.kill("java-2")
    assert world.when(lambda: world.loads() == {"java": 1, "me": 1}, 60.0) <= LEASE_S + ROUND_S


def test_a_java_worker_is_asked_once_in_vain_and_then_not_again():
    world = mixed(12)
    world.start("a")
    assert HANDOVER_S <= world.when(lambda: world.loads() == {"a": 6, "java": 6}, 90.0) <= HANDOVER_S + 15.0
    world.kill("a")
    world.start("b")
    world.when(lambda: world.loads() == {"b": 6, "java": 6}, 90.0)
    world.run_until(world.now + 30.0)
    for row in leases(8, "java"):
        world.put(replace(row, key=f"more-{row.key}"))
        world.workers["java"].readers[f"more-{row.key}"] = row.counter
    assert world.when(lambda: world.loads() == {"b": 10, "java": 10}, 90.0) <= 1.5 * ROUND_S


def test_a_newcomer_takes_its_share_from_a_recognised_java_worker_within_two_rounds():
    world = mixed(12)
    world.shards = {key: Shard(key, row.hash_range) for key, row in world.rows.items()}
    world.start("a", stream=StreamIdentity("arn", 1))
    assert world.when(lambda: world.loads() == {"a": 6, "java": 6}, 90.0) <= 2 * ROUND_S
