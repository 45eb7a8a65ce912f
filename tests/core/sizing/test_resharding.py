"""Which shard is split or merged next, and when none is."""

import pytest

from penstock.core.hash_key import HASH_KEYS, HashRange
from penstock.core.limits import MIB
from penstock.core.shard import Shard
from penstock.core.sizing.load_map import KeyLoad, LoadMap
from penstock.core.sizing.resharding import (
    Hold,
    Merge,
    Resharder,
    SizeLimits,
    Split,
    StreamView,
    apply_action,
    hot_keys_of,
    limits_for,
    plan_actions,
)
from penstock.errors import OptionError

KEYS = 256
LIMITS = SizeLimits(1, 20)


def shards_of(count):
    return [
        Shard(f"s{n}", HashRange(n * HASH_KEYS // count, (n + 1) * HASH_KEYS // count - 1))
        for n in range(count)
    ]


def even(total, *more, keys=KEYS):
    return LoadMap(
        [
            *(KeyLoad((2 * n + 1) * HASH_KEYS // (2 * keys), total * MIB / keys, 0.0) for n in range(keys)),
            *more,
        ]
    )


def decide(count, load, limits=LIMITS, peak=None, young=()):
    return Resharder(limits).decide(StreamView(shards_of(count), load, peak or load, frozenset(young)))


def test_a_full_stream_of_one_shard_is_split_where_half_of_the_load_is():
    loads = [KeyLoad(n * HASH_KEYS // 1000, MIB * 0.95 / 100, 0.0) for n in range(100)]
    action = decide(1, LoadMap(loads))
    assert isinstance(action, Split)
    assert loads[49].hash_key < action.at <= loads[50].hash_key
    assert "s0 uses 95% of its write quota" in action.reason


def test_neighbours_share_their_load_with_one_shard_more():
    actions, after, last = plan_actions(StreamView(shards_of(4), even(3.5), even(3.5)), LIMITS)
    assert len(after) == 5
    uses = [even(3.5).use(each.hash_range) for each in after]
    assert max(uses) < 0.75
    assert [type(each).__name__ for each in actions] == [
        "Split",
        "Split",
        "Merge",
        "Split",
        "Merge",
        "Split",
        "Merge",
    ]
    assert "its size fits" in last.reason


def test_neighbours_share_their_load_with_one_shard_less():
    _, after, _ = plan_actions(StreamView(shards_of(4), even(2.3), even(2.3)), LIMITS)
    assert len(after) == 3
    assert max(even(2.3).use(each.hash_range) for each in after) <= LIMITS.low + 0.01


def test_nothing_is_done_in_between():
    assert isinstance(decide(4, even(2.9)), Hold)


def test_a_young_boundary_is_not_removed():
    boundary = shards_of(2)[1].hash_range.start
    assert isinstance(decide(2, even(0.2)), Merge)
    held = decide(2, even(0.2), young=[boundary])
    assert isinstance(held, Hold)
    assert "older than 60 min" in held.reason


def test_a_load_of_the_last_minutes_keeps_the_shards():
    assert isinstance(decide(4, even(1.0), peak=even(3.0)), Hold)
    unknown = Resharder(LIMITS).decide(StreamView(shards_of(4), even(1.0), None))
    assert isinstance(unknown, Hold)
    assert "before enough of its load is known" in unknown.reason


def test_a_hot_key_is_not_split_and_named():
    load = even(0.1, KeyLoad(7, 1.2 * MIB, 0.0))
    (hot,) = hot_keys_of(StreamView(shards_of(2), load, load), LIMITS.high)
    assert (hot.shard_id, hot.hash_key) == ("s0", 7)
    held = decide(2, load)
    assert isinstance(held, Hold)
    assert "splitting cannot help" in held.reason


def test_a_key_that_a_split_can_free_from_others_is_not_called_hot():
    load = even(0.6, KeyLoad(7, 0.5 * MIB, 0.0))
    action = decide(1, load)
    assert isinstance(action, Split)


def test_the_bounds_are_kept():
    assert "no more than 4 shards" in decide(4, even(3.9), SizeLimits(1, 4)).reason
    assert isinstance(decide(2, even(0.1), SizeLimits(3, 4)), Split)
    assert isinstance(decide(6, even(0.1), SizeLimits(6, 8)), Hold)
    assert isinstance(decide(6, even(2.4), SizeLimits(1, 5)), Merge)
    assert isinstance(decide(6, even(4.4), SizeLimits(1, 5)), Split), "the first step to one shard less"


@pytest.mark.parametrize("total", [0.0, 0.3, 2.0, 7.7, 15.0])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_plan_ends_within_the_bounds_and_covers_all_keys(count, total):
    load = even(total)
    _, after, last = plan_actions(StreamView(shards_of(count), load, load), SizeLimits(1, 25))
    assert isinstance(last, Hold)
    assert 1 <= len(after) <= 25
    assert after[0].hash_range.start == 0
    assert sum(each.hash_range.size for each in after) == HASH_KEYS
    assert max(load.use(each.hash_range) for each in after) <= LIMITS.high


def test_a_step_that_others_have_made_is_left_out():
    resharder, load = Resharder(LIMITS), even(3.5)
    shards = shards_of(4)
    first = resharder.decide(StreamView(shards, load, load))
    shards, _ = apply_action(shards, first, 1)
    again = resharder.decide(StreamView(shards, load, load))
    assert again != first


def test_records_count_as_bytes_do():
    load = LoadMap([KeyLoad((2 * n + 1) * HASH_KEYS // 200, 1.0, 9.5) for n in range(100)])
    action = decide(1, load)
    assert isinstance(action, Split)
    assert action.at == pytest.approx(HASH_KEYS / 2, rel=0.02)


@pytest.mark.parametrize("target", [0.1, 1.0])
def test_a_target_that_cannot_be_is_refused(target):
    with pytest.raises(OptionError, match="target"):
        limits_for(1, 2, target)


def test_bounds_that_contradict_each_other_are_refused():
    with pytest.raises(OptionError, match="shards_min=3 and shards_max=2"):
        SizeLimits(3, 2)
