"""Which leases exist: cases as data, with the exact answer each (`tests/scenarios/creation.json`)."""

import json
from pathlib import Path

import pytest

from penstock.core.hash_key import HASH_KEY_MAX, HashRange
from penstock.core.leases.lease import Lease
from penstock.core.leases.required_leases import (
    BadSnapshot,
    HoleCounts,
    find_holes,
    find_uncovered_shards,
    find_unlisted_leases,
    first_listing_filter,
    plan_child_leases,
    plan_deletions,
    plan_first_leases,
    plan_missing_leases,
    start_reading_at,
    unknown_names,
)
from penstock.core.position import parse_checkpoint
from penstock.core.shard import ChildShard, Shard
from penstock.core.starting import StartingPosition

DOCUMENT = json.loads((Path(__file__).parents[2] / "scenarios" / "creation.json").read_text())
GRAPHS = DOCUMENT["graphs"]


def hash_range(text):
    start, end = text.split("-")
    return HashRange(int(start), HASH_KEY_MAX if end == "MAX" else int(end))


def position(text):
    word, _, moment = text.partition("@")
    return parse_checkpoint(word, timestamp_ms=int(moment) if moment else None)


def spelled(found):
    if found.sequence_number is not None:
        return found.sequence_number
    return found.sentinel.value + (f"@{found.timestamp_ms}" if found.timestamp_ms is not None else "")


def shards_of(case):
    graph = GRAPHS[case["graph"]]
    listed = case.get("listed", list(graph))
    return [
        Shard(
            key,
            hash_range(graph[key]["hash"]),
            tuple(graph[key].get("parents", ())),
            graph[key].get("from", "0"),
            graph[key].get("to"),
        )
        for key in listed
    ]


def leases_of(case):
    graph = GRAPHS[case["graph"]]
    return {
        key: Lease(
            key,
            checkpoint=position(checkpoint),
            parents=frozenset(graph[key].get("parents", ())),
            hash_range=hash_range(graph[key]["hash"]),
        )
        for key, checkpoint in case.get("leases", {}).items()
    }


def start_of(case):
    named = {key: position(text) for key, text in case.get("named", {}).items()}
    return StartingPosition(default=position(case.get("start", "TRIM_HORIZON")), by_shard=named)


def first(case):
    plan = plan_first_leases(shards_of(case), start_of(case), case.get("moment", 5000))
    if isinstance(plan, BadSnapshot):
        return plan.detail
    return {lease.key: spelled(lease.checkpoint) for lease in plan}


def missing(case):
    leases = leases_of(case)
    holes = find_holes(leases.values(), {}).holes
    plan = plan_missing_leases(
        leases, shards_of(case), holes, start_of(case), needed_parents=frozenset(case.get("awaited", ()))
    )
    return {found.lease.key: f"{spelled(found.lease.checkpoint)} {found.why.name}" for found in plan}


def delete(case):
    plan = plan_deletions(leases_of(case), frozenset(case.get("vanished", ())))
    return {found.write.key: found.why.name for found in plan}


def children(case):
    graph = GRAPHS[case["graph"]]
    found = [
        ChildShard(key, tuple(graph[key]["parents"]), hash_range(graph[key]["hash"]))
        for key in case["children"]
    ]
    return {lease.key: spelled(lease.checkpoint) for lease in plan_child_leases(found)}


KINDS = {"first": first, "missing": missing, "delete": delete, "children": children}


@pytest.mark.parametrize("case", DOCUMENT["cases"], ids=lambda case: case["name"])
def test_exactly_the_leases_of_the_case(case):
    assert KINDS[case["kind"]](case) == case["expected"], case["sentence"]


def test_created_leases_carry_parents_and_hash_range():
    plan = plan_child_leases([ChildShard("c", ("a", "b"), HashRange(5, 9))])
    assert plan == [Lease("c", parents=frozenset({"a", "b"}), hash_range=HashRange(5, 9))]


def test_the_first_leases_come_in_the_order_of_their_hash_ranges():
    case = {"graph": "A", "listed": ["10", "4", "9", "8"], "start": "LATEST"}
    plan = plan_first_leases(shards_of(case), start_of(case), 77)
    assert [lease.key for lease in plan] == ["8", "4", "9", "10"]


@pytest.mark.parametrize(
    ("start", "asked"),
    [
        (StartingPosition(position("LATEST")), ("AT_LATEST", None)),
        (StartingPosition(position("TRIM_HORIZON")), ("AT_TRIM_HORIZON", None)),
        (StartingPosition(position("AT_TIMESTAMP@9")), ("AT_TIMESTAMP", 9)),
        (StartingPosition(position("AT_TIMESTAMP@9"), {"a": position("5")}), ("FROM_TIMESTAMP", 9)),
        (StartingPosition(position("LATEST"), {"a": position("5")}), (None, None)),
    ],
)
def test_names_make_the_first_listing_a_whole_one(start, asked):
    assert first_listing_filter(start) == asked


