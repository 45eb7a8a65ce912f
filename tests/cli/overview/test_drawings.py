"""The drawings of the dashboard, and the bounded memory behind the one of the lag."""

import re
from xml.etree import ElementTree as ET

import pytest

from penstock.cli.overview.drawings import LEGEND, colour_of, draw_lag, draw_lineage, draw_sparkline
from penstock.cli.overview.lag_history import POINTS_MAX, LagHistory, LagPoint
from penstock.cli.overview.lineage import place_shards
from penstock.cli.overview.snapshot import ApplicationSnapshot, ShardRow, Snapshot, Trouble
from penstock.core.hash_key import HASH_KEY_MAX, HashRange
from penstock.core.shard import Shard

QUARTER = 2**126


def shard(shard_id, first, last, *parents, is_open=True):
    span = HashRange(first * QUARTER, (last + 1) * QUARTER - 1)
    return Shard(shard_id, span, parents, ending_sequence_number=None if is_open else "9")


LINEAGE = (
    shard("whole", 0, 3, is_open=False),
    shard("left", 0, 1, "whole", is_open=False),
    shard("right", 2, 3, "whole", is_open=False),
    shard("first", 0, 0, "left"),
    shard("second", 1, 1, "left", is_open=False),
    shard("merged", 1, 3, "second", "right"),
)


def test_shards_are_placed_by_hash_key_and_in_the_order_of_splits_and_merges():
    places = {
        box.shard.shard_id: (box.first_column, box.end_column, box.top, box.bottom)
        for box in place_shards(LINEAGE)
    }
    assert places == {
        "whole": (0, 1, 0.0, 1.0),
        "left": (1, 2, 0.0, 0.5),
        "right": (1, 3, 0.5, 1.0),
        "first": (2, 4, 0.0, 0.25),
        "second": (2, 3, 0.25, 0.5),
        "merged": (3, 4, 0.25, 1.0),
    }


def test_no_two_shards_share_a_place():
    boxes = place_shards(LINEAGE)
    covered = [
        (column, quarter)
        for box in boxes
        for column in range(box.first_column, box.end_column)
        for quarter in range(round(box.top * 4), round(box.bottom * 4))
    ]
    assert len(covered) == len(set(covered)) == 4 * 4


def test_a_parent_that_has_left_the_stream_counts_for_nothing():
    (box,) = place_shards([Shard("s9", HashRange(0, HASH_KEY_MAX), ("gone",))])
    assert (box.first_column, box.end_column) == (0, 1)
    assert place_shards([]) == ()


@pytest.mark.parametrize(
    ("row", "colour"),
    [
        (None, "unread"),
        (ShardRow("s", "ended"), "ended"),
        (ShardRow("s", "stopped", trouble=Trouble.STOPPED, lag_ms=0), "bad"),
        (ShardRow("s", "read"), "unknown"),
        (ShardRow("s", "read", lag_ms=6_000), "lag0"),
        (ShardRow("s", "read", lag_ms=6_001), "lag1"),
        (ShardRow("s", "read", lag_ms=60_000), "lag2"),
        (ShardRow("s", "read", lag_ms=300_000), "lag3"),
        (ShardRow("s", "read", lag_ms=300_001), "lag4"),
    ],
)
def test_a_shards_colour_tells_its_lag(row, colour):
    assert colour_of(row, 60.0) == colour
    assert colour in dict(LEGEND)


def test_a_lineage_is_a_picture_with_every_shard_and_escapes_what_others_wrote():
    hostile = '"><script>alert(1)</script>'
    rows = (
        ShardRow("first", "read", owner=hostile, lag_ms=7),
        ShardRow("merged", "stopped", trouble=Trouble.STOPPED),
    )
    drawn = draw_lineage(
        ApplicationSnapshot("a", "s", 0, rows, lineage=(*LINEAGE, shard(hostile, 0, 3))), 60.0
    )
    root = ET.fromstring(drawn)
    groups = root.findall("g")
    assert [group.get("class") for group in groups] == ["unread"] * 3 + ["lag0", "unread", "bad", "unread"]
    titles = [group.findtext("title") for group in groups]
    assert titles[3].startswith("first, 25.00% of the keys, open, from left, read, owner ")
    assert hostile in titles[3]
    assert "<script" not in drawn
    assert draw_lineage(ApplicationSnapshot("a", None, 0, rows), 60.0) == ""


def test_a_lag_is_drawn_from_the_second_look_on_with_the_limit_where_it_is_in_sight():
    points = [LagPoint(1_000 * n, 1_000 * n, 500 * n) for n in range(3)]
    assert draw_lag(points[:1], 1.0) == draw_sparkline(points[:1]) == ""
    drawn = draw_lag(points, 1.0)
    worst, median = re.findall(r'<polyline class="(?:worst|median)" points="([^"]*)"', drawn)
    assert worst == "0.0,150.0 320.0,80.0 640.0,10.0"
    assert median == "0.0,150.0 320.0,115.0 640.0,80.0"
    assert 'class="limit"' in drawn
    assert 'class="limit"' not in draw_lag(points, 60.0)
    assert "00:00:00Z" in drawn
    assert "from 0 to 2.0 s; the limit is 1.0 s" in drawn
    assert draw_sparkline(points).count("<polyline") == 1


def test_a_small_line_is_no_finer_than_it_is_drawn_and_keeps_the_worst():
    lags = [0] * 720
    lags[100] = 9_000
    drawn = draw_sparkline([LagPoint(1_000 * n, lag, 0) for n, lag in enumerate(lags)])
    (places,) = re.findall(r'points="([^"]*)"', drawn)
    heights = [float(place.partition(",")[2]) for place in places.split()]
    assert len(heights) == 60
    assert sorted(heights)[:2] == [2.5, 37.5]


def test_points_at_one_moment_and_without_any_lag_are_drawn_too():
    assert "nan" not in draw_lag([LagPoint(5, 0, 0), LagPoint(5, 0, 0)], 60.0)


def snapshot(at_ms, **lags):
    return Snapshot(
        at_ms,
        tuple(
            ApplicationSnapshot(
                name, None, at_ms, tuple(ShardRow(str(n), "read", lag_ms=lag) for n, lag in enumerate(each))
            )
            for name, each in lags.items()
        ),
    )


def test_the_worst_and_the_median_lag_are_remembered():
    history = LagHistory()
    history.add(snapshot(1, a=[1, 2, 9, None], b=[None]))
    history.add(snapshot(2, a=[5], b=[]))
    assert history.points_of("a") == (LagPoint(1, 9, 2), LagPoint(2, 5, 5))
    assert history.points_of("b") == history.points_of("c") == ()


def test_the_history_is_bounded_and_forgets_applications_that_have_gone():
    history = LagHistory()
    for at_ms in range(POINTS_MAX + 5):
        history.add(snapshot(at_ms, a=[at_ms], b=[0]))
    assert [point.at_ms for point in history.points_of("a")] == list(range(5, POINTS_MAX + 5))
    history.add(snapshot(9999, b=[0]))
    assert history.points_of("a") == ()
