import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.core.hash_key import FULL_RANGE, HASH_KEY_MAX, HashRange, hash_partition_key
from penstock.core.position import LATEST, SHARD_END, TRIM_HORIZON, at_record, at_timestamp
from penstock.core.shard import Shard
from penstock.core.shard_graph import Cover, HashRouter, ShardGraph, cover_of, covers
from penstock.errors import RecordError, StreamChanged
from stream_history import live_stream

TOP = HASH_KEY_MAX


def shard(number, start, end, begins, ends=None, parents=()):
    return Shard(
        f"shard-{number}",
        HashRange(start, end),
        tuple(f"shard-{parent}" for parent in parents),
        str(begins),
        None if ends is None else str(ends),
    )


def numbers(shards):
    return [int(one.shard_id.removeprefix("shard-")) for one in shards]


# A stream that was split and merged over and over (the graph that the Java KCL's synchroniser is tested with).
LATTICE = [
    shard(0, 0, 99, 11, 102),
    shard(1, 100, 199, 11, 102),
    shard(2, 200, 299, 11, 102),
    shard(3, 300, 399, 11, 102),
    shard(4, 400, 499, 11),
    shard(5, 500, TOP, 11, 205),
    shard(6, 0, 199, 103, 205, [0, 1]),
    shard(7, 200, 399, 103, 205, [2, 3]),
    shard(8, 0, 399, 206, None, [6, 7]),
    shard(9, 500, 799, 206, None, [5]),
    shard(10, 800, TOP, 206, None, [5]),
]
GRAPH = ShardGraph(LATTICE)


def ids(*wanted):
    return frozenset(f"shard-{number}" for number in wanted)


# --- lineage ----------------------------------------------------------------------------------------------


def test_a_merged_shard_has_two_parents_and_a_split_one_two_children():
    assert numbers(GRAPH.parents("shard-8")) == [6, 7]
    assert numbers(GRAPH.parents("shard-9")) == [5]
    assert numbers(GRAPH.children("shard-5")) == [9, 10]
    assert numbers(GRAPH.children("shard-0")) == [6]
    assert GRAPH.parents("shard-4") == GRAPH.children("shard-4") == ()


def test_ancestors_and_descendants_reach_through_merges():
    assert GRAPH.ancestors(["shard-8"]) == ids(0, 1, 2, 3, 6, 7)
    assert GRAPH.ancestors(["shard-0"]) == frozenset()
    assert GRAPH.descendants(["shard-0"]) == ids(6, 8)
    assert GRAPH.descendants(["shard-5"]) == ids(9, 10)
    assert GRAPH.descendants(["shard-8"]) == frozenset()


def test_open_shards_come_in_the_order_of_their_hash_ranges():
    assert numbers(GRAPH.open_shards) == [8, 4, 9, 10]


def test_a_parent_that_is_gone_still_has_children_and_is_nobodys_listed_parent():
    graph = ShardGraph(LATTICE[6:])
    assert numbers(graph.children("shard-0")) == [6]
    assert graph.parents("shard-6") == ()
    assert graph.ancestors(["shard-8"]) == ids(6, 7)


def test_shards_are_found_by_name():
    assert GRAPH["shard-4"] is LATTICE[4]
    assert "shard-4" in GRAPH
    assert "shard-99" not in GRAPH
    with pytest.raises(KeyError):
        GRAPH["shard-99"]


# --- listings ---------------------------------------------------------------------------------------------


def test_listings_are_joined_in_whatever_order_they_come():
    pages = [LATTICE[4:8], LATTICE[:5], LATTICE[7:], LATTICE[2:3]]
    for _ in range(5):
        random.Random(1).shuffle(pages)
        graph = ShardGraph(one for page in pages for one in page)
        assert list(graph) == list(GRAPH)


def test_a_shard_that_one_listing_shows_closed_is_closed():
    before = replace(LATTICE[0], ending_sequence_number=None)
    for graph in (ShardGraph([before, LATTICE[0]]), ShardGraph([LATTICE[0], before])):
        assert graph["shard-0"] == LATTICE[0]
    assert numbers(ShardGraph([before, LATTICE[0]]).open_shards) == []


