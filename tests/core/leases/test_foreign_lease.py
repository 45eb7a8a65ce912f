"""Rows that do not name their stream, compared with the shards that the stream lists."""

from penstock.core.hash_key import FULL_RANGE
from penstock.core.leases.lease import Lease
from penstock.core.leases.row_checks import find_foreign_lease
from penstock.core.shard import Shard
from penstock.core.stream_identity import StreamIdentity

STREAM = StreamIdentity("arn:mine", 1)
LISTED = {"c": Shard("c", FULL_RANGE, ("a", "b"))}


def test_a_row_with_other_parents_than_the_listed_shard_is_foreign():
    row = Lease("c", parents=frozenset({"b", "x"}), hash_range=FULL_RANGE)
    foreign = find_foreign_lease([row], STREAM, LISTED)
    assert foreign.key == "c"
    assert foreign.why == "its parents are b, x, and the stream's a, b"


def test_a_row_that_agrees_with_the_listing_or_is_not_listed_is_not_foreign():
    rows = [Lease("c", parents=frozenset({"a", "b"}), hash_range=FULL_RANGE), Lease("old")]
    assert find_foreign_lease(rows, STREAM, LISTED) is None
