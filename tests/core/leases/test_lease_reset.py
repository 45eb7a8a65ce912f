"""Which rows a reset of an application's checkpoints writes, and which ones take it back."""

import pytest

from penstock.core.hash_key import FULL_RANGE, HashRange
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_reset import ResetPlan, plan_reset, plan_restore
from penstock.core.position import SHARD_END, TRIM_HORIZON, Position, Sentinel, at_record, at_timestamp
from penstock.core.shard import Shard
from penstock.errors import OptionError

NOW = Position(sentinel=Sentinel.LATEST, timestamp_ms=99)
MOMENT = at_timestamp(50)

# p is finished and split into a and b; a was split again, into c and d.
LINEAGE = (
    Shard("s0-p", HashRange(0, 99), (), "0", "9"),
    Shard("s1-a", HashRange(0, 49), ("s0-p",), "0", "9"),
    Shard("s2-b", HashRange(50, 99), ("s0-p",)),
    Shard("s3-c", HashRange(0, 24), ("s1-a",)),
    Shard("s4-d", HashRange(25, 49), ("s1-a",)),
)


def lease(key, checkpoint=TRIM_HORIZON, parents=(), **rest):
    return Lease(key, checkpoint=checkpoint, parents=frozenset(parents), hash_range=FULL_RANGE, **rest)


TABLE = (
    lease("s0-p", SHARD_END),
    lease("s1-a", at_record("5"), ["s0-p"]),
    lease("s2-b", at_record("7"), ["s0-p"]),
)


@pytest.mark.parametrize(
    ("position", "shards", "snapshot", "expected"),
    [
        pytest.param(
            TRIM_HORIZON,
            None,
            (),
            ResetPlan({"s1-a": TRIM_HORIZON, "s2-b": TRIM_HORIZON}, kept={"s0-p": "it is finished"}),
            id="without the stream finished shards stay finished: they may be gone",
        ),
        pytest.param(
            NOW,
            None,
            (),
            ResetPlan({"s1-a": NOW, "s2-b": NOW}, removed=("s0-p",)),
            id="at LATEST parents go, since under a parent's lease a child is read from its beginning",
        ),
        pytest.param(
            MOMENT,
            LINEAGE,
            ("s1-a", "s2-b"),
            ResetPlan(
                {"s1-a": MOMENT, "s2-b": MOMENT},
                created=(
                    Lease("s3-c", parents=frozenset({"s1-a"}), hash_range=HashRange(0, 24)),
                    Lease("s4-d", parents=frozenset({"s1-a"}), hash_range=HashRange(25, 49)),
                ),
                removed=("s0-p",),
            ),
            id="what was open at the moment starts there, what came after it at its beginning",
        ),
    ],
)
def test_a_reset_writes(position, shards, snapshot, expected):
    assert plan_reset(TABLE, position, shards, frozenset(snapshot)) == expected


def test_a_reset_to_the_beginning_reads_every_listed_shard_again():
    plan = plan_reset(TABLE, TRIM_HORIZON, LINEAGE)
    assert plan.targets == {"s0-p": TRIM_HORIZON, "s1-a": TRIM_HORIZON, "s2-b": TRIM_HORIZON}
    assert [created.key for created in plan.created] == ["s3-c", "s4-d"]
    assert plan.removed == ()


def test_a_moment_needs_the_stream():
    with pytest.raises(OptionError, match=r"a reset to .* needs the stream"):
        plan_reset(TABLE, MOMENT)


def test_a_restore_sets_checkpoints_back_makes_what_is_missing_and_removes_what_the_reset_made():
    after_reset = (lease("s2-b", NOW, ["s0-p"]), lease("s3-c", NOW, ["s1-a"]))
    assert plan_restore(after_reset, TABLE) == ResetPlan(
        {"s2-b": at_record("7")}, created=TABLE[:2], removed=("s3-c",)
    )