def test_a_parent_that_one_listing_has_forgotten_is_kept():
    forgotten = replace(LATTICE[8], parents=("shard-7",))
    for graph in (ShardGraph([forgotten, LATTICE[8]]), ShardGraph([LATTICE[8], forgotten])):
        assert graph["shard-8"].parents == ("shard-6", "shard-7")


def test_a_shard_known_only_from_its_parents_last_page_learns_its_beginning():
    child = Shard("shard-8", HashRange(0, 399), ("shard-6", "shard-7"))
    assert ShardGraph([child, LATTICE[8]])["shard-8"] == LATTICE[8]
    assert ShardGraph([child, child])["shard-8"] == child


@pytest.mark.parametrize(
    "other",
    [replace(LATTICE[0], starting_sequence_number="12"), replace(LATTICE[0], hash_range=HashRange(0, 98))],
)
def test_listings_of_two_streams_of_one_name_are_not_mixed(other):
    with pytest.raises(
        StreamChanged, match=r"shard shard-0 begins at 11 with hash keys 0\.\.99 in one listing"
    ):
        ShardGraph([*LATTICE, other])


def test_a_shard_that_descends_from_itself_is_refused():
    circle = [shard(1, 0, 5, 1, 2, [2]), shard(2, 0, 5, 1, 2, [1]), shard(3, 6, TOP, 1)]
    with pytest.raises(ValueError, match="the listing is broken: shard-1, shard-2 descend from themselves"):
        ShardGraph(circle)
    with pytest.raises(ValueError, match="shard-1 descend from themselves"):
        ShardGraph([shard(1, 0, TOP, 1, 2, [1])])


def test_a_parent_that_a_page_from_before_the_split_shows_open_takes_no_puts():
    stale = replace(LATTICE[5], ending_sequence_number=None)
    graph = ShardGraph([*LATTICE[:5], stale, *LATTICE[6:]])
    assert numbers(graph.open_shards) == [8, 4, 9, 10]
    assert graph.open_cover() == Cover((), ())


def test_a_parent_named_twice_is_one_parent():
    graph = ShardGraph([LATTICE[5], shard(9, 500, 799, 206, None, [5, 5])])
    assert numbers(graph.parents("shard-9")) == [5]


def test_an_empty_listing_is_a_graph_too():
    empty = ShardGraph()
    assert list(empty) == []
    assert empty.open_cover() == Cover((FULL_RANGE,), ())
    assert empty.snapshot_at(TRIM_HORIZON) == ()
    assert HashRouter(empty.open_shards).predict_shard("k") is None


# --- holes and overlaps -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranges", "holes", "overlaps"),
    [
        ([], [(0, TOP)], []),
        ([(0, TOP)], [], []),
        ([(6, TOP), (0, 5)], [], []),
        ([(1, TOP)], [(0, 0)], []),
        ([(0, TOP - 1)], [(TOP, TOP)], []),
        ([(0, 4), (6, TOP)], [(5, 5)], []),
        ([(0, 5), (5, TOP)], [], [(5, 5)]),
        ([(0, TOP), (3, 7)], [], [(3, 7)]),
        ([(0, TOP), (3, 7), (5, 9)], [], [(3, 9)]),
        ([(0, TOP), (3, 7), (3, 7)], [], [(3, 7)]),
        ([(0, TOP), (3, 7), (8, 9)], [], [(3, 9)]),
        ([(0, TOP), (3, 7), (9, 9)], [], [(3, 7), (9, 9)]),
        ([(0, 9), (5, 20), (30, 40), (30, TOP)], [(21, 29)], [(5, 9), (30, 40)]),
    ],
)
def test_holes_and_overlaps_of_ranges(ranges, holes, overlaps):
    expected = Cover(tuple(HashRange(*hole) for hole in holes), tuple(HashRange(*span) for span in overlaps))
    assert cover_of(HashRange(*span) for span in ranges) == expected
    assert cover_of(HashRange(*span) for span in reversed(ranges)) == expected


SMALL = 24
SPANS = st.lists(
    st.tuples(st.integers(0, SMALL), st.integers(0, SMALL)).map(lambda ends: HashRange(min(ends), max(ends))),
    max_size=6,
)


