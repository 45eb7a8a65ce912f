"""Which rows a reset of an application's checkpoints writes, and which ones take it back."""

import pytest

from penstock.core.hash_key import HashRange
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_reset import ResetPlan, plan_reset, plan_restore
from penstock.core.position import TRIM_HORIZON, at_record, at_timestamp
from penstock.errors import OptionError
from reset_lineage import LINEAGE, NOW, TABLE, lease

MOMENT = at_timestamp(50)


@pytest.mark.parametrize(
    ("position", "shards", "snapshot", "expected"),
    [
        pytest.param(
            TRIM_HORIZON,
            None,
            (),
            ResetPlan({"s1-a": TRIM_HORIZON, "s2-b": TRIM_HORIZON}, kept_keys={"s0-p": "it is finished"}),
            id="without the stream finished shards stay finished: they may be gone",
        ),
        pytest.param(
            NOW,
            None,
            (),
            ResetPlan({"s1-a": NOW, "s2-b": NOW}, removed_keys=("s0-p",)),
            id="at LATEST parents go, since under a parent's lease a child is read from its beginning",
        ),
        pytest.param(
            MOMENT,
            LINEAGE,
            ("s1-a", "s2-b"),
            ResetPlan(
                {"s1-a": MOMENT, "s2-b": MOMENT},
                created_leases=(
                    Lease("s3-c", parents=frozenset({"s1-a"}), hash_range=HashRange(0, 24)),
                    Lease("s4-d", parents=frozenset({"s1-a"}), hash_range=HashRange(25, 49)),
                ),
                removed_keys=("s0-p",),
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
    assert [created.key for created in plan.created_leases] == ["s3-c", "s4-d"]
    assert plan.removed_keys == ()


def test_a_moment_needs_the_stream():
    with pytest.raises(OptionError, match=r"a reset to .* needs the stream"):
        plan_reset(TABLE, MOMENT)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (
            Lease("s2-b", hash_range=HashRange(0, 99)),
            r"hash keys 0\.\.99, and the stream's shard 50\.\.99\); nothing",
        ),
        (Lease("s2-b", parents=frozenset({"s1-a"})), "its parents are s1-a, and the stream's s0-p"),
    ],
)
def test_the_shards_of_another_stream_reset_nothing(row, why):
    with pytest.raises(OptionError, match=f"lease s2-b belongs to another stream, or .*{why}"):
        plan_reset((TABLE[0], row), TRIM_HORIZON, LINEAGE)


def test_a_restore_sets_checkpoints_back_makes_what_is_missing_and_removes_what_the_reset_made():
    after_reset = (lease("s2-b", NOW, ["s0-p"]), lease("s3-c", NOW, ["s1-a"]))
    assert plan_restore(after_reset, TABLE) == ResetPlan(
        {"s2-b": at_record("7")}, created_leases=TABLE[:2], removed_keys=("s3-c",)
    )