def test_names_that_no_shard_bears_are_told():
    start = StartingPosition(by_shard={"4": position("5"), "no": position("5"), "nor": position("6")})
    assert unknown_names(shards_of({"graph": "A"}), start) == ("no", "nor")


def test_positions_by_shard_are_used_and_latest_among_them_is_pinned():
    start = StartingPosition(default=position("TRIM_HORIZON"), by_shard={"4": position("LATEST")})
    plan = plan_first_leases(shards_of({"graph": "A", "listed": ["8", "4", "9", "10"]}), start, 42)
    assert {lease.key: spelled(lease.checkpoint) for lease in plan} == {
        "8": "TRIM_HORIZON",
        "4": "LATEST@42",
        "9": "TRIM_HORIZON",
        "10": "TRIM_HORIZON",
    }


def test_more_than_a_thousand_shards_get_their_leases():
    count = 2500
    step = (HASH_KEY_MAX + 1) // count
    shards = [
        Shard(
            f"s{place:05}",
            HashRange(place * step, HASH_KEY_MAX if place == count - 1 else (place + 1) * step - 1),
        )
        for place in range(count)
    ]
    plan = plan_first_leases(shards[::-1], StartingPosition(default=position("TRIM_HORIZON")), 0)
    assert [lease.key for lease in plan] == [shard.shard_id for shard in shards]


def test_a_row_at_latest_whose_parent_is_known_starts_at_its_beginning():
    late = Lease("c", checkpoint=position("LATEST@9"), parents=frozenset({"p"}))
    assert spelled(start_reading_at(late, has_parent_lease=True)) == "TRIM_HORIZON"
    assert spelled(start_reading_at(late, has_parent_lease=False)) == "LATEST@9"


def test_a_checkpoint_is_where_reading_starts_whatever_the_parents():
    assert spelled(start_reading_at(Lease("c", checkpoint=position("17")), has_parent_lease=True)) == "17"


def test_a_hole_must_stay_for_the_rounds_of_confidence():
    counts = HoleCounts(3)
    hole = HashRange(10, 20)
    assert [counts.on_round([hole]) for _ in range(4)] == [[], [], [hole], [hole]]


def test_a_hole_that_shrinks_keeps_its_count():
    counts = HoleCounts(3)
    counts.on_round([HashRange(10, 20)])
    counts.on_round([HashRange(10, 15)])
    assert counts.on_round([HashRange(12, 15)]) == [HashRange(12, 15)]


def test_a_hole_that_closes_and_comes_back_is_counted_anew():
    counts = HoleCounts(2)
    hole = HashRange(10, 20)
    assert [counts.on_round(holes) for holes in ([hole], [], [hole], [hole])] == [[], [], [], [hole]]


def test_rows_without_a_range_make_the_coverage_unknown_until_a_listing_tells_it():
    leases = [Lease("a", hash_range=HashRange(0, 9)), Lease("b")]
    assert find_holes(leases, {}).leases_without_range == ("b",)
    assert find_holes(leases, {"b": HashRange(10, HASH_KEY_MAX)}).holes == ()


def test_a_finished_lease_is_unlisted_when_the_listing_lacks_its_shard():
    leases = {"a": Lease("a", checkpoint=position("SHARD_END"))}
    assert find_unlisted_leases(leases, []) == {"a"}
    assert find_unlisted_leases(leases, [Shard("a", HashRange(0, 9))]) == set()


LOW, HIGH = HashRange(0, 9), HashRange(10, HASH_KEY_MAX)
SPLIT = (
    Shard("p", HashRange(0, HASH_KEY_MAX), (), "0", "9"),
    Shard("a", LOW, ("p",)),
    Shard("b", HIGH, ("p",)),
)


@pytest.mark.parametrize(
    ("says", "leases", "expected"),
    [
        ("an empty table has no worker yet", (), []),
        ("the parent is read", (Lease("p"),), []),
        ("the parent is ended", (Lease("p", checkpoint=position("SHARD_END")),), ["a", "b"]),
        ("the parent's lease was cleared away", (Lease("a", hash_range=LOW),), ["b"]),
        ("each has a lease", (Lease("a"), Lease("b", checkpoint=position("SHARD_END"))), []),
    ],
)
def test_an_open_shard_is_uncovered_if_no_unfinished_lease_has_its_hash_keys(says, leases, expected):
    del says
    assert find_uncovered_shards({lease.key: lease for lease in leases}, SPLIT) == expected
