"""Who gets which lease: cases as data (`tests/scenarios/balance.json`), and properties that hold for every fleet."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.leases.balance import plan_balance
from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.core.leases.fleet_view import (
    Acquisition,
    BalanceLimits,
    FleetLease,
    Reason,
    ReleaseLease,
    capacity_of,
    fleet_of,
    live_workers,
    zone_of,
)
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.leases.lease_writes import RequestHandover, Take
from penstock.core.position import SHARD_END

CASES = json.loads((Path(__file__).parents[2] / "scenarios" / "balance.json").read_text())["cases"]


def build(case):
    """Make a fleet: leases named after who holds them, `worker.0`, `worker.1`, ..."""
    fleet = []
    rates = case.get("kbps", {})

    def add(key, owner, owner_state, **more):
        lease = Lease(key, counter=7, owner=owner, throughput_kbps=rates.get(key), **more)
        free_s = 0.0 if owner_state is OwnerState.ALIVE else case.get("free_s", 1.0)
        fleet.append(
            FleetLease(
                lease, owner_state, free_s, waits_for_parents=key in case.get("waiting", ()), free_s=free_s
            )
        )

    for worker, count in case["workers"].items():
        for place in range(count):
            add(f"{worker}.{place}", worker, OwnerState.ALIVE)
    for place in range(case.get("free", 0)):
        add(f"free.{place}", None, OwnerState.UNOWNED)
    for worker, count in case.get("expired", {}).items():
        for place in range(count):
            add(f"{worker}.{place}", worker, OwnerState.EXPIRED)
    for key, (owner, old) in case.get("handing_over", {}).items():
        add(key, owner, OwnerState.ALIVE, checkpoint_owner=old)
    return fleet


def plans(case):
    fleet = build(case)
    names = [worker for worker in case["workers"] if worker not in case.get("silent", ())]
    limits = BalanceLimits(**case.get("limits", {}))
    return fleet, {
        me: plan_balance(
            fleet, me, BalancePolicy(case.get("policy", "even")), limits, workers=case["workers"]
        )
        for me in names
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_exactly_the_moves_of_the_case(case):
    fleet, by_worker = plans(case)
    owner = {
        entry.lease.key: entry.lease.owner if entry.owner_state is OwnerState.ALIVE else None
        for entry in fleet
    }
    gained = [
        move.write.key
        for moves in by_worker.values()
        for move in moves
        if isinstance(move, Acquisition) and move.reason is not Reason.LEFT_OVER
    ]
    assert len(gained) == len(set(gained)), "two workers want the same lease"
    for worker, moves in by_worker.items():
        for move in moves:
            owner[move.write.key if isinstance(move, Acquisition) else move.key] = (
                worker if isinstance(move, Acquisition) else None
            )
    moves = {
        worker: dict(
            Counter("surplus" if isinstance(move, ReleaseLease) else move.reason.value for move in found)
        )
        for worker, found in by_worker.items()
        if found
    }
    after = Counter(worker or "nobody" for worker in owner.values())
    assert {"moves": moves, "after": dict(sorted(after.items()))} == case["expected"], case["sentence"]


# --- what holds for every fleet ---------------------------------------------------------------------------


def fleet_from(owners, waits=()):
    return [
        FleetLease(
            Lease(key, owner=owner),
            OwnerState.UNOWNED if owner is None else OwnerState.ALIVE,
            1.0,
            waits_for_parents=key in waits,
        )
        for key, owner in owners.items()
    ]


def settle(owners, workers, policy=BalancePolicy.EVEN):
    """Every worker plans from the same view, and all plans are carried out."""
    fleet = fleet_from(owners)
    after = dict(owners)
    for me in workers:
        for move in plan_balance(fleet, me, policy, workers=workers):
            assert isinstance(move, Acquisition)
            assert after[move.write.key] == owners[move.write.key], "two workers moved the same lease"
            after[move.write.key] = me
    return after


owned = st.dictionaries(
    st.integers(0, 300).map(lambda number: f"s{number}"),
    st.one_of(st.none(), st.integers(0, 11).map(lambda number: f"{'xyz'[number % 3]}/w{number}")),
    max_size=120,
)


@given(owners=owned, joining=st.integers(0, 4))
@settings(max_examples=150, deadline=None)
def test_one_round_is_enough_and_the_next_moves_nothing(owners, joining):
    workers = sorted(
        {owner for owner in owners.values() if owner}
        | {f"x/new{number}" for number in range(joining)}
        | {"x/me"}
    )
    after = settle(owners, workers)
    counts = Counter(dict.fromkeys(workers, 0))
    counts.update(after.values())
    assert max(counts.values()) - min(counts.values()) <= 1
    assert settle(after, workers) == after


@given(owners=owned)
@settings(max_examples=150, deadline=None)
def test_as_few_leases_move_as_can_be(owners):
    workers = sorted({owner for owner in owners.values() if owner} | {"x/me"})
    after = settle(owners, workers)
    counts = Counter(dict.fromkeys(workers, 0))
    counts.update(owner for owner in owners.values() if owner)
    base, remainder = divmod(len(owners), len(workers))
    targets = sorted([base + 1] * remainder + [base] * (len(workers) - remainder), reverse=True)
    needed = sum(
        max(0, count - target)
        for count, target in zip(sorted(counts.values(), reverse=True), targets, strict=True)
    )
    moved = sum(1 for key, owner in owners.items() if owner and after[key] != owner)
    assert moved == needed


@given(owners=owned)
@settings(max_examples=100, deadline=None)
def test_nothing_is_taken_from_a_worker_that_has_at_most_one_more(owners):
    workers = sorted({owner for owner in owners.values() if owner} | {"x/me"})
    counts = Counter(owner for owner in owners.values() if owner)
    fleet = fleet_from(owners)
    for me in workers:
        for move in plan_balance(fleet, me, workers=workers):
            victim = owners[move.write.key]
            assert victim is None or counts[victim] - counts[me] >= 2


@given(owners=owned)
@settings(max_examples=100, deadline=None)
def test_zones_are_even_first(owners):
    workers = sorted({owner for owner in owners.values() if owner} | {"x/me"})
    after = settle(owners, workers, BalancePolicy.BY_ZONE)
    zones = Counter({zone_of(worker): 0 for worker in workers})
    zones.update(zone_of(owner) for owner in after.values())
    assert max(zones.values()) - min(zones.values()) <= 1
    for zone in zones:
        counts = Counter({worker: 0 for worker in workers if zone_of(worker) == zone})
        counts.update(owner for owner in after.values() if zone_of(owner) == zone)
        assert max(counts.values()) - min(counts.values()) <= 1
    assert settle(after, workers, BalancePolicy.BY_ZONE) == after


def test_zones_that_are_all_full_leave_the_rest_free():
    workers = ["east/a", "west/b"]
    fleet = fleet_from({f"s{number}": None for number in range(10)})
    limits = BalanceLimits(max_leases=2)
    gained = {
        me: len(plan_balance(fleet, me, BalancePolicy.BY_ZONE, limits, workers=workers)) for me in workers
    }
    assert gained == {"east/a": 2, "west/b": 2}


@given(
    rates=st.lists(st.floats(0, 1000), min_size=1, max_size=60),
    worker_count=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_by_throughput_settles_in_one_round_and_stays(rates, worker_count, seed):
    chance = random.Random(seed)
    # Every third can do as much as four of the others.
    workers = [f"w{number}@4" if number % 3 == 2 else f"w{number}" for number in range(worker_count)]
    owners = {f"s{number}": chance.choice([*workers, None]) for number in range(len(rates))}

    def once(owners):
        fleet = [
            FleetLease(
                Lease(key, owner=owner, throughput_kbps=rate),
                OwnerState.UNOWNED if owner is None else OwnerState.ALIVE,
                1.0,
            )
            for (key, owner), rate in zip(owners.items(), rates, strict=True)
        ]
        after = dict(owners)
        for me in workers:
            for move in plan_balance(fleet, me, BalancePolicy.BY_THROUGHPUT, workers=workers):
                after[move.write.key] = me
        return after

    def loads(owners):
        found = dict.fromkeys(workers, 0.0)
        for owner, rate in zip(owners.values(), rates, strict=True):
            if owner is not None:
                found[owner] += rate / capacity_of(owner)
        return found

    after = once(owners)
    assert None not in after.values()
    assert once(after) == after
    mean = sum(rates) / sum(capacity_of(worker) for worker in workers)
    assert max(loads(after).values()) <= mean * 1.4 + max(rates) * 1.1


def test_a_worker_of_six_cores_gets_three_quarters_beside_one_of_two():
    workers = ["small@2", "large@6"]
    rates = [10.0] * 40
    owners = {f"s{number}": "small@2" for number in range(40)}
    fleet = [
        FleetLease(Lease(key, owner=owner, throughput_kbps=rate), OwnerState.ALIVE, 1.0)
        for (key, owner), rate in zip(owners.items(), rates, strict=True)
    ]
    gains = plan_balance(fleet, "large@6", BalancePolicy.BY_THROUGHPUT, workers=workers)
    assert 28 <= len(gains) <= 31


def loaded(owners, **more):
    """A fleet of live leases: (owner, kilobytes per second) by key; no owner makes a lease free."""
    return [
        FleetLease(
            Lease(key, owner=owner, throughput_kbps=rate, checkpoint_owner=more.get(key)),
            OwnerState.UNOWNED if owner is None else OwnerState.ALIVE,
            1.0,
        )
        for key, (owner, rate) in owners.items()
    ]


def test_by_throughput_asks_for_no_lease_that_is_being_handed_over():
    fleet = loaded({f"s{number}": ("next", 10.0) for number in range(4)}, s1="old", s2="old", s3="old")
    moves = [
        move
        for me in ("me", "old")
        for move in plan_balance(fleet, me, BalancePolicy.BY_THROUGHPUT, workers=["me"])
    ]
    assert [move.write.key for move in moves] == ["s0"]


def test_by_throughput_gives_nobody_more_leases_than_it_may_have():
    workers = ["a", "b"]
    fleet = loaded({f"s{number}": (None, 10.0) for number in range(10)})
    limits = BalanceLimits(max_leases=2)
    gained = [
        move.write.key
        for me in workers
        for move in plan_balance(fleet, me, BalancePolicy.BY_THROUGHPUT, limits, workers=workers)
    ]
    assert len(gained) == len(set(gained)) == 4


def test_by_throughput_passes_over_an_idle_worker_that_has_as_many_leases_as_it_may():
    fleet = loaded(
        {
            "h1": ("busy", 100.0),
            "h2": ("busy", 100.0),
            "l1": ("full", 1.0),
            "l2": ("full", 1.0),
            "m": ("spare", 10.0),
        }
    )
    limits = BalanceLimits(max_leases=2)
    gained = {
        me: [move.write.owner for move in plan_balance(fleet, me, BalancePolicy.BY_THROUGHPUT, limits)]
        for me in ("busy", "full", "spare")
    }
    assert gained == {"busy": [], "full": [], "spare": ["busy"]}


@pytest.mark.parametrize(
    ("worker", "expected"),
    [("w", 1), ("zone/w@8", 8), ("w@", 1), ("w@x", 1), ("w@0", 1), ("a@3@5", 5), ("w@9999999", 1)],
)
def test_a_workers_id_may_say_how_much_it_can_do(worker, expected):
    assert capacity_of(worker) == expected


def test_five_hundred_shards_two_zones_of_a_hundred_are_250_and_250():
    workers = [f"{zone}/w{number:03}" for zone in ("east", "west") for number in range(100)]
    uneven = {f"s{number:03}": workers[number % 100] for number in range(300)}
    uneven |= {f"s{number:03}": workers[100 + number % 100] for number in range(300, 500)}
    after = settle(uneven, workers, BalancePolicy.BY_ZONE)
    assert Counter(zone_of(owner) for owner in after.values()) == {"east": 250, "west": 250}
    assert Counter(Counter(after.values()).values()) == {2: 100, 3: 100}
    assert sum(1 for key in uneven if after[key] != uneven[key]) == 50


def test_a_newcomer_to_a_thousand_workers_gets_its_share_in_one_plan():
    chance = random.Random(1)
    workers = [f"{number % 3}/w{number}" for number in range(1000)]
    fleet = [
        FleetLease(
            Lease(f"s{number}", owner=chance.choice(workers[:900]), throughput_kbps=chance.random() * 1000),
            OwnerState.ALIVE,
        )
        for number in range(10_000)
    ]
    gained = {
        policy: len({move.write.key for move in plan_balance(fleet, workers[950], policy)})
        for policy in BalancePolicy
    }
    assert gained == {
        BalancePolicy.EVEN: 11,
        BalancePolicy.BY_ZONE: 11,
        BalancePolicy.BY_THROUGHPUT: 6,  # the heaviest of those that may go
        BalancePolicy.KCL2: 1,
    }


def test_live_leases_are_asked_for_and_free_ones_taken():
    fleet = fleet_from({"a": "x", "b": "x", "c": "x", "d": None})
    moves = plan_balance(fleet, "me")
    assert moves[0] == Acquisition(Take("d", 0, "me"), Reason.UNOWNED)
    assert isinstance(moves[1].write, RequestHandover)
    assert (moves[1].write.owner, moves[1].write.worker, moves[1].reason) == ("x", "me", Reason.SHARE)


def test_a_lease_that_waits_for_its_parents_is_not_taken():
    fleet = fleet_from({"child": None, "a": "me"}, waits={"child"})
    assert plan_balance(fleet, "me") == []


def test_what_waits_moves_before_what_is_being_read():
    owners = {f"s{number}": "x" for number in range(4)}
    moves = plan_balance(fleet_from(owners, waits={"s2", "s3"}), "me")
    assert {move.write.key for move in moves} == {"s2", "s3"}


def test_a_worker_with_too_many_gives_up_the_surplus():
    moves = plan_balance(fleet_from(dict.fromkeys("abcde", "me")), "me", limits=BalanceLimits(max_leases=3))
    assert [type(move) for move in moves] == [ReleaseLease, ReleaseLease]


def takers(fleet, workers, free_s, **limits):
    """Who would take something that is free now."""
    aged = [entry._replace(free_s=free_s) for entry in fleet]
    return {
        me
        for me in workers
        if plan_balance(aged, me, workers=workers, limits=BalanceLimits(left_over_s=10.0, **limits))
    }


def test_a_free_lease_goes_to_one_worker_then_to_one_of_the_others_then_to_anybody():
    fleet = [FleetLease(Lease("s"), OwnerState.UNOWNED)]
    workers = ["a", "b", "c"]
    first = takers(fleet, workers, 0.0)
    assert len(first) == 1
    second = takers(fleet, workers, 10.0)
    assert second > first
    assert len(second) == 2
    assert takers(fleet, workers, 20.0) == set(workers)


def test_nobody_takes_more_than_it_may_of_what_is_left_over():
    fleet = [FleetLease(Lease(f"s{number}"), OwnerState.UNOWNED, free_s=99.0) for number in range(5)]
    moves = plan_balance(fleet, "me", limits=BalanceLimits(max_leases=3), workers=["full", "dead"])
    assert len(moves) == 3


@pytest.mark.parametrize("owner_state", [OwnerState.UNOWNED, OwnerState.EXPIRED])
def test_the_java_rule_takes_no_more_at_a_time_than_it_should(owner_state):
    fleet = [FleetLease(Lease(f"s{number}", owner="dead"), owner_state, 12.0) for number in range(5)]
    moves = plan_balance(fleet, "me", BalancePolicy.KCL2, BalanceLimits(leases_to_acquire=2))
    assert len(moves) == 2


def test_a_lease_is_taken_at_once_from_an_owner_that_would_not_answer():
    fleet = [entry._replace(ignores_handovers=True) for entry in fleet_from({"a": "java", "b": "java"})]
    (move,) = plan_balance(fleet, "me")
    assert move == Acquisition(Take(move.write.key, 0, "me"), Reason.SHARE)


def test_ended_leases_count_for_nothing():
    view = LeaseView(10.0)
    view.on_scan(
        [
            Lease("done1", owner="me", checkpoint=SHARD_END),
            Lease("done2", owner="me", checkpoint=SHARD_END),
            Lease("a", owner="x"),
            Lease("b", owner="x"),
        ],
        0.0,
    )
    moves = plan_balance(fleet_of(view, 1.0, "me"), "me")
    assert len(moves) == 1


def test_workers_are_who_renews_or_has_asked():
    fleet = [
        FleetLease(Lease("a", owner="new", checkpoint_owner="old"), OwnerState.ALIVE),
        FleetLease(Lease("b", owner="dead"), OwnerState.EXPIRED),
    ]
    assert live_workers(fleet, "me") == {"me", "new", "old"}


def test_a_worker_that_still_reads_a_lease_without_a_next_owner_lives():
    assert live_workers([FleetLease(Lease("a", checkpoint_owner="old"), OwnerState.ALIVE)], "me") == {
        "me",
        "old",
    }


# --- beside Java workers ----------------------------------------------------------------------------------


class JavaTaker:
    """The lease taker of Java KCL 2.x, written from its description, apart from the product's `kcl2`."""

    def __init__(self, name, chance, failover_s=10.0):
        self.name = name
        self.chance = chance
        self.failover_s = failover_s

    def take(self, owners):
        """Answer the keys that it takes now; `owners` has live owners, None for free leases."""
        counts = Counter({self.name: 0})
        counts.update(owner for owner in owners.values() if owner is not None)
        available = [key for key, owner in owners.items() if owner is None]
        if available:  # never renewed: very old, and taken whatever the target
            return available
        target = 1 if len(counts) >= len(owners) else -(-len(owners) // len(counts))
        need = target - counts[self.name]
        if need <= 0:
            return []
        donor, load = max(
            ((worker, count) for worker, count in counts.items() if worker != self.name),
            key=lambda item: item[1],
        )
        if load < target:
            return []
        number = min(need, load - target)
        if number == 0 and need > 1:
            number = 1
        held = [key for key, owner in owners.items() if owner == donor]
        return self.chance.sample(held, min(number, 1))


@pytest.mark.parametrize("java_count", [1, 2, 5])
@pytest.mark.parametrize("penstock_count", [1, 3, 6])
@pytest.mark.parametrize("lease_count", [1, 4, 17, 60])
def test_beside_java_workers_it_settles_and_nothing_moves_for_twenty_rounds(
    java_count, penstock_count, lease_count
):
    chance = random.Random(lease_count * 100 + java_count * 10 + penstock_count)
    javas = [JavaTaker(f"java{number}", chance) for number in range(java_count)]
    pythons = [f"py{number}" for number in range(penstock_count)]
    owners = dict.fromkeys([f"s{number}" for number in range(lease_count)])
    moves_in_round = []
    for _ in range(lease_count * 2 + 40):
        before = dict(owners)
        turns = [*javas, *pythons]
        chance.shuffle(turns)
        for turn in turns:  # each acts on a scan of its own moment
            if isinstance(turn, JavaTaker):
                for key in turn.take(owners):
                    owners[key] = turn.name
            else:
                for move in plan_balance(fleet_from(owners), turn):
                    owners[move.write.key] = turn
        moves_in_round.append(sum(1 for key in owners if owners[key] != before[key]))
    assert moves_in_round[-20:] == [0] * 20
    counts = Counter(dict.fromkeys([*pythons, *(java.name for java in javas)], 0))
    counts.update(owners.values())
    assert max(counts.values()) - min(counts.values()) <= 1


def test_kcl2_steals_one_lease_at_a_time_from_the_most_loaded():
    owners = {f"a{number}": "busy" for number in range(6)} | {"b0": "idle"}
    moves = plan_balance(fleet_from(owners), "me", BalancePolicy.KCL2)
    assert len(moves) == 1
    assert moves[0].reason is Reason.STEAL
    assert owners[moves[0].write.key] == "busy"
    assert isinstance(moves[0].write, Take)


def test_kcl2_takes_every_very_old_lease_whatever_its_target():
    owners = {"a": "x", "b": None, "c": None, "d": None}
    moves = plan_balance(fleet_from(owners), "me", BalancePolicy.KCL2)
    assert sorted(move.write.key for move in moves) == ["b", "c", "d"]
    assert {move.reason for move in moves} == {Reason.VERY_OLD}


def test_kcl2_takes_no_more_free_leases_than_it_needs_and_steals_none_beside_them():
    entries = [FleetLease(Lease(f"f{number}", owner="dead"), OwnerState.EXPIRED, 12.0) for number in range(3)]
    entries += [FleetLease(Lease("b", owner="bar"), OwnerState.ALIVE, 1.0)]
    moves = plan_balance(entries, "me", BalancePolicy.KCL2)
    assert [move.reason for move in moves] == [Reason.EXPIRED, Reason.EXPIRED]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"bar": 2, "baz": 2, "me": 1}, 0),
        ({"bar": 1, "baz": 5, "me": 0}, 1),
        ({"bar": 3, "me": 0}, 1),
        ({"bar": 2, "me": 2}, 0),
        ({}, 0),
    ],
)
def test_kcl2_steals_as_the_java_taker_does(counts, expected):
    owners = {f"{worker}{number}": worker for worker, count in counts.items() for number in range(count)}
    assert len(plan_balance(fleet_from(owners), "me", BalancePolicy.KCL2)) == expected


@pytest.mark.parametrize(("max_leases", "expected"), [(2, 0), (3, 1)])
def test_kcl2_steals_only_while_it_has_fewer_leases_than_it_may(max_leases, expected):
    owners = {f"bar{number}": "bar" for number in range(8)} | {"me0": "me", "me1": "me"}
    limits = BalanceLimits(max_leases=max_leases)
    assert len(plan_balance(fleet_from(owners), "me", BalancePolicy.KCL2, limits)) == expected