def named_keys(spans):
    return [key for span in spans for key in range(span.start, min(span.end, SMALL) + 1)]


@given(SPANS)
def test_every_hash_key_is_counted_right(spans):
    cover = cover_of(spans)
    times = [sum(key in span for span in spans) for key in range(SMALL + 1)]
    assert named_keys(cover.holes) == [key for key, count in enumerate(times) if count == 0]
    assert named_keys(cover.overlaps) == [key for key, count in enumerate(times) if count > 1]
    assert cover.holes[-1].end == TOP


# --- where to begin ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "position", "begun", "holes"),
    [
        (range(11), TRIM_HORIZON, [0, 1, 2, 3, 4, 5], []),
        (range(11), at_timestamp(5), [0, 1, 2, 3, 4, 5], []),
        (range(11), LATEST, [8, 4, 9, 10], []),
        # Retention has removed the first generation, and of one merge only one parent: the child covers the rest.
        (range(4, 11), TRIM_HORIZON, [6, 7, 4, 5], []),
        ([0, 2, 3, 4, 5, 6, 7, 8, 9, 10], TRIM_HORIZON, [0, 6, 2, 3, 4, 5], []),
        ([4, 8, 9, 10], TRIM_HORIZON, [8, 4, 9, 10], []),
        # A page is missing.
        ([0, 1, 4, 5], TRIM_HORIZON, [0, 1, 4, 5], [(200, 399)]),
        ([4, 8, 10], LATEST, [8, 4, 10], [(500, 799)]),
    ],
)
def test_an_empty_table_begins_with_these_shards(listed, position, begun, holes):
    snapshot = ShardGraph(LATTICE[number] for number in listed).snapshot_at(position)
    assert numbers(snapshot) == begun
    assert cover_of(one.hash_range for one in snapshot).holes == tuple(HashRange(*hole) for hole in holes)


@pytest.mark.parametrize("position", [SHARD_END, at_record("5")])
def test_a_place_in_one_shard_is_no_place_to_begin_a_stream(position):
    with pytest.raises(ValueError, match="is not a position to begin a stream at"):
        GRAPH.snapshot_at(position)


# --- routing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hash_key", "owner"), [(0, 8), (399, 8), (400, 4), (499, 4), (500, 9), (799, 9), (800, 10), (TOP, 10)]
)
def test_a_record_goes_to_the_open_shard_that_owns_its_hash_key(hash_key, owner):
    router = HashRouter(GRAPH.open_shards)
    assert router.predict_shard("whatever", str(hash_key)) == f"shard-{owner}"


def test_a_record_without_an_explicit_hash_key_goes_by_its_partition_key():
    middle = hash_partition_key("k")
    router = HashRouter(
        [shard(1, 0, middle - 1, 1), shard(2, middle, middle, 1), shard(3, middle + 1, TOP, 1)]
    )
    assert router.predict_shard("k") == "shard-2"
    assert router.shard_ids == ("shard-1", "shard-2", "shard-3")


def test_the_router_does_not_guess():
    router = HashRouter([shard(1, 5, 9, 1), shard(2, 8, 12, 1), shard(3, 20, 30, 1), shard(4, 25, 26, 1)])
    owners = {
        key: router.predict_shard("k", str(key))
        for key in (0, 4, 5, 7, 8, 9, 10, 12, 13, 19, 20, 24, 25, 26, 27, 30, 31)
    }
    assert owners == {
        0: None,
        4: None,
        5: "shard-1",
        7: "shard-1",
        8: None,
        9: None,
        10: "shard-2",
        12: "shard-2",
        13: None,
        19: None,
        20: "shard-3",
        24: "shard-3",
        25: None,
        26: None,
        27: "shard-3",
        30: "shard-3",
        31: None,
    }
    assert router.shard_ids == ("shard-1", "shard-2", "shard-3")
    assert router.predict_shard("k", str(TOP)) is None


@pytest.mark.parametrize(
    ("partition_key", "explicit_hash_key"), [("k", "-1"), ("k", str(2**128)), ("\ud800", None)]
)
def test_a_key_that_no_shard_can_own_is_refused(partition_key, explicit_hash_key):
    with pytest.raises(RecordError):
        HashRouter(GRAPH.open_shards).predict_shard(partition_key, explicit_hash_key)


# --- any history ------------------------------------------------------------------------------------------


HISTORIES = st.builds(
    lambda seed, steps: (seed, live_stream(random.Random(seed), steps)), st.integers(0), st.integers(0, 25)
)


@given(HISTORIES)
def test_in_any_history_the_open_shards_cover_everything_once(history):
    _, shards = history
    graph = ShardGraph(shards)
    assert graph.open_cover() == Cover((), ())
    assert graph.open_shards == graph.snapshot_at(LATEST)
    router = HashRouter(graph.open_shards)
    assert router.shard_ids == tuple(one.shard_id for one in graph.open_shards)
    for one in graph.open_shards:
        assert (
            router.predict_shard("k", str(one.hash_range.start))
            == router.predict_shard("k", str(one.hash_range.end))
            == one.shard_id
        )


@given(HISTORIES)
def test_in_any_history_parents_come_before_children_whatever_the_listing_looked_like(history):
    seed, shards = history
    chance = random.Random(seed)
    doubled = shards + [replace(one, ending_sequence_number=None) for one in shards if chance.random() < 0.3]
    chance.shuffle(doubled)
    graph = ShardGraph(doubled)
    assert list(graph) == list(ShardGraph(shards))
    place = {one.shard_id: number for number, one in enumerate(graph)}
    assert all(place[parent] < place[one.shard_id] for one in graph for parent in one.parents)
    for one in graph:
        by_hand = set()
        todo = list(one.parents)
        while todo:
            parent = todo.pop()
            by_hand.add(parent)
            todo += graph[parent].parents
        assert graph.ancestors([one.shard_id]) == by_hand
        assert all((one.shard_id in graph.descendants([ancestor])) for ancestor in by_hand)
        assert graph.descendants([one.shard_id]) == {
            other.shard_id for other in graph if one.shard_id in graph.ancestors([other.shard_id])
        }


@given(HISTORIES, st.floats(0, 1))
def test_in_any_history_the_oldest_snapshot_and_what_descends_from_it_are_everything(history, kept):
    _, shards = history
    closed = [one for one in shards if not one.is_open]
    trimmed = {one.shard_id for one in closed[: int(len(closed) * (1 - kept))]}
    graph = ShardGraph(one for one in shards if one.shard_id not in trimmed)
    snapshot = graph.snapshot_at(TRIM_HORIZON)
    assert cover_of(one.hash_range for one in snapshot).holes == ()
    reached = {one.shard_id for one in snapshot}
    for one in snapshot:
        reached |= graph.descendants([one.shard_id])
    assert reached == {one.shard_id for one in graph}


def test_a_lattice_of_ten_thousand_shards_is_followed_without_recursion_or_blow_up():
    # Each generation splits and merges: a shard has 2^5000 paths to the first one.
    shards = [shard(0, 0, TOP, 1, 2)]
    while len(shards) < 10_000:
        number, top = len(shards), shards[-1]
        begins = int(top.starting_sequence_number) + 10
        shards += [
            shard(number, 0, 99, begins, begins + 5, [number - 1]),
            shard(number + 1, 100, TOP, begins, begins + 5, [number - 1]),
            shard(number + 2, 0, TOP, begins + 6, begins + 9, [number, number + 1]),
        ]
    began_s = time.process_time()
    graph = ShardGraph(reversed(shards))
    assert len(graph.ancestors([shards[-1].shard_id])) == len(shards) - 1
    assert len(graph.descendants(["shard-0"])) == len(shards) - 1
    assert time.process_time() - began_s < 5


def test_children_cover_their_parent_only_together():
    parts = [HashRange(10, 14), HashRange(15, 19)]
    assert covers(parts, HashRange(10, 19))
    assert covers([HashRange(0, TOP)], HashRange(10, 19))
    assert not covers(parts[:1], HashRange(10, 19))
    assert not covers([], HashRange(0, 0))
